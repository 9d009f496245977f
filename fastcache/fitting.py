"""From samples (x, y) to a fit that can be trusted, and what it is worth. numpy alone.

x is the distance between two steps' indicators, y the relative change of what would have been reused. A polynomial of
x must be non-decreasing and non-negative on the range of x, and explain y; else a lower degree is tried, then one
constant, or one rising line, for each step. That last form suits samplers that re-noise at each step: x is much the
same at all steps, or even falls while y rises, so that the step, not the distance, says what reuse costs.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fastcache.errors import UserError

DEGREES = (1, 2, 3, 4)
MIN_R2 = 0.5
"""A polynomial that explains less of y than this is not used."""
WORSE = 1.5
"""Nor is one whose error on unseen prompts is more than this many times that of the forms by step."""

Array = np.ndarray
Model = dict[str, Any]
"""coefficients (highest power first), domain [low, high] and steps: for some steps, {"step", "coefficients",
"domain"} each, in the place of the common polynomial."""


class Data:
    """Samples as columns: x, y, the step and the prompt each of them belongs to. Raises UserError on unusable ones."""

    def __init__(self, samples: Sequence[Mapping[str, Any]]):
        self.x, self.y = (np.array([sample[key] for sample in samples], dtype=np.float64) for key in ("x", "y"))
        self.step, self.prompt = (np.array([sample.get(key, 0) for sample in samples]) for key in ("step", "prompt"))
        if not len(self.x) or not (np.isfinite(self.x).all() and np.isfinite(self.y).all()):
            raise UserError(f"cannot fit {len(self.x)} samples: there are none, or some are not finite")

    def where(self, chosen: Array) -> "Data":
        part = object.__new__(Data)
        part.x, part.y, part.step, part.prompt = (v[chosen] for v in (self.x, self.y, self.step, self.prompt))
        return part


def polynomial(data: Data, degree: int) -> Model:
    """numpy.polyfit; the degree is lowered where there are too few different x for it."""
    used = min(degree, len(np.unique(data.x)) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.RankWarning)  # the gate and the error on unseen prompts tell more
        coefficients = np.polyfit(data.x, data.y, used)
    return {"coefficients": [float(c) for c in coefficients], "domain": _range(data.x), "steps": []}


def constants(data: Data) -> Model:
    """The mean y of each step."""
    return _lines(data, 0.0)


def lines(data: Data) -> Model:
    """A line for each step through its mean (x, y), of one slope >= 0 for all: what x says beyond the step."""
    dx, dy = (v - _step_means(data, v) for v in (data.x, data.y))
    spread = float((dx**2).sum())
    return _lines(data, max(float((dx * dy).sum()) / spread, 0.0) if spread > 0 else 0.0)


def predict(model: Model, x: Array, step: Array) -> Array:
    """y as a run will expect it: x held to the domain."""
    value = np.polyval(model["coefficients"], np.clip(x, *model["domain"]))
    for one in model["steps"]:
        here = step == one["step"]
        value[here] = np.polyval(one["coefficients"], np.clip(x[here], *one["domain"]))
    return value


def r2(model: Model, data: Data) -> float | None:
    """Share of the variance of y explained; None where y does not vary."""
    total = float(((data.y - data.y.mean()) ** 2).sum())
    left = float(((data.y - predict(model, data.x, data.step)) ** 2).sum())
    return 1 - left / total if total > 1e-18 * len(data.y) else None


def left_out(make: Callable[[Data], Model], data: Data) -> Array | None:
    """Root mean square error on each prompt of the model made from the others; None with fewer than two prompts."""
    errors = []
    for prompt in np.unique(data.prompt):
        rest, test = data.where(data.prompt != prompt), data.where(data.prompt == prompt)
        if not len(rest.x):
            return None
        errors.append(np.sqrt(((test.y - predict(make(rest), test.x, test.step)) ** 2).mean()))
    return np.array(errors)


def best_degree(data: Data) -> int:
    """By leave-one-prompt-out error: the lowest degree within one standard error of the best; 1 with one prompt."""
    errors = [left_out(lambda part, d=d: polynomial(part, d), data) for d in DEGREES]  # type: ignore[misc]
    if errors[0] is None:
        return DEGREES[0]
    means = [float(e.mean()) for e in errors if e is not None]
    best = errors[int(np.argmin(means))]
    assert best is not None
    limit = min(means) + float(best.std(ddof=1)) / len(best) ** 0.5
    return next(degree for degree, mean in zip(DEGREES, means, strict=True) if mean <= limit)


def choose(data: Data, degree: int | None, gate: bool = True) -> tuple[Model, list[str]]:
    """The model to use, and what the gate did, a sentence each: nothing where the asked degree is good, or gate=False.

    ``degree`` None: by cross-validation.
    """
    asked = best_degree(data) if degree is None else degree
    if not gate:
        return polynomial(data, asked), []
    said: list[str] = []
    steps, kind, error = _by_step(data)
    for lower in range(asked, min(asked, 1) - 1, -1):
        model = polynomial(data, lower)
        used = len(model["coefficients"]) - 1
        if used < lower and lower > 1:
            continue  # too few different x; the same polynomial comes again
        reason = fault(model, r2(model, data)) or _worse(lambda part, d=used: polynomial(part, d), data, error)  # type: ignore[misc]
        if reason is None:
            return model, [*said, f"degree {used} instead"] if said else []
        said.append(f"degree {used} {reason}")
    return steps, [*said, f"{kind} instead"]


def fault(model: Model, quality: float | None) -> str | None:
    """Why a polynomial must not be used, or None."""
    values = np.polyval(model["coefficients"], np.linspace(model["domain"][0], model["domain"][1], 513))
    slack = 1e-9 * float(np.abs(values).max())
    if float(values.min()) < -slack:
        return "is negative in part of its range"
    if (np.diff(values) < -slack).any():
        return "falls in part of its range"
    if quality is not None and quality < MIN_R2:
        return f"explains too little (R2 {quality:.2f}, below {MIN_R2:g})"
    return None


def rank_correlation(x: Array, y: Array) -> float | None:
    """Spearman's; None where one of them does not vary."""
    a, b = _ranks(x), _ranks(y)
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else None


def _by_step(data: Data) -> tuple[Model, str, float | None]:
    """Model, name and error on unseen prompts: lines where they foretell those better than constants do, by more than a
    standard error, and are nowhere negative."""
    sloped, flat = left_out(lines, data), left_out(constants, data)
    if sloped is not None and flat is not None:
        gain, model = flat - sloped, lines(data)
        clear = float(gain.mean()) > float(gain.std(ddof=1)) / len(gain) ** 0.5
        if clear and all(np.polyval(one["coefficients"], one["domain"]).min() >= 0 for one in model["steps"]):
            return model, "a rising line for each step", float(sloped.mean())
    return constants(data), "a constant for each step", None if flat is None else float(flat.mean())


def _worse(make: Callable[[Data], Model], data: Data, error: float | None) -> str | None:
    found = left_out(make, data)
    if found is None or error is None or found.mean() <= WORSE * error + 1e-9:
        return None
    return f"is off by {found.mean():.2g} on prompts it has not seen, a value for each step by {error:.2g}"


def _lines(data: Data, slope: float) -> Model:
    steps = []
    for step in np.unique(data.step):
        here = data.where(data.step == step)
        through = float(here.y.mean() - slope * here.x.mean())
        coefficients = [slope, through] if slope else [through]
        steps.append({"step": int(step), "coefficients": coefficients, "domain": _range(here.x)})
    return {"coefficients": [float(data.y.mean())], "domain": _range(data.x), "steps": steps}


def _step_means(data: Data, values: Array) -> Array:
    means = np.empty_like(values)
    for step in np.unique(data.step):
        means[data.step == step] = values[data.step == step].mean()
    return means


def _range(x: Array) -> list[float]:
    return [float(x.min()), float(x.max())]


def _ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]
