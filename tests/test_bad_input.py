"""Bad input: one message of a few lines, exit status 1, no traceback, and nothing that looks finished. Single runs and
sweeps alike are refused before the first job."""

import json

import pytest
import torch
from command import fastcache, runs

from fastcache import make
from fastcache.models.tiny import build, tiny_config
from fastcache.models.weights import save_weights

REFUSED = {
    "misspelt method": ("method=motioncach thresh=0.3", "Did you mean motioncache?"),
    "misspelt sampler": ("sampler=few_stp", "Did you mean few_step?"),
    "misspelt model": ("model=tyo", "Did you mean toy?"),
    "misspelt key": ("thersh=0.3", "Did you mean thresh?"),
    "misspelt nested key": ("sampler.renois=shared", "Did you mean sampler.renoise?"),
    "another method's dial": ("method=none thresh=0.3", "method=none has no thresh"),
    "another method's dial by force": ("method=none ++thresh=0.3", "method=none has no thresh"),
    "an added dial": ("method=none +thresh=0.3", "method=none has no thresh"),
    "an added dial that is there": ("method=teacache +thresh=0.3", "write thresh=0.3"),
    "an unread key": ("+speed=fast", "no run reads speed"),
    "an unread nested key": ("engine.fast=true", "no run reads engine.fast"),
    "an unknown method option": ("method=motioncache +method.weight_nrm=max", "Did you mean weight_norm?"),
    "an unknown engine option": ("+engine.bits=4", "has no option bits"),
    "a bad method option": ("method=motioncache method.weight_norm=sum", "choose one of mean, max, max_rescale"),
    "a per-frame indicator": ("method=motioncache indicator=e0", "per-token indicator"),
    "wrong letter": ("method=reuse schedule=FxyF", "letter 'y'"),
    "wrong length": ("method=reuse schedule=FxF", "3 letters; the sampler takes 4 steps"),
    "not starting with F": ("method=reuse schedule=xFFF", "must be F"),
    "negative threshold": ("method=teacache thresh=-0.1", "thresh=-0.1"),
    "threshold not a number": ("method=teacache thresh=nan", "thresh=nan"),
    "threshold a word": ("method=teacache thresh=much", "thresh=much: expected a number"),
    "threshold without a value": ("method=teacache thresh=", "expected a number"),
    "no videos": ("num_videos=0", "num_videos=0: expected a whole number, 1 or more"),
    "more videos than prompts": ("num_videos=5", "prompts=smoke holds 4"),
    "half a chunk": ("frames=7", "frames=6 or frames=9"),
    "no frames": ("frames=0", "frames=0"),
    "a seed in words": ("seed=lucky", "seed=lucky"),
    "missing prompts file": ("prompts=nowhere.txt", "no such file"),
    "misspelt prompts": ("prompts=smok", "Did you mean smoke?"),
    "missing fit": ("rescale=nowhere.yaml", "no such file"),
    "missing weights": ("weights=nowhere.safetensors", "no such file"),
    "unknown device": ("device=gpu", "auto, cpu, cuda"),
    "unknown dtype": ("dtype=half", "float32"),
    "unknown metric": ("metric=[psnr,lpip]", "Did you mean lpips?"),
    "missing LPIPS weights": ("metric=[lpips] metric.lpips.weights=nowhere.pth", "no such file"),
    "unknown tracking": ("tracking=wandb", "offline"),
    "a switch in words": ("force=maybe", "true or false"),
    "no such reference": ("reference=0123abcd", "no finished run"),
    "euler under another sampler": ("method=euler sampler=few_step", "leave sampler= out"),
    "a sweep without -m": ("seed=0,1", "add -m"),
    "a list written as a sweep": ("metric=psnr,lpips", "metric=[...]"),
    "no option at all": ("teacache", "name=value"),
    "a flag": ("--thresh 0.3", "name=value"),
    "two modes at once": ("-m --cfg job", "leave one of them out"),
    "an unreadable line": ("thresh={", "cannot be read"),
    "a group left out": ("~method", "cannot be left out"),
    "an added group": ("+method=none", "without +"),
}
SWEPT = {name: case for name, case in REFUSED.items() if "sweep" not in name and "-" not in case[0][:2]}


def refused(capsys, outputs, *words):
    """The message of a command that must be refused before anything is written."""
    status = fastcache(*words, f"outputs={outputs}")
    out, err = capsys.readouterr()
    assert status == 1, out + err
    assert err.startswith("error: ")
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) <= 3
    assert out == ""
    assert not outputs.is_dir() or not list(outputs.iterdir())
    return err


@pytest.mark.parametrize(("words", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_run_is_refused(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, tmp_path / "out", *words.split())
    assert not list(tmp_path.glob("*")) or [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("words", "says"), SWEPT.values(), ids=SWEPT.keys())
def test_a_sweep_is_refused_before_its_first_job(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = "frames=3,6" if words.startswith("seed") else "seed=0,1"
    assert says in refused(capsys, tmp_path / "out", "-m", *words.split(), sweep)


def test_one_bad_job_refuses_the_whole_sweep(capsys, tmp_path):
    words = ("-m", "method=reuse,teacache", "schedule=FxxF,xFFF")
    assert "must be F" in refused(capsys, tmp_path / "out", *words)
    assert "has no thresh" in refused(capsys, tmp_path / "out", "-m", "method=teacache,reuse", "thresh=0.1,0.2")


def test_an_empty_prompts_file(capsys, tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("\n  \n")
    assert "is empty" in refused(capsys, tmp_path / "out", f"prompts={path}")


def test_a_prompts_file_that_is_no_text(capsys, tmp_path):
    path = tmp_path / "picture.txt"
    path.write_bytes(b"\xff\xd8\xff\xe0")
    assert "cannot be read" in refused(capsys, tmp_path / "out", f"prompts={path}")


def test_cuda_where_there_is_none(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refused(capsys, tmp_path / "out", "device=cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "1 CUDA device here" in refused(capsys, tmp_path / "out", "device=cuda:1")


def test_outputs_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file" / "out", tmp_path / "file"):
        assert "cannot be written" in refused(capsys, place)
    assert fastcache("outputs=/proc/fastcache") == 1  # refused to root as well
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o555)
    with pytest.MonkeyPatch.context() as patch:
        if not _stopped_by_permissions(tmp_path / "closed"):
            patch.setattr("tempfile.TemporaryFile", _denied)  # root writes anywhere: act as another user
        assert "cannot be written" in refused(capsys, tmp_path / "closed")


def _stopped_by_permissions(folder):
    try:
        (folder / "probe").touch()
    except PermissionError:
        return True
    (folder / "probe").unlink()
    return False


def _denied(*args, **kwargs):
    raise PermissionError(13, "Permission denied")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Checkpoints of the tiny architecture: random but whole, cut short, of another width."""
    folder = tmp_path_factory.mktemp("weights")
    whole, cut, narrow = (folder / f"{name}.safetensors" for name in ("whole", "cut", "narrow"))
    save_weights(build(tiny_config()).state_dict(), whole, torch.bfloat16, {})
    cut.write_bytes(whole.read_bytes()[:-1000])
    save_weights(build(tiny_config(dim=48)).state_dict(), narrow, torch.bfloat16, {})
    yield whole, cut, narrow
    make._model.cache_clear()


def test_damaged_and_foreign_weights(capsys, tmp_path, weights):
    _, cut, narrow = weights
    text = tmp_path / "notes.safetensors"
    text.write_text("not weights")
    for path, says in ((cut, "complete"), (text, "complete"), (narrow, "expected [")):
        for sweep in ((), ("-m", "seed=0,1")):
            assert says in refused(capsys, tmp_path / "out", "model=tiny_t2v", f"weights={path}", *sweep)


def test_an_unknown_prompt_word(capsys, tmp_path, weights):
    words = ("model=tiny_t2v", f"weights={weights[0]}", "num_videos=1", "prompt=a rad circle moves left")
    for sweep in ((), ("-m", "seed=0,1")):
        message = refused(capsys, tmp_path / "out", *words, *sweep)
        assert "'rad'" in message
        assert "Did you mean 'red'?" in message
        assert "triangle" in message  # the vocabulary


def test_a_reference_of_another_size(capsys, tmp_path):
    out = tmp_path / "out"
    assert fastcache("method=none", "frames=3", "num_videos=1", f"outputs={out}") == 0
    (name,) = runs(out)
    capsys.readouterr()
    for reference in (name.rpartition("-")[2], str(out / name)):
        words = (f"reference={reference}", f"outputs={out}", "method=reuse", "num_videos=1")
        assert fastcache(*words) == 1
        message = capsys.readouterr().err
        assert "frames: 6 here, 3 there" in message
        assert runs(out) == [name]


def test_a_reference_whose_frames_turn_out_to_be_of_another_size(capsys, tmp_path):
    out = tmp_path / "out"
    assert fastcache("method=none", "num_videos=1", f"outputs={out}") == 0
    (name,) = runs(out)
    for path in (out / name / "videos").glob("0.npz"):
        import numpy as np

        np.savez_compressed(path, frames=np.zeros((6, 8, 8, 3), np.uint8))
    capsys.readouterr()
    words = ("method=reuse", "num_videos=1", f"outputs={out}", f"reference={out / name}", "model.layers=1")
    assert fastcache(*words) == 1
    message = capsys.readouterr().err
    assert "videos of [6, 8, 8, 3]" in message
    assert "model: " in message
    assert "Traceback" not in message
    assert runs(out) == [name]
    (failed,) = out.glob("reuse-*/failed.json")
    assert "videos of [6, 8, 8, 3]" in json.loads(failed.read_text())["error"]
