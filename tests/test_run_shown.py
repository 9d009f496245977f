"""Runs that are given a picture or a control video: what they are called, what is refused before anything is written,
and what dry=true says. On toys of each layout."""

import shutil

import numpy as np
import pytest
from command import fastcache, only, read, runs, times
from layouts import LAYOUTS
from PIL import Image
from refusals import refused

from fastcache import api, calibrate
from fastcache.media import write_mp4

I2V, VACE = ("model=toy", "model.layout=i2v"), ("model=toy", "model.layout=vace")
QUICK = ("method=reuse", "num_videos=1")


def pixels(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, (*shape, 16, 16, 3), np.uint8)


def png(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed)).save(path)
    return path


@pytest.fixture
def files(tmp_path_factory):
    """Inputs beside the working directory, one with a name that needs care on a command line."""
    folder = tmp_path_factory.mktemp("in")
    png(folder / "my first, (frame) é.png")
    write_mp4(folder / "control.mp4", pixels(1, 6))
    for i in range(6):
        png(folder / "frames" / f"{i}.png", i)
    return folder


def frames_of(folder, idx=0):
    with np.load(folder / "videos" / f"{idx}.npz") as file:
        return file["frames"]


def test_a_run_is_named_by_the_bytes_of_its_picture(out, files, tmp_path_factory, capsys):
    first = files / "my first, (frame) é.png"
    words = (*I2V, *QUICK, f"outputs={out}")
    assert fastcache(*words, f"image={first}") == 0
    folder = only(out, "reuse-*")
    settings = (folder / "config.yaml").read_text()
    assert "my first" in settings and len(runs(out)) == 2
    before = times(out)

    elsewhere = tmp_path_factory.mktemp("elsewhere") / "b.png"
    shutil.copy(first, elsewhere)
    assert fastcache(*words, f"image={elsewhere}") == 0
    assert times(out) == before  # the same picture: the same finished run
    png(elsewhere, 5)
    assert fastcache(*words, f"image={elsewhere}") == 0
    assert len(runs(out)) == 4
    assert fastcache(*words) == 0  # and the drawn one
    assert len(runs(out)) == 6
    videos = [frames_of(path) for path in out.glob("reuse-*")]
    assert all((videos[a] != videos[b]).any() for a in range(3) for b in range(a))


def test_the_picture_is_what_the_model_is_shown(out, files):
    picture = files / "frames" / "3.png"
    assert fastcache(*I2V, "method=none", "num_videos=1", f"image={picture}", f"outputs={out}") == 0
    model = api.build_model({"_target_": "fastcache.models.toy.load", "layout": "i2v"}, None, "cpu", "float32")
    settings = read_settings(only(out, "none-*"))
    video = api.generate(model, settings["prompts"][0], schedule="FFFF", frames=6, image=pixels(3))
    assert (frames_of(only(out, "none-*")) == video.frames).all()


def read_settings(folder):
    import yaml

    return yaml.safe_load((folder / "config.yaml").read_text())


def test_a_folder_has_a_picture_for_each_video_and_a_stopped_run_goes_on(out, files):
    words = (*I2V, "method=none", f"outputs={out}", f"image={files / 'frames'}")
    assert fastcache(*words) == 0
    folder = only(out, "none-*")
    whole = [frames_of(folder, i) for i in range(2)]
    assert (whole[0] != whole[1]).any()
    (folder / "done.json").unlink()
    (folder / "videos" / "1.npz").unlink()
    kept = times(folder)["videos/0.npz"]
    assert fastcache(*words) == 0
    assert times(folder)["videos/0.npz"] == kept and (frames_of(folder, 1) == whole[1]).all()


@pytest.mark.parametrize("name", ["control.mp4", "frames"])
def test_a_control_of_the_right_length_needs_no_note(out, files, capsys, name):
    assert fastcache(*VACE, *QUICK, f"control={files / name}", f"outputs={out}") == 0
    assert "without control" not in capsys.readouterr().out
    assert read(only(out, "reuse-*") / "done.json")["num_videos"] == 1


def test_a_short_control_is_padded_and_said_once(out, files, capsys):
    words = (*VACE, "method=none", "frames=9", f"outputs={out}", f"control={files / 'control.mp4'}")
    assert fastcache(*words) == 0
    told = capsys.readouterr().out
    note = f"note: control={files / 'control.mp4'} has 6 of 9 frames; what follows them is without control"
    assert told.count("without control") == 1 and note in told
    assert fastcache(*words) == 0
    assert "without control" not in capsys.readouterr().out  # nothing is made


def test_controls_of_several_videos_are_noted_by_the_shortest(out, files, capsys):
    folder = files / "controls"
    for i, length in enumerate((9, 4)):
        write_mp4(folder / f"{i}.mp4", pixels(i, length))
    assert fastcache(*VACE, "method=none", "frames=9", f"outputs={out}", f"control={folder}") == 0
    told = capsys.readouterr().out
    assert told.count("without control") == 1 and "has 4 of 9 frames" in told


REFUSED = {
    "a picture for text alone": (("model=toy", "image={png}"), "takes neither image= nor control="),
    "a control for text alone": (("model=toy", "control={mp4}"), "takes neither image= nor control="),
    "a control for I2V": ((*I2V, "control={mp4}"), "model=toy takes image=; leave control= out"),
    "a picture for VACE": ((*VACE, "image={png}"), "model=toy takes control=; leave image= out"),
    "no such picture": ((*I2V, "image={png}.png"), "no such file or folder; expected a picture"),
    "no such control": ((*VACE, "control=nowhere.mp4"), "no such file or folder; expected a video"),
    "a video for a picture": ((*I2V, "image={mp4}"), "cannot be read as a picture"),
    "a picture for a video": ((*VACE, "control={text}"), "cannot be read as a video"),
    "an empty folder": ((*I2V, "image={empty}"), "holds no .png or .jpg files"),
    "too few pictures": ((*I2V, "image={few}"), "holds 1 files for 2 videos; try num_videos=1"),
    "one picture of many that cannot be read": ((*I2V, "image={mixed}"), "1.png cannot be read as a picture"),
    "an unknown layout": (("model=toy", "model.layout=flf"), "layout=flf is not one of t2v, i2v, vace"),
}


MODES = [(mode, name) for name in REFUSED for mode in ("run", "dry", "sweep")]
TWICE = ("a control for I2V", "one picture of many that cannot be read")  # one refused by its layout, one by its file


@pytest.mark.parametrize(
    ("mode", "case"),
    [pytest.param(*m, marks=() if m[0] == "run" or m[1] in TWICE else pytest.mark.slow) for m in MODES],
)
def test_it_is_refused_before_anything_is_written(mode, case, capsys, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, says = REFUSED[case]
    paths = {"png": png(files / "p.png"), "mp4": files / "control.mp4", "text": files / "a.mp4"}
    paths["text"].write_text("no video")
    for name in ("empty", "few", "mixed"):
        paths[name] = files / name
        paths[name].mkdir()
    png(files / "few" / "0.png")
    png(files / "mixed" / "0.png")
    (files / "mixed" / "1.png").write_text("no picture")
    more = {"run": [], "dry": ["dry=true"], "sweep": ["-m", "seed=0,1"]}[mode]
    message = refused(capsys, tmp_path / "out", *(word.format(**paths) for word in words), *more)
    assert says in message
    if mode == "dry":
        assert not (tmp_path / "out").exists()


def test_a_sweep_over_pictures(out, files, capsys):
    pictures = ",".join(str(files / "frames" / f"{i}.png") for i in (0, 1))
    assert fastcache(*I2V, f"image={pictures}", f"outputs={out}") == 1
    assert "names several values: add -m" in capsys.readouterr().err
    assert fastcache("-m", *I2V, "method=none", "num_videos=1", f"image={pictures}", f"outputs={out}") == 0
    assert len(runs(out)) == 2


@pytest.mark.parametrize(("words", "count"), [(I2V, 3 * 2 * 48 * 4 * (96 + 12)), (VACE, 2 * 2 * 48 * 4 * (96 + 8))])
def test_dry_tells_the_memory_of_all_branches(out, words, count, capsys):
    layers = 3 if words is I2V else 1  # VACE: one main block and its one VACE block
    assert fastcache(*words, f"model.layers={layers}", "method=taylorseer", "dry=true", f"outputs={out}") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"{count / 1e6:.1f} MB" in told or f"{count / 1e3:.1f} kB" in told, told
    assert not out.exists()


def test_a_reference_of_another_picture_differs_in_it(out, files, capsys):
    assert fastcache(*I2V, "method=none", "num_videos=1", f"outputs={out}") == 0
    reference = only(out, "none-*")
    capsys.readouterr()
    picture = files / "frames" / "0.png"
    assert fastcache(*I2V, *QUICK, f"image={picture}", f"reference={reference}", "frames=3", f"outputs={out}") == 1
    message = capsys.readouterr().err
    assert "frames: 3 here, 6 there" in message and "image:" in message and "Traceback" not in message


def test_calibration_says_that_it_takes_no_picture(capsys, files, tmp_path):
    words = ["model=toy", "model.layout=i2v", f"outputs={tmp_path}", f"image={files / 'frames'}"]
    assert calibrate.main(words) == 1
    assert "no use for image" in capsys.readouterr().err


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_probe_shows_what_the_model_draws(out, layout):
    words = ("model=toy", f"model.layout={layout}", "method=teacache", "frames=3", "num_videos=1", "rescale=auto")
    assert fastcache(*words, f"outputs={out}") == 0
    assert len(list((out / "fits").glob("*.yaml"))) == 1
