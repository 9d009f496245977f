"""Runs with a dial against the oracle, random masks, fixed masks and fewer steps, against sums done by hand."""

import csv
import json

import numpy as np
import pytest
import yaml
from report_page import Page
from report_runs import PROMPTS, signature, write_run, write_study

from fastcache.report.__main__ import main
from fastcache.report.atlas import atlas_grid, propagation_grid
from fastcache.report.controls import against, errors, present
from fastcache.report.load import load
from fastcache.report.stats import mixture
from fastcache.report.study import Study

BASE = signature("none", None, "FFFF", 0, "toy", "fresh", PROMPTS, 12, [])


def of(root, baseline=None):
    return Study([root], load([root]), baseline)


def rows(root):
    (group,) = of(root).groups
    return {one.run["label"]: one for one in against(group)}


def db(lpips):
    """PSNR of write_run's videos."""
    return 10 - 10 * np.log10(lpips + 1e-9)


def edit(folder, change):
    path = folder / "scores.json"
    scores = json.loads(path.read_text())
    change(scores)
    path.write_text(json.dumps(scores))


@pytest.fixture
def study(tmp_path):
    """A teacache between its controls: 0.7 lies halfway between masks at 0.8 and 0.6."""
    root = tmp_path / "out"
    write_run(root)
    write_run(root, "teacache", 0.3, "Fxxx", 0.7, [0.05, 0.06, 0.07, 0.05])
    for schedule, forward, value in (("FRFF", 0.8, 0.02), ("FFFR", 0.8, 0.4), ("FRRF", 0.6, 0.06)):
        write_run(root, "reuse", None, schedule, forward, [value] * 4)
    for skip, forward, value in ((1, 0.8, 0.01), (2, 0.6, 0.03)):
        write_run(root, "oracle", skip, "Fxxx", forward, [value] * 4)
    write_run(root, "random", 1, "Fxxx", 0.8, [0.2] * 4)
    write_run(root, "none", None, "F-FF", 0.8, [0.2] * 4, reference=BASE)
    write_run(root, "none", None, "F--F", 0.6, [0.5] * 4, reference=BASE)
    return root


def test_differences_are_taken_at_equal_forward_fraction(study):
    one = rows(study)["teacache 0.3 Fxxx"]
    mine = np.array([0.05, 0.06, 0.07, 0.05])
    for control, x0, x1 in (("mask", 0.02, 0.06), ("oracle", 0.01, 0.03), ("fewer", 0.2, 0.5)):
        assert one.found[control]["lpips"].mean == pytest.approx(np.mean(mine) - (x0 + x1) / 2)
        mse = (10 ** (-db(x0) / 10) + 10 ** (-db(x1) / 10)) / 2  # halfway in squared error, not in dB
        wanted = np.mean([db(v) for v in mine]) + 10 * np.log10(mse)
        assert one.found[control]["psnr"].mean == pytest.approx(wanted)
    assert one.why == {"random": "not covered"} and one.identical == 0
    assert one.found["oracle"]["lpips"].clear and one.found["oracle"]["lpips"].low > 0


def test_each_video_is_compared_at_its_own_forward_fraction(study):
    def change(scores):
        for video, share in zip(scores["per_video"], (0.75, 0.75, 0.5, 0.5), strict=True):
            video["compute_fraction"] = share
        scores["compute_fraction"] = 0.625  # with the store pass: 0.8, 0.8, 0.6, 0.6

    edit(next(study.glob("teacache*")), change)
    found = rows(study)["teacache 0.3 Fxxx"].found["mask"]["lpips"]
    assert found.mean == pytest.approx(np.mean([0.05 - 0.02, 0.06 - 0.02, 0.07 - 0.06, 0.05 - 0.06]))


def test_an_identical_video_has_no_error_and_is_counted(study):
    def change(scores):
        scores["per_video"][0] |= {"psnr": None, "psnr_why": "identical", "lpips": 0.0}

    edit(next(study.glob("teacache*")), change)
    one = rows(study)["teacache 0.3 Fxxx"]
    assert one.identical == 1 and one.found["mask"]["psnr"].n == 4
    assert one.found["mask"]["lpips"].mean == pytest.approx(np.mean([0, 0.06, 0.07, 0.05]) - 0.04)
    assert one.found["mask"]["psnr"].mean > (100 - db(0.04)) / 4 - 8


def test_what_was_not_scored_is_said_and_not_taken_for_no_error(study):
    edit(next(study.glob("teacache*")), lambda s: [v.update(psnr=None, lpips=None) for v in s["per_video"]])
    one = rows(study)["teacache 0.3 Fxxx"]
    assert not one.found and set(one.why.values()) == {"not scored", "not covered"}
    (run,) = [r for r in load([study]).runs if r["method"] == "teacache"]
    assert np.isnan(errors(run, PROMPTS)["mse"]).all()


def test_controls_of_another_seed_or_noise_are_not_taken(study):
    write_run(study, "motioncache", 0.3, "Fxxx", 0.7, [0.05] * 4, renoise="shared")
    write_run(study, "motioncache", 0.4, "Fxxx", 0.7, [0.05] * 4, seed=1)
    found = rows(study)
    for label in ("motioncache 0.3 Fxxx", "motioncache 0.4 Fxxx"):
        assert set(found[label].why.values()) == {"no such runs"}
    assert list(present(list(found.values()))) == ["oracle", "random", "mask", "fewer"]


def test_the_best_mixture_leaves_out_what_two_others_beat():
    assert mixture([0.4, 0.6, 0.8, 0.8, 1.0], [0.2, 0.3, 0.1, 0.05, 0.0]) == [0, 3, 4]
    assert mixture([0.4, 0.7, 1.0], [0.2, 0.05, 0.0]) == [0, 1, 2]


def test_the_oracle_is_a_bound_and_random_masks_no_choice(study):
    found = of(study)
    (group,) = found.groups
    assert {run.role for run in group.fronts} == {"method", "mask"}
    ((_, ranking),) = found.ranks(group)
    for ranked in ranking.at.values():
        bound, *others = ranked
        assert (bound.line, bound.rank) == ("oracle masks", 0) and bound.behind.mean < 0
        assert [one.rank for one in others] == list(range(1, len(others) + 1))
    assert ranking.at[0.8][1].line == "reuse" and ranking.at[0.8][1].value.mean == pytest.approx(0.02)


@pytest.mark.usefixtures("undrawn")
def test_terminal_csv_and_page_tell_the_differences(study, capsys):
    to = study.parent / "report"
    assert main([str(study), "--to", str(to)]) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.startswith("teacache 0.3 Fxxx") and "not covered" in line]
    assert "+0.0375" in line and max(map(len, said.partition("against controls")[2].splitlines()[:3])) <= 120
    table = {row["label"]: row for row in csv.DictReader((to / "table.csv").open())}
    row = table["teacache 0.3 Fxxx"]
    assert float(row["lpips_vs_oracle"]) == pytest.approx(0.0575 - 0.02) and row["lpips_vs_random"] == ""
    assert (row["vs_oracle"], row["vs_random"]) == ("covered", "not covered")
    assert float(row["lpips_vs_mask_low"]) < float(row["lpips_vs_mask"]) < float(row["lpips_vs_mask_high"])
    runs = {run["label"]: run for run in Page(to / "index.html").data["groups"][0]["runs"]}
    assert not runs["oracle 1 Fxxx"]["rival"] and not runs["random 1 Fxxx"]["rival"] and runs["none F-FF"]["rival"]
    looks = {(run["colour"], tuple(run["dash"])) for run in runs.values() if run["kind"] == "run"}
    assert len(looks) == 5  # teacache, masks, fewer steps, random masks, oracle


def test_samplings_are_ranked_and_fronted_apart(tmp_path):
    write_study(tmp_path / "out")
    write_study(tmp_path / "out", renoise="shared")
    found = of(tmp_path / "out")
    (group,) = found.groups
    assert [part.told for part in group.parts] == ["fresh", "shared"] and len(group.fronts) == 8
    assert [base["renoise"] for _, base in found.baselines_of(group)] == ["fresh", "shared"]
    assert len(found.paired(group)["lpips"]) == 2 * 7
    assert main([str(tmp_path / "out"), "--to", str(tmp_path / "r")]) == 0
    assert (tmp_path / "r" / "fresh-pareto.png").is_file() and (tmp_path / "r" / "shared-pareto.svg").is_file()


def test_the_doubt_about_a_timing_keeps_no_runs_apart(tmp_path, capsys):
    write_study(tmp_path / "out")
    doubt = {"timing_doubt": {"run": "DiT times of equal work differ 2.0x", "reference": None}}
    write_run(tmp_path / "out", "teacache", 0.9, "FxxF", 0.6, [0.1] * 4, protocol=doubt)
    assert len(of(tmp_path / "out").groups) == 1
    assert any("teacache 0.9 FxxF: DiT times of equal work differ 2.0x" in line for line in of(tmp_path / "out").told())


def confined(root, schedule, first, last, values, count=7):
    """A mask in some chunks: exact before them, then ``values`` chunk by chunk."""
    folder = write_run(
        root, "reuse", None, schedule, 0.9, [0.1 + first / 100] * 4, options={"chunks": [first, last]}, chunks=count
    )
    series = [0.0] * first + values[: count - first]

    def change(scores):
        for video in scores["per_video"]:
            video["per_chunk"] |= {"lpips": series, "psnr": [30 - v if v else None for v in series]}

    edit(folder, change)


def test_the_atlas_and_the_propagation_of_one_skip_are_drawn(tmp_path):
    root = tmp_path / "out"
    write_run(root, chunks=7)
    for schedule, value in (("FRFF", 0.01), ("FFFR", 0.2), ("FRRF", 0.05)):
        write_run(root, "reuse", None, schedule, 0.8, [value] * 4, chunks=7)
        for span in ((0, 0), (1, 3), (4, 6)):
            confined(root, schedule, *span, [0.3] * 7)
    for chunk in (1, 2, 6):
        confined(root, "FFFR", chunk, chunk, [0.2, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01])
    (group,) = of(root).groups
    grid = atlas_grid(group)
    assert grid.columns == ["all chunks", "first (0)", "early (1-3)", "late (4-6)"]
    assert grid.rows == ["FRFF", "FFFR", "FRRF"]
    assert grid.lpips[1] == pytest.approx([0.2, 0.1, 0.11, 0.14]) and not np.isnan(grid.psnr).any()
    lives = propagation_grid(group)
    assert lives.rows == ["step 1 of chunk 0"] + [f"step 3 of chunk {c}" for c in (0, 1, 2, 6)]
    assert lives.lpips[2].tolist() == [0, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01] and np.isnan(lives.psnr[2, 0])
    assert main([str(root), "--to", str(tmp_path / "r")]) == 0
    sizes = [p.stat().st_size for p in (tmp_path / "r").iterdir() if p.name.startswith(("atlas", "propagation"))]
    assert len(sizes) == 4 and max(sizes) < 150_000
    assert (tmp_path / "r" / "index.html").read_text().count("data:image/svg+xml;base64,") == 2
    assert sorted({group.name(run) for run in group.compared}) == ["reuse", "reuse in some chunks"]


def test_without_confined_masks_neither_is_drawn(tmp_path):
    write_study(tmp_path / "out")
    assert main([str(tmp_path / "out"), "--to", str(tmp_path / "r")]) == 0
    assert not list((tmp_path / "r").glob("atlas*")) and not list((tmp_path / "r").glob("propagation*"))


@pytest.mark.usefixtures("undrawn")
def test_markdown_holds_every_run_and_every_interval(tmp_path):
    write_study(tmp_path / "out")
    assert main([str(tmp_path / "out"), "--to", str(tmp_path / "r")]) == 0
    found = of(tmp_path / "out")
    text = (tmp_path / "r" / "table.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    labels = [row[0].removeprefix("| ") for row in rows]
    assert all(any(name.startswith(run["label"]) for name in labels) for run in found.runs)
    assert len({len(row) for row in rows}) <= 2  # runs and controls: no row lacks a cell
    (group,) = found.groups
    for one in found.controls(group):
        for estimates in one.found.values():
            low = estimates["lpips"].low
            assert low is None or f"[{low:+.4f}" in text


def test_lines_that_do_not_end_in_their_reference_are_not_compared(tmp_path):
    """Without store passes, computing everything is not what the reference with store passes is."""
    write_study(tmp_path / "out")
    for folder in (tmp_path / "out").iterdir():
        path = folder / "config.yaml"
        kept = yaml.safe_load(path.read_text())
        kept["sampler"] = (kept.get("sampler") or {}) | {"store": "reuse_last"}
        path.write_text(yaml.safe_dump(kept | {"reference": "clean"}))
    found = of(tmp_path / "out")
    (group,) = found.groups
    rows = found.controls(group)
    assert rows and not any(one.found for one in rows)
    assert {why for one in rows for why in one.why.values()} == {"another reference", "no such runs"}
    assert not any(ranking.at for _, ranking in found.ranks(group))
