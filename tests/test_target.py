"""target_speedup= and max_lpips=: what they pick, and what they refuse."""

import json
import shutil

import pytest
from command import QUICK, only

from fastcache.run import main
from fastcache.target import expand


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A study of the toy model with numbers known beforehand written over the measured ones."""
    folder = tmp_path_factory.mktemp("study") / "out"
    quick = [word for word in QUICK if "num_videos" not in word and "frames" not in word]
    base = [*quick, "frames=3", "num_videos=1", f"outputs={folder}", "-m"]
    assert main([*base, "method=motioncache", "thresh=0.3,2", "method.weight_norm=max"]) == 0
    assert main([*base, "method=reuse", "schedule=Fxxx"]) == 0
    for pattern, forward, speedup, lpips in (
        ("motioncache-0.3-*", 0.8, 1.2, 0.01),
        ("motioncache-2-*", 0.6, 1.5, 0.05),
        ("reuse-*", 0.4, 2.3, 0.3),
    ):
        rewrite(only(folder, pattern), forward_fraction=forward, speedup=speedup, lpips=lpips)
    return folder


def rewrite(run, **numbers):
    path = run / "scores.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | numbers))


def words(out, *more):
    return [*more, "model=toy", "frames=3", "rescale=none", f"outputs={out}", "prompt=a red circle moves left"]


def test_the_target_picks_the_best_of_what_reaches_it(out):
    for target, picked in (
        ("target_speedup=1.4", {"method=motioncache", "thresh=2", "schedule=FxxF"}),
        ("target_speedup=2", {"method=reuse", "schedule=Fxxx"}),
        ("max_lpips=0.05", {"method=motioncache", "thresh=2"}),
        ("max_lpips=0.02", {"method=motioncache", "thresh=0.3"}),
    ):
        argv, said = expand(words(out, target))
        assert picked <= set(argv) and target not in argv
        assert said.startswith(f"{target}: ") and "of 3 finished runs" in said
    assert 'method.weight_norm="max"' in argv


def test_a_run_faster_than_its_forwards_allow_is_not_picked(out, tmp_path, capsys):
    copy = shutil.copytree(out, tmp_path / "out")
    rewrite(only(copy, "motioncache-2-*"), forward_fraction=0.95)
    argv, said = expand(words(copy, "target_speedup=1.4"))
    assert "method=reuse" in argv and "of 2 finished runs" in said
    for run in copy.glob("*-F*"):
        rewrite(run, forward_fraction=0.99, speedup=1.6)
    assert main(words(copy, "target_speedup=1.4")) == 1
    assert "3 runs are left out, timed beside other work" in capsys.readouterr().err


def test_a_target_runs_what_it_picked(out, capsys):
    assert main(words(out, "max_lpips=0.05", "metric=psnr", "tracking=disabled")) == 0
    assert "max_lpips=0.05: motioncache 2 FxxF" in capsys.readouterr().out
    assert (
        "weight_norm: max"
        in sorted(out.glob("motioncache-2-*"), key=lambda p: p.stat().st_mtime)[-1].joinpath("config.yaml").read_text()
    )


@pytest.mark.parametrize(
    "more, told",
    [
        (["target_speedup=4"], "do not cover it; the nearest is reuse Fxxx with 2.30x"),
        (["max_lpips=0.001"], "the nearest is motioncache 0.3 FxxF with LPIPS 0.0100"),
        (["target_speedup=1.2", "method=reuse"], "leave method=reuse out"),
        (["target_speedup=1.2", "max_lpips=1"], "one target"),
        (["target_speedup=fast"], "expected a number"),
        (["max_lpips=0.1", "sampler.renoise=shared"], "they differ in sampler"),
    ],
)
def test_what_a_study_does_not_cover_is_refused(out, capsys, more, told):
    assert main(words(out, *more)) == 1
    assert told in capsys.readouterr().err


def test_without_a_study_it_is_refused(tmp_path, capsys):
    assert main(words(tmp_path / "none", "target_speedup=1.4")) == 1
    assert "picks from finished runs" in capsys.readouterr().err


def test_without_a_target_nothing_changes():
    assert expand(["method=reuse", "-m"]) == (["method=reuse", "-m"], None)
