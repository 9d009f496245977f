"""TaylorSeer: what a forecast is worth at each order, the interval's pattern, and what it keeps."""

import itertools

import pytest
import torch
import toy

from fastcache.errors import UserError
from fastcache.methods.taylorseer import TaylorSeer
from fastcache.step import Step


class Path:
    """A runner whose features follow a polynomial in time; replay adds them up."""

    def __init__(self, coefficients, t):
        self.coefficients, self.t = coefficients, t

    def record(self):
        value = torch.full((1, 2, 2), float(sum(c * self.t**i for i, c in enumerate(self.coefficients))))
        features = {"main.0.ffn": value, "vace.0.ffn": -value}
        return self.replay(features), features

    def full(self):
        return self.record()[0]

    def replay(self, features):
        return features["main.0.ffn"] - features["vace.0.ffn"]


def forecast(method, coefficients, computed, t, sigma=float):
    """The forecast at step ``t`` after the steps ``computed`` ran in full."""
    method.begin_video()
    method.begin_chunk(0)
    for step_idx in [*computed, t]:
        run = Path(coefficients, step_idx if method.time == "index" else sigma(step_idx))
        x = torch.zeros(1, 2, 2)
        result = method.step(Step(x, x, toy.GRID, 0, step_idx, step_idx != t, sigma(step_idx)), run)
    assert result.fraction == 0.0
    return float(result.x[0, 0, 0]) / 2


GAPS = [[0, 1, 2], [0, 1, 3], [0, 2, 3, 4], [0, 1, 4, 6]]


@pytest.mark.parametrize("scope", ["module", "stack"])
@pytest.mark.parametrize("time", ["index", "sigma"])
@pytest.mark.parametrize("computed", GAPS, ids=str)
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_newton_is_exact_for_polynomials_of_its_order(order, computed, time, scope):
    degree = min(order, len(computed) - 1)
    coefficients = [0.7, -1.1, 0.6, 0.2][: degree + 1]
    method = TaylorSeer(interval=99, max_order=order, predictor="newton", time=time, scope=scope)
    t = computed[-1] + 2

    def sigma(i):
        return 1 / (1 + 0.3 * i)

    place = t if time == "index" else sigma(t)
    truth = sum(c * place**i for i, c in enumerate(coefficients))
    assert forecast(method, coefficients, computed, t, sigma) == pytest.approx(truth, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("computed", GAPS, ids=str)
def test_taylor_is_exact_for_lines(computed):
    for order in (1, 2, 3):
        t = computed[-1] + 1
        assert forecast(TaylorSeer(interval=99, max_order=order), [0.5, 2.0], computed, t) == pytest.approx(0.5 + 2 * t)


@pytest.mark.parametrize(("computed", "t", "value"), [([0, 1, 2], 3, 8.0), ([0, 1, 3], 4, 13.75)])
def test_taylor_applies_its_second_order_the_way_the_original_does(computed, t, value):
    """Backward differences as derivatives: on t^2 not the truth (9 and 16), and not the first order's value either."""
    assert forecast(TaylorSeer(interval=99, max_order=2), [0, 0, 1], computed, t) == pytest.approx(value)
    assert forecast(TaylorSeer(interval=99, max_order=1), [0, 0, 1], computed, t) != pytest.approx(value)


def test_order_0_copies_module_outputs_through_the_gates_of_the_step():
    kept = {}

    def on_step(step, run, result):
        if result.fraction == 1.0:
            kept["features"] = run.record()[1]
        else:
            assert torch.equal(result.x, run.replay(kept["features"]))
            kept["forecast"] = True

    toy.rollout(TaylorSeer(interval=4, max_order=0), toy.Fxxx, on_step=on_step)
    assert kept["forecast"]


def pattern(interval, chunks=8):
    method = TaylorSeer(interval=interval)
    intervals = []
    method.begin_video()
    for chunk_idx in range(chunks):
        method.begin_chunk(chunk_idx)
        intervals.append(method.chunk_interval)
    return intervals


def test_a_fractional_interval_alternates_from_the_second_turn_on():
    assert pattern(1) == [1] * 8
    assert pattern(3) == [3] * 8
    assert pattern(1.5) == [2, 1] * 4
    assert pattern(1.25) == [1, 1, 2, 1] * 2
    assert pattern(2.5) == [3, 2] * 4


def oracle_fractions(forced, interval):
    rows = []
    for gap in pattern(interval, 3):
        row, since = [], 0
        for must in forced:
            since = 0 if must or since + 1 >= gap else since + 1
            row.append(0.0 if since else 1.0)
        rows.append(row)
    return rows


@pytest.mark.parametrize("forced", [toy.FxxF, toy.FFxx, toy.Fxxx], ids=["FxxF", "FFxx", "Fxxx"])
@pytest.mark.parametrize("interval", [1, 1.5, 2, 3, 4])
def test_steps_computed(interval, forced):
    _, fractions = toy.rollout(TaylorSeer(interval=interval), forced)
    assert fractions == oracle_fractions(forced, interval)


def test_memory_of_the_scopes():
    tensor = toy.GRID.tokens * toy.WIDTH * 4
    for order, scope in itertools.product((0, 1, 2), ("module", "stack")):
        method = TaylorSeer(interval=1, max_order=order, scope=scope)
        toy.rollout(method, toy.FFFF)
        features = 6 if scope == "module" else 1  # two blocks of three modules
        assert method.memory_bytes() == features * (order + 1) * tensor
        assert method.memory_bytes() == method.estimate_bytes(toy.GRID.tokens * toy.WIDTH, 2, 4)


def test_half_precision_features_keep_float32_differences():
    method = TaylorSeer(interval=99, max_order=1)
    a, b = torch.tensor([[[1.0]]]).bfloat16(), torch.tensor([[[1.0078125]]]).bfloat16()
    method.times, method.differences = [0.0], {"k": [a]}
    method.times.insert(0, 3.0)
    rungs = method._ladder("k", b)
    assert rungs[0].dtype == torch.bfloat16 and rungs[1].dtype == torch.float32
    assert float(rungs[1]) == pytest.approx(0.0078125 / 3, rel=1e-6)


def test_features_that_are_not_finite_are_never_forecast(monkeypatch):
    healthy = toy.ToyRunner.record

    def broken(self):
        out, features = healthy(self)
        if len(self.model.calls) == 1:
            features["main.1.ffn"] = features["main.1.ffn"] * float("inf")
        return out, features

    monkeypatch.setattr(toy.ToyRunner, "record", broken)
    method = TaylorSeer(interval=4)
    with pytest.warns(RuntimeWarning, match="not finite"):
        latents, fractions = toy.rollout(method, toy.Fxxx)
    assert fractions[0] == [1.0, 1.0, 0.0, 0.0]
    assert fractions[1] == [1.0, 0.0, 0.0, 0.0]
    assert method.nonfinite_events == 1
    assert latents.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 0.5},
        {"interval": "often"},
        {"max_order": 4},
        {"max_order": -1},
        {"max_order": 1.0},
        {"max_order": True},
        {"predictor": "spline"},
        {"time": "snr"},
        {"scope": "block"},
    ],
    ids=str,
)
def test_bad_options_are_user_errors(options):
    with pytest.raises(UserError, match=next(iter(options))):
        TaylorSeer(**options)
