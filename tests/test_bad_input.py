"""Bad input: one message of a few lines, exit status 1, no traceback, and nothing that looks finished. Single runs and
sweeps alike are refused before the first job."""

import json

import pytest
import torch
import yaml
from command import QUICK, fastcache, runs
from refusals import EACH_STAGE, REFUSED, SWEPT, most_slow, refused

from fastcache import make
from fastcache.models.runner import BlockRunner
from fastcache.models.tiny import build, tiny_config
from fastcache.models.weights import save_weights


@pytest.mark.parametrize(("words", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_run_is_refused(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, tmp_path / "out", *words.split())
    assert not list(tmp_path.glob("*")) or [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("words", "says"), most_slow(SWEPT, EACH_STAGE))
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


def fit_for(*words, **change):
    """A saved fit made on the settings of a command, with some of its keys changed."""
    from fastcache import config, fits
    from fastcache.settings import resolve, wanted_fit

    (job,) = config.plan([*(word for word in QUICK if not word.startswith("rescale")), *words]).jobs
    samples = [{"x": x, "y": x / 2} for x in (0.1, 0.5, 0.9)]
    return fits.make_fit(samples, 1, wanted_fit(resolve(*job)), gate=False) | change


FITS = {
    "no fit at all": ("words", "is not a saved fit"),
    "no YAML": ("a: [1,", "cannot be read"),
    "of the wrong degree": ({"degree": 3}, "degree 3 needs 4 coefficients, not 2"),
    "with NaN": ({"coefficients": [float("nan"), 0.0]}, "is not a list of finite numbers"),
    "with a range upside down": ({"domain": [2.0, 1.0]}, "is not a pair [low, high]"),
}


@pytest.mark.parametrize(("content", "says"), FITS.values(), ids=FITS.keys())
def test_a_fit_that_is_none(content, says, capsys, tmp_path):
    path = tmp_path / "fit.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(fit_for("method=teacache", **content)))
    message = refused(capsys, tmp_path / "out", "method=teacache", f"rescale={path}")
    assert says in message and "fit.yaml" in message


@pytest.mark.parametrize(("words", "says"), [
    (["sampler.renoise=shared"], "sampler.renoise fresh there, shared here"),
    (["sampler=euler"], "sampler._target_"), (["indicator=e0"], "indicator modulated_input there, e0 here"),
    (["model.layers=3"], "weights"),
], ids=str)  # fmt: skip
def test_a_fit_for_something_else_is_refused_with_the_keys_that_differ(words, says, capsys, tmp_path):
    path = tmp_path / "fit.yaml"
    path.write_text(yaml.safe_dump(fit_for("method=teacache")))
    assert says in refused(capsys, tmp_path / "out", "method=teacache", f"rescale={path}", *words)
    if "sampler=euler" in words:  # nothing else is wrong with it
        assert fastcache("method=teacache", f"rescale={path}", "dry=true", f"outputs={tmp_path / 'out'}") == 0


def test_a_probe_without_prompts(capsys, tmp_path):
    from fastcache import api, calibrate
    from fastcache.errors import UserError
    from fastcache.sampler import FewStep

    model = api.load_model("toy")
    with pytest.raises(UserError, match="no prompts"):
        calibrate.probe(model, FewStep(frames_per_chunk=model.frames_per_chunk), [], 3)
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    assert calibrate.main(["model=toy", f"prompts={empty}", f"outputs={tmp_path / 'out'}"]) == 1
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize("indicator", [pytest.param("modulated_input", marks=pytest.mark.slow), "e0"])
def test_flowcache_takes_either_indicator(indicator, tmp_path):
    assert fastcache("method=flowcache", f"indicator={indicator}", "num_videos=1", f"outputs={tmp_path}") == 0


@pytest.mark.parametrize(
    ("method", "bad"),
    [
        ("motioncache", float("nan")),
        ("teacache", float("inf")),
        pytest.param("flowcache", float("nan"), marks=pytest.mark.slow),  # a default check of each is in test_contract
    ],
)
def test_a_value_that_is_not_finite_is_counted_in_the_scores_and_warned_of_once(
    method, bad, capsys, tmp_path, monkeypatch
):
    healthy = BlockRunner.modulated_input

    def broken(self):
        value = healthy(self).clone()
        value[0, 1, 2] = bad
        return value

    monkeypatch.setattr(BlockRunner, "modulated_input", broken)
    assert fastcache(f"method={method}", "thresh=9", f"outputs={tmp_path}") == 0
    assert capsys.readouterr().out.count("is not finite") == 1
    (path,) = tmp_path.glob(f"{method}-*/scores.json")
    scores = json.loads(path.read_text())
    assert scores["compute_fraction"] == 1.0
    assert scores["nonfinite_events"] == 2 * 2 * 2  # videos, chunks, the two x of FxxF
