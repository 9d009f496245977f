"""No dial without effect: what a schedule can reach is said before, and a dial that decided nothing afterwards."""

import json

import pytest
from command import fastcache, only, read, runs

from fastcache import config, preflight, scores
from fastcache.settings import resolve

ONE = ("frames=3", "num_videos=1")


def settings(*words):
    (job,) = config.plan(["model=toy", "frames=6", "rescale=none", *words]).jobs
    return resolve(*job)


@pytest.mark.parametrize(("words", "speeds"), [
    (["schedule=FxxF"], [1, 5 / 4, 5 / 3]),
    (["schedule=Fxxx"], [1, 5 / 4, 5 / 3, 5 / 2]),
    (["schedule=FFFx"], [1, 5 / 4]),
    (["schedule=FFFF"], [1]),
    (["schedule=Fxxx", "sampler.store=reuse_last"], [1, 4 / 3, 2, 4]),
], ids=str)  # fmt: skip
def test_speeds_count_the_store_pass(words, speeds):
    s = settings("method=teacache", *words)
    assert scores.speeds(s) == pytest.approx(speeds)
    assert scores.top_speed(s) == pytest.approx(speeds[-1])
    assert all(f"{speed:.2f}x" in preflight.reach(s) for speed in speeds)


def test_a_sweep_says_what_each_schedule_can_reach_once(tmp_path, capsys):
    words = ("-m", "method=teacache", "schedule=FxxF,Fxxx", "thresh=0.5,1.3", *ONE, f"outputs={tmp_path}")
    assert fastcache(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if "can reach" in line]
    assert said == [
        "FxxF can reach 1.00x, 1.25x, 1.67x of DiT time by skipping 0, 1, 2 steps of a chunk, the store pass counted",
        "Fxxx can reach 1.00x, 1.25x, 1.67x, 2.50x of DiT time by skipping 0, 1, 2, 3 steps of a chunk, "
        "the store pass counted",
    ]
    assert lines.index(said[-1]) < next(i for i, line in enumerate(lines) if line.startswith("video "))
    one = ("method=teacache", "schedule=FxxF", "thresh=0.5", *ONE, f"outputs={tmp_path}")
    assert fastcache(*one) == 0
    assert "can reach" not in capsys.readouterr().out  # nothing is left to be made


def test_dry_tells_the_reach_and_the_memory_of_either_scope(tmp_path, capsys):
    said = {}
    for scope in ("module", "stack"):
        words = ("method=taylorseer", "dry=true", f"method.scope={scope}", f"outputs={tmp_path / 'none'}")
        assert fastcache(*words, "model.layers=4") == 0
        said[scope] = capsys.readouterr().out
        assert "reach      1.00x, 1.25x, 1.67x of DiT time" in said[scope]
    bytes_ = {"kB": 1e3, "MB": 1e6}
    amount = {scope: text.split("kept by the method ")[1].split()[:2] for scope, text in said.items()}
    sizes = {scope: float(number) * bytes_[unit.strip(",")] for scope, (number, unit) in amount.items()}
    assert sizes["module"] == pytest.approx(3 * 4 * sizes["stack"], rel=0.2)  # as rounded for the eye


@pytest.mark.parametrize(("words", "says"), [
    (["method=teacache", "thresh=0.01"], "thresh=0.01 changed no decision: every step was computed in full"),
    (["method=motioncache", "thresh=9"], "thresh=9 changed no decision: every step but the F ones was skipped"),
    (["method=taylorseer", "interval=4"], "interval=4 changed no decision: every step but the F ones was skipped"),
    (["method=flowcache", "schedule=FFFF"], "thresh=0.1 had nothing to decide, schedule=FFFF forces every step"),
], ids=str)  # fmt: skip
def test_a_dial_that_decided_nothing_is_told(words, says, tmp_path, capsys):
    assert fastcache(*words, *ONE, f"outputs={tmp_path}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(says in line for line in lines) == 1
    assert fastcache(*words, *ONE, f"outputs={tmp_path}") == 0
    assert says in capsys.readouterr().out  # told again when the run is found on disk


def test_the_values_that_a_useless_threshold_was_compared_with(tmp_path, capsys):
    assert fastcache("method=teacache", "thresh=0.01", *ONE, f"outputs={tmp_path}") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "changed no decision" in line]
    (folder,) = tmp_path.glob("teacache-*")
    chunks = json.loads((folder / "trace.json").read_text())["videos"][0]["chunks"]
    values = [value for chunk in chunks for value in chunk["indicator"] if value is not None]
    assert line.endswith(f"compared with values from {min(values):.3g} to {max(values):.3g}")
    middle = f"thresh={(min(values) + max(values)) / 2}"
    assert fastcache("method=teacache", middle, *ONE, f"outputs={tmp_path}") == 0
    assert "changed no decision" not in capsys.readouterr().out


def test_runs_of_a_papers_preset_are_called_after_it(tmp_path, capsys):
    assert fastcache("method=motioncache_paper", "thresh=0.7", *ONE, f"outputs={tmp_path}") == 0
    (folder,) = tmp_path.glob("motioncache_paper-0.7-FxxF-*")
    made = json.loads((folder / "scores.json").read_text())
    assert (made["label"], made["method"], made["dial"]) == ("motioncache_paper 0.7 FxxF", "motioncache_paper", 0.7)
    assert "motioncache_paper 0.7 FxxF" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "ceiling"), [
    (["schedule=FRRF"], 5 / 3),
    (["schedule=FRRF", "method.chunks=[1,1]"], 15 / 13),
    (["schedule=FRRF", "method.chunks=[1,9]"], 15 / 11),
    (["schedule=FRFF", "method.chunks=[0,2]"], 5 / 4),
])  # fmt: skip
def test_the_ceiling_is_what_a_fixed_mask_reaches(words, ceiling, out):
    assert fastcache(*words, "method=reuse", "frames=9", "num_videos=1", f"outputs={out}") == 0
    scores = read(only(out, "reuse-*") / "scores.json")
    assert scores["ceiling"] == pytest.approx(ceiling) == 1 / scores["forward_fraction"]


def test_a_method_that_computes_everything_is_its_own_reference_under_any_mask(out, capsys):
    assert fastcache("-m", "method=none", "schedule=FFFF,FRRF,FxxF", f"outputs={out}") == 0
    assert [name.rpartition("-")[0] for name in runs(out)] == ["none-nodial-FFFF"]
    assert "1 done, 0 left, 0 failed" in capsys.readouterr().out


def test_dry_counts_the_runs_of_a_large_sweep(out, capsys):
    words = ("method=reuse", "frames=3", "num_videos=1", f"outputs={out}")
    assert fastcache("-m", *words, "schedule=FRFF") == 0
    capsys.readouterr()
    assert fastcache("-m", *words, "schedule=FRFF,FFRF,FFFR,FRRF,FRRR", "dry=true") == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 6 and told[-1] == "5 runs, 1 finished, 4 to make"
    assert told[0].endswith("exists, finished") and told[1].endswith("does not exist yet")
