"""Intervals, ranks and the noise floor of the report, against what is known beforehand."""

import numpy as np
import pytest
from report_runs import PROMPTS, signature, write_run, write_study

from fastcache.report.groups import front
from fastcache.report.load import load
from fastcache.report.stats import estimates
from fastcache.report.study import Study


def of(*roots, baseline=None):
    return Study(list(roots), load(roots), baseline)


def test_intervals_cover_the_true_mean_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    found = estimates([rng.normal(1.0, 0.5, 40) for _ in range(300)])
    covered = np.mean([e.low <= 1.0 <= e.high for e in found])
    assert 0.9 < covered < 0.98 and all(e.n == 40 for e in found)


def test_rows_of_different_lengths_keep_their_places_and_two_prompts_have_no_interval():
    found = estimates([np.ones(2), np.arange(5.0), np.zeros(2)])
    assert [e.mean for e in found] == [1, 2, 0] and [e.n for e in found] == [2, 5, 2]
    assert found[0].low is None and found[1].low < 2 < found[1].high and not found[0].clear


def test_differences_are_paired_by_prompt(tmp_path):
    """Prompts differ far more than the methods do: only pairs show the difference."""
    hard = [0.1, 0.5, 0.9, 0.3]
    write_run(tmp_path, "reuse", None, "FxxF", 0.6, hard)
    write_run(
        tmp_path, "teacache", 0.3, "FxxF", 0.6, [v - d for v, d in zip(hard, (0.010, 0.011, 0.012, 0.009), strict=True)]
    )
    study = of(tmp_path)
    (estimate,) = study.paired(study.groups[0])["lpips"].values()
    assert estimate.mean == pytest.approx(-0.0105) and estimate.high < -0.008 and estimate.clear


def test_ranks_interpolate_between_runs_and_never_extrapolate(tmp_path):
    write_study(tmp_path, spread=0)
    study = of(tmp_path)
    ranking = study.ranks(study.groups[0])[0][1]
    at = {fraction: {r.line: r for r in rows} for fraction, rows in ranking.at.items()}
    assert ranking.metric == "lpips"
    assert at[0.75]["motioncache"].value.mean == pytest.approx((0.01 + 0.02) / 2)
    assert at[0.7]["reuse"].value.mean == pytest.approx((0.02 + 0.06) / 2)
    assert at[0.9]["reuse"].value.mean == pytest.approx(0.01)  # halfway to computing everything
    assert at[0.6]["motioncache"].rank == 1 and at[0.6]["reuse"].behind.mean == pytest.approx(0.01)
    assert min(at) == 0.6  # the masks alone go further


def test_the_front_leaves_out_what_another_beats_and_takes_exact_videos_for_best(tmp_path):
    write_run(tmp_path, "teacache", 0.1, "FxxF", 0.9, None)
    for dial, forward, value in ((0.2, 0.8, 0.1), (0.3, 0.8, 0.2), (0.4, 0.7, 0.1), (0.5, 0.6, 0.3)):
        write_run(tmp_path, "teacache", dial, "FxxF", forward, [value] * 4)
    (group,) = of(tmp_path).groups
    assert [r["dial"] for r in front(group.compared, "forward_fraction", "psnr")] == [0.1, 0.4, 0.5]


def test_the_noise_floor_has_another_seed_and_the_same_run_twice(tmp_path):
    frames = np.random.default_rng(0).integers(0, 200, (12, 8, 8, 3), dtype=np.uint8)
    for name, change in (("a", 0), ("b", 0), ("c", 1)):
        folder = write_run(tmp_path / name)
        for idx in range(4):
            np.savez(folder / "videos" / f"{idx}.npz", frames=frames + np.uint8(change))
    base = signature("none", None, "FFFF", 0, "toy", "fresh", PROMPTS, 12, [])
    write_run(tmp_path / "a", seed=1, lpips=[0.3] * 4, reference=base)
    study = of(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    seed, same, other = study.noise(study.groups[0])
    assert seed.what == "FFFF seed 1 against seed 0" and seed.lpips == pytest.approx(0.3)
    assert same.identical and same.psnr is None and same.lpips == 0
    assert not other.identical and other.psnr == pytest.approx(20 * np.log10(255)) and other.lpips is None


def test_options_tell_lines_apart_and_seeds_of_the_noise_floor_do_not(tmp_path):
    write_run(tmp_path)
    write_run(tmp_path, seed=1, lpips=[0.3] * 4, reference="12345678")
    for norm in ("mean", "max"):
        write_run(tmp_path, "motioncache", 0.3, "FxxF", 0.7, [0.1] * 4, options={"weight_norm": norm, "floor": 0.3})
    (group,) = of(tmp_path).groups
    assert sorted(group.lines) == ["motioncache weight_norm=max", "motioncache weight_norm=mean"]
