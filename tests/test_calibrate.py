"""Calibration from the command line: samples, the saved fit, and what it refuses."""

import numpy as np
import pytest

from fastcache import calibrate, fits
from fastcache.sampler import Euler, FewStep

SMALL = ["model=toy", "frames=6", "num_videos=2", "tracking=disabled"]


@pytest.fixture(scope="module")
def model():
    from fastcache.api import load_model

    return load_model("toy")


def only_fit(folder):
    (path,) = (folder / "fits").glob("*.yaml")
    return path


def test_samples_cover_every_transition_of_every_prompt(model):
    sampler = FewStep(frames_per_chunk=model.frames_per_chunk)
    prompts, seen = ["a red circle stays", "a blue square stays"], []
    samples = calibrate.probe(model, sampler, prompts, 6, on_video=lambda done, of: seen.append((done, of)))
    places = [(s["prompt"], s["chunk"], s["step"]) for s in samples]
    assert places == [(p, c, k) for p in (0, 1) for c in (0, 1) for k in (1, 2, 3)]
    assert [s["sigma"] for s in samples[:3]] == pytest.approx([0.9375, 0.8333, 0.625], abs=1e-4)
    assert all(0 < s["x"] < 3 and 0 < s["y"] < 3 for s in samples)
    assert seen == [(1, 2), (2, 2)]
    assert samples == calibrate.probe(model, sampler, prompts, 6)  # addressed noise: the same again
    alone = calibrate.probe(model, sampler, prompts[:1], 6)
    assert samples[:6] == alone
    assert samples != calibrate.probe(model, sampler, prompts, 6, seed=1)


def test_smoother_samplers_change_less(model):
    """Fresh noise at each step makes the input jump; Euler steps do not: the probe must see that."""
    fresh, smooth = (
        np.mean([s["x"] for s in calibrate.probe(model, kind(frames_per_chunk=3), ["a red circle stays"], 3)])
        for kind in (FewStep, Euler)
    )
    assert smooth < 0.6 * fresh


def test_the_command_writes_the_fit_of_its_samples_and_finds_it_again(tmp_path, capsys, monkeypatch):
    command = [*SMALL, f"outputs={tmp_path}", "sampler=few_step", "rescale.degree=1", "rescale.gate=false"]
    assert calibrate.main(command) == 0
    path = only_fit(tmp_path)
    assert str(path) in capsys.readouterr().out.replace("\n", "")
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    fit, samples = fits.load_fit(path), fits.load_samples(path)
    assert {"x", "y", "frames", "tokens", "norm_ratio", "cosine", "prompt"} <= samples[0].keys()
    assert fit["n"] == len(samples) == 2 * 2 * 3
    x, y = ([s[key] for s in samples] for key in "xy")
    assert fit["coefficients"] == pytest.approx(list(np.polyfit(x, y, 1)))
    assert fit["domain"] == [min(x), max(x)]
    on = fit["fitted_on"]
    assert (on["model"], on["frames"], on["seed"], on["num_prompts"]) == ("toy", 6, fits.PROBE_SEED, 2)
    assert on["sampler"]["renoise"] == "fresh"

    monkeypatch.setattr(calibrate, "calibrate", None)  # a second probe would fail
    assert calibrate.main(command) == 0
    assert only_fit(tmp_path) == path


def test_a_long_step_list_needs_no_schedule(tmp_path):
    assert calibrate.main([*SMALL, f"outputs={tmp_path}", "sampler.steps=[1000,800,600,400,200]"]) == 0
    assert fits.load_fit(only_fit(tmp_path))["n"] == 2 * 2 * 4


def test_dry_writes_nothing(tmp_path, capsys):
    assert calibrate.main([*SMALL, f"outputs={tmp_path / 'none'}", "dry=true"]) == 0
    assert "does not exist yet" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "words"), [
    (["method=teacache"], "no use for method"),
    (["thresh=0.3"], "no use for thresh"),
    (["samplr=euler"], "sampler"),
    (["rescale=none"], "leave rescale= out"),
    (["rescale.degree=9"], "0 to 4"),
    (["rescale.degree=two"], "0 to 4"),
    (["-m", "seed=1,2"], "one fit at a time"),
    (["num_videos=0"], "num_videos"),
    (["indicator=e1"], "indicator"),
    (["prompts=absent.txt"], "absent.txt"),
], ids=str)  # fmt: skip
def test_refusals_are_one_sentence_and_leave_nothing(options, words, tmp_path, capsys):
    assert calibrate.main([*SMALL, f"outputs={tmp_path / 'none'}", *options]) == 1
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_help(capsys):
    assert calibrate.main(["--help"]) == 0
    assert "python -m fastcache.calibrate" in capsys.readouterr().out
