"""What the gate lets pass, what it puts in the place of the rest, and that it says so."""

import numpy as np
import pytest

from fastcache import fits, fitting
from fastcache.rescale import Rescale


def samples(by_step, prompts=6, noise=0.01, slope=0.0, spread=0.02):
    """Three transitions in clouds of (x, y), as a four-step sampler gives; within a cloud y rises with x by slope."""
    rows, rng = [], np.random.default_rng(0)
    for prompt in range(prompts):
        for step, (x, y) in enumerate(by_step, start=1):
            for dx in rng.normal(0, spread, 5):
                rows.append({"x": x + dx, "y": y + slope * dx + rng.normal(0, noise), "step": step, "prompt": prompt})
    return rows


RISING = [(0.1, 0.1), (0.25, 0.25), (0.5, 0.5)]
FALLING = [(1.37, 0.2), (1.34, 0.3), (1.25, 0.5)]


def gated(rows, degree=None):
    return fitting.choose(fitting.Data(rows), degree)


def test_a_rising_line_passes_as_it_is_and_one_degree_is_enough():
    model, said = gated(samples(RISING, slope=1.0))
    assert said == []
    assert model["coefficients"] == pytest.approx([1.0, 0.0], abs=0.05)
    assert model["steps"] == []


def test_curvature_is_worth_a_degree():
    rows = [row | {"y": row["x"] ** 2} for row in samples([(x, 0) for x in (0.1, 0.3, 0.5, 0.7, 0.9)])]
    assert fitting.best_degree(fitting.Data(rows)) == 2
    assert len(gated(rows)[0]["coefficients"]) == 3


def test_one_prompt_has_nothing_to_validate_on():
    data = fitting.Data(samples(RISING, prompts=1))
    assert fitting.best_degree(data) == 1
    assert fitting.left_out(fitting.constants, data) is None


def test_a_degree_that_bends_down_falls_to_one_that_does_not():
    rows = samples(RISING)
    x = np.array([row["x"] for row in rows])
    wild = [row | {"y": row["y"] + 0.15 * float(np.sin(25 * row["x"]))} for row in rows]
    model, said = gated(wild, degree=4)
    assert said[0].startswith("degree 4 ") and said[-1].endswith(" instead")
    curve = np.polyval(model["coefficients"], np.linspace(x.min(), x.max(), 999))
    assert model["steps"] or (curve.min() >= 0 and (np.diff(curve) >= -1e-9).all())


@pytest.mark.parametrize("degree", [None, 1, 2, 3, 4])
def test_distances_that_fall_while_errors_rise_give_a_value_for_each_step(degree):
    model, said = gated(samples(FALLING), degree)
    assert said[-1] == "a constant for each step instead"
    assert any("falls" in sentence for sentence in said)
    assert [one["step"] for one in model["steps"]] == [1, 2, 3]
    values = [one["coefficients"] for one in model["steps"]]
    assert np.ravel(values) == pytest.approx([0.2, 0.3, 0.5], abs=0.01)
    rows = samples(FALLING)
    rescale = Rescale(model["coefficients"], model["domain"], steps=model["steps"])
    assert [rescale(1.3, step) for step in (1, 2, 3)] == pytest.approx(np.ravel(values))
    assert rescale(1.3) == pytest.approx(np.mean([row["y"] for row in rows]), abs=0.01)


def test_what_the_distance_says_within_a_step_is_kept():
    model, said = gated(samples(FALLING, slope=2.0))
    assert said[-1] == "a rising line for each step instead"
    for one in model["steps"]:
        assert one["coefficients"][0] == pytest.approx(2.0, abs=0.2)
        low, high = np.polyval(one["coefficients"], one["domain"])
        assert 0 <= low < high


def test_within_a_step_nothing_falls():
    assert gated(samples(FALLING, slope=-2.0))[1][-1] == "a constant for each step instead"
    assert fitting.lines(fitting.Data(samples(FALLING, slope=-2.0)))["steps"][0]["coefficients"] == pytest.approx(
        fitting.constants(fitting.Data(samples(FALLING, slope=-2.0)))["steps"][0]["coefficients"], abs=0.02
    )


def test_a_narrow_range_that_rises_by_chance_is_no_reason_to_believe_a_steep_line():
    rows = samples([(0.55, 0.23), (0.57, 0.34), (0.59, 0.52)], noise=0.005, spread=0.003)
    model, said = gated(rows)
    assert model["steps"] and "prompts it has not seen" in said[0]


def test_a_cloud_without_any_relation_explains_too_little():
    rng = np.random.default_rng(0)
    rows = [{"x": x, "y": y, "step": s, "prompt": p} for p in range(4) for s in (1, 2, 3)
            for x, y in zip(rng.uniform(0.5, 1, 9), rng.uniform(0.5, 1, 9), strict=True)]  # fmt: skip
    model, said = gated(rows, degree=1)
    assert model["steps"]
    assert "explains too little" in said[0] or "falls" in said[0]
    assert fitting.r2(model, fitting.Data(rows)) < 0.5


def test_without_the_gate_it_is_polyfit_whatever_it_looks_like():
    rows = samples(FALLING)
    data = fitting.Data(rows)
    model, said = fitting.choose(data, 3, gate=False)
    assert said == [] and model["steps"] == []
    assert model["coefficients"] == pytest.approx(list(np.polyfit(data.x, data.y, 3)))


def test_a_negative_stretch_is_refused():
    model = {"coefficients": [1.0, -0.3], "domain": [0.1, 0.9], "steps": []}
    assert "negative" in fitting.fault(model, 0.99)
    assert fitting.fault(model | {"domain": [0.3, 0.9]}, 0.99) is None
    assert "falls" in fitting.fault({"coefficients": [-1.0, 2.0], "domain": [0.0, 1.0], "steps": []}, 0.99)
    assert "0.49" in fitting.fault({"coefficients": [1.0, 0.0], "domain": [0.0, 1.0], "steps": []}, 0.49)


def test_the_error_on_prompts_left_out_is_what_it_says():
    points = ((0, 0.2, 0), (1, 0.2, 0), (0, 0.5, 1), (1, 0.5, 1))
    rows = [{"x": x, "y": y, "step": 1, "prompt": p} for x, y, p in points]
    assert fitting.left_out(fitting.constants, fitting.Data(rows)) == pytest.approx([0.3, 0.3])


def test_rank_correlation_counts_order_alone_and_shares_ties():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert fitting.rank_correlation(x, np.exp(x)) == pytest.approx(1.0)
    assert fitting.rank_correlation(x, -(x**3)) == pytest.approx(-1.0)
    assert fitting.rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(0.8660254)
    assert fitting.rank_correlation(x, np.ones(4)) is None


def test_a_fit_holds_what_it_is_worth_and_what_the_gate_did():
    on = fits.fitted_on("tiny", "ab", {"name": "few_step"}, "modulated_input", 6, 3, ["a", "b"])
    fit = fits.make_fit(samples(FALLING), None, on)
    assert fit["r2"] > 0.95
    assert 0 < fit["loo"] < 0.02
    assert -1 <= fit["rank"] < 0
    assert [row["degree"] for row in fit["degrees"]] == [1, 2, 3, 4]
    assert all(row["loo"] > 0 and row["r2"] <= 1 for row in fit["degrees"])
    said = fits.describe(fit)
    for words in ("by step", "step 3 0.49", "constant for each step instead", "R2 0.9"):
        assert words in said
    fits.check_form(fit, "it")
