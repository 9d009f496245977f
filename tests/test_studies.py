"""Studies: an experiment is several grids, narrowed by the command line, run as one sweep."""

import re

import pytest
from command import fastcache

from fastcache import catalog, config
from fastcache.errors import UserError
from fastcache.results import read_json, signature
from fastcache.scores import too_fast
from fastcache.settings import resolve

MINE = """\
# @package _global_
# Question: one that a test asks.
grids:
  - {method: reuse, schedule: [FRFF, FFRF], method.chunks: [null, [0, 0]]}
  - {method: [random, oracle], skip: [1, 2]}
  - {method: none, schedule: FFFF, seed: 1, reference: "seed:0"}
"""
SMALL = ["model=toy", "frames=3", "num_videos=1", "rescale=none"]


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(MINE)
    return [f"--config-dir={tmp_path}", "experiment=mine"]


def jobs(words):
    return [resolve(*job) for job in config.plan([*words, *SMALL]).jobs]


def short(s):
    dial = "" if s["dial"] is None else f" {s['dial']:g}"
    return f"{s['choices']['method']}{dial} {s['schedule']}"


def test_an_experiment_is_the_sum_of_its_grids(mine):
    made = jobs(mine)
    assert [short(s) for s in made] == [
        *("reuse FRFF", "reuse FRFF", "reuse FFRF", "reuse FFRF"),
        *("random 1 Fxxx", "random 2 Fxxx", "oracle 1 Fxxx", "oracle 2 Fxxx", "none FFFF"),
    ]
    assert [s["method"]["chunks"] for s in made[:2]] == [None, [0, 0]]
    assert all("grids" not in s for s in made)


@pytest.mark.parametrize(("words", "expected"), [
    (["method=oracle"], ["oracle 1 Fxxx", "oracle 2 Fxxx"]),
    (["method=oracle,none"], ["oracle 1 Fxxx", "oracle 2 Fxxx", "none FFFF"]),
    (["skip=2.0"], ["random 2 Fxxx", "oracle 2 Fxxx"]),
    (["method=random,none", "skip=1"], ["random 1 Fxxx"]),
    (["schedule=FFRF", "method.chunks=[0,0]"], ["reuse FFRF"]),
    (["schedule=Fxxx", "skip=1"], ["random 1 Fxxx", "oracle 1 Fxxx"]),  # their schedule by default
    (["method.chunks=null", "schedule=FRFF,FFFF"], ["reuse FRFF"]),
])  # fmt: skip
def test_the_command_line_selects_among_its_runs(mine, words, expected):
    plan = config.plan([*mine, *words, *SMALL])
    assert [short(resolve(*job)) for job in plan.jobs] == expected
    assert plan.part.startswith(f"{len(expected)} of the 9 runs of experiment=mine, by ")


def test_a_key_that_no_grid_sweeps_is_set_in_all_and_a_grids_own_seed_stays(mine):
    plan = config.plan([*mine, *SMALL, "seed=3"])
    assert [resolve(*job)["seed"] for job in plan.jobs] == [3] * 8 + [1]
    assert plan.part == ""


@pytest.mark.parametrize(("words", "count"), [
    (["sampler=few_step", "method=oracle"], 6),
    pytest.param(["sampler.renoise=fresh", "method=teacache"], 10, marks=pytest.mark.slow),
    pytest.param(["sampler=few_step", "sampler.renoise=fresh", "schedule=FxxF"], 15, marks=pytest.mark.slow),
    pytest.param(["seed=3"], 124, marks=pytest.mark.slow),
])  # fmt: skip
def test_defaults_count_as_values_of_a_study(words, count):
    assert len(config.plan(["experiment=pareto", *words]).jobs) == count


@pytest.mark.parametrize(("words", "told"), [
    (["method=teacache"], "experiment=mine has no run with method=teacache; its runs have reuse, random, oracle, none"),
    (["skip=1,3"], "has no run with skip=3; its runs have 1, 2."),
    (["skip=1", "schedule=FRFF"], "has no run with skip=1 schedule=FRFF together"),
    (["metod=reuse"], "no run reads metod"),
])  # fmt: skip
def test_what_no_run_of_a_study_has_is_refused(mine, words, told):
    with pytest.raises(UserError, match=re.escape(told)):
        config.plan([*mine, *words])


@pytest.mark.slow
@pytest.mark.parametrize("name", catalog.options("experiment"))
def test_every_study_composes_and_says_what_it_asks(name):
    text = (catalog.CONF / "experiment" / f"{name}.yaml").read_text()
    assert all(f"# {head}: " in text for head in ("Question", "Time", "Expect"))
    plan = config.plan([f"experiment={name}"])
    made = {signature({**resolve(*job), "device": "cpu"}) for job in plan.jobs}
    assert plan.sweep
    assert len(made) == len(plan.jobs)  # no two of its jobs are one run
    assert all("-m" in words for words in plan.launches)


def test_a_study_runs_and_ends_in_one_table(mine, tmp_path, capsys):
    out = tmp_path / "out"
    words = (*mine, *SMALL, "method=oracle,none", f"outputs={out}")
    assert fastcache(*words) == 0
    told = capsys.readouterr().out
    assert "3 done, 0 left, 0 failed" in told
    assert told.count("signature\n") == 1
    (noise,) = (out.glob("none-nodial-FFFF-*/scores.json"),)
    scores = [read_json(path) for path in noise]
    against = {row["seed"]: row for row in scores}
    assert against[1]["reference"] == against[0]["signature"]  # another seed, scored against seed 0
    assert against[1]["psnr"] is not None
    assert fastcache(*words) == 0
    assert "video 1/1" not in capsys.readouterr().out  # nothing is made twice


@pytest.mark.parametrize("words", [["reference=seed:x"], ["reference=seed:"], ["reference=seed:-1"]])
def test_a_reference_of_no_seed_is_refused(words):
    with pytest.raises(UserError, match="expected a seed"):
        jobs(words)


@pytest.mark.parametrize(("words", "forward", "compute"), [
    (["method=reuse", "schedule=FRFF"], 3 / 5, 3 / 4),
    (["method=none", "schedule=FFFF"], 4 / 5, 1),
], ids=str)  # fmt: skip
def test_what_a_store_pass_costs_counts_where_only_the_reference_has_it(tmp_path, capsys, words, forward, compute):
    words = [*words, "sampler.store=reuse_last", f"outputs={tmp_path}", *SMALL]
    assert fastcache(*words, "reference=clean", "dry=true") == 0
    assert f"{1 / forward:.2f}x of DiT time" in capsys.readouterr().out
    assert fastcache(*words, "reference=clean") == 0
    lean, whole = sorted(map(read_json, tmp_path.glob("*/scores.json")), key=lambda s: s["reference"] == s["signature"])
    assert lean["reference"] == whole["signature"]
    assert (whole["forward_fraction"], whole["ceiling"]) == (1, 1)
    assert fastcache(*words, f"reference={whole['signature']}") == 0  # the same one, by its name
    for scores in (lean, read_json(next(tmp_path.glob(f"*-{lean['signature']}/scores.json")))):
        assert scores["forward_fraction"] == pytest.approx(forward)
        assert scores["compute_fraction"] == pytest.approx(compute)
        assert scores["ceiling"] == pytest.approx(1 / forward)
        assert too_fast(scores | {"speedup": 1.04 / forward}) is None
        assert too_fast(scores | {"speedup": 1.06 / forward})
    assert fastcache(*words) == 0  # against the FFFF run that has no store passes either
    alike = read_json(next(tmp_path.glob(f"*-{lean['signature']}/scores.json")))
    assert alike["forward_fraction"] == alike["compute_fraction"] == pytest.approx(1 / alike["ceiling"])


@pytest.mark.parametrize(("words", "says"), [
    (["method=oracle", "skip=4"], "leaves 3 steps of a chunk open"),
    (["method=random", "skip=3", "schedule=FxxF"], "leaves 2 steps of a chunk open"),
    (["method=oracle", "guidance_scale=3"], "searches without guidance"),
    (["method=teacache", "schedule=F-xF"], "leaves a step out of the sampler"),
    (["method=reuse", "schedule=F-RF"], "leaves a step out of the sampler"),
    (["method=none", "schedule=-FFF"], "must be F"),
    (["method=teacache", "skip=1"], "no skip"),
])  # fmt: skip
def test_controls_that_cannot_be_are_refused(words, says):
    with pytest.raises(UserError, match=says):
        jobs(words)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_report_finds_the_runs_of_a_study(mine, tmp_path, capsys):
    from fastcache.report.__main__ import main

    out = tmp_path / "out"
    words = [*mine, *SMALL, f"outputs={out}"]
    assert fastcache(*words, "method=none") == 0
    assert fastcache(*SMALL, "method=reuse", "schedule=FFRR", f"outputs={out}") == 0  # none of the study's
    capsys.readouterr()
    args = [str(out), "--to", str(tmp_path / "report"), "--experiment", " ".join(["mine", mine[0], *SMALL])]
    assert main(args) == 0
    told = capsys.readouterr().out
    assert "experiment=mine: 8 of 9 runs are not finished" in told
    assert "reuse" not in told

    again = tmp_path / "again"  # the reference of a second place is the noise floor's
    assert fastcache(*SMALL, "method=none", "schedule=FFFF", f"outputs={again}") == 0
    assert main([str(again), *args]) == 0
    assert "8 of 9 runs are not finished" in capsys.readouterr().out
    assert f"FFFF twice ({again.name}, {out.name})" in (tmp_path / "report" / "index.html").read_text()

    assert main([str(tmp_path / "nowhere"), "--experiment", f"mine method=none {mine[0]}"]) == 1
    assert "make them with python -m fastcache.run experiment=mine" in capsys.readouterr().err
