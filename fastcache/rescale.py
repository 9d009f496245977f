"""The fit that turns an indicator distance into the expected relative error of reuse."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastcache.errors import UserError


class Rescale:
    """Polynomial, coefficients highest power first, evaluated in float64 for numbers and tokens alike.

    ``steps`` gives some steps a polynomial of their own, as {"step", "coefficients", "domain"} each; the other steps
    take the common one. With ``clamp`` (default) the distance is first held to ``domain`` (lo, hi), the range of
    distances it was fitted on, and a negative result becomes 0; both are counted in ``clamps``. A non-finite distance
    gives NaN, never a clamped value, so that a method can tell. Raises UserError on empty or non-finite coefficients
    and on a bad domain.
    """

    def __init__(
        self,
        coefficients: Sequence[float],
        domain: Sequence[float] | None = None,
        clamp: bool = True,
        steps: Sequence[Mapping[str, Any]] | None = None,
    ):
        self.coefficients, self.domain = _polynomial(coefficients, domain)
        self.clamp = bool(clamp)
        self.steps = {int(one["step"]): _polynomial(one["coefficients"], one["domain"]) for one in steps or ()}
        self._clamped: Tensor | int = 0

    def __repr__(self) -> str:
        return f"Rescale({list(self.coefficients)}, domain={self.domain}, steps={sorted(self.steps)})"

    def __call__(self, distance: float, step_idx: int | None = None) -> float:
        """Expected relative error of reuse for one distance at a step; NaN for a non-finite one."""
        return float(self._evaluate(torch.tensor(distance, dtype=torch.float64), step_idx).item())

    def per_token(self, distance: Tensor, step_idx: int | None = None) -> Tensor:
        """The same for a tensor of distances, any shape -> float32; NaN where the distance is not finite."""
        return self._evaluate(distance.double(), step_idx).float()

    @property
    def clamps(self) -> int:
        """How many distances (tokens, for per_token) were outside the domain or came out negative."""
        return int(self._clamped)

    def config(self) -> dict[str, object]:
        """Everything that decides the result, as plain numbers."""
        steps = [{"step": step, **_plain(*one)} for step, one in self.steps.items()]
        return {**_plain(self.coefficients, self.domain), "clamp": self.clamp, "steps": steps}

    def _evaluate(self, distance: Tensor, step_idx: int | None) -> Tensor:
        coefficients, domain = self.coefficients, self.domain
        if step_idx in self.steps:
            coefficients, domain = self.steps[step_idx]
        finite = distance.isfinite()
        inside = distance if domain is None or not self.clamp else distance.clamp(*domain)
        value = torch.zeros_like(inside)
        for coefficient in coefficients:
            value = value * inside + coefficient
        if self.clamp:
            # Kept on the device until somebody asks: counting must not add a host sync to every step.
            self._clamped = self._clamped + (finite & ((inside != distance) | (value < 0))).sum()
            value = value.clamp(min=0)
        return torch.where(finite, value, math.nan)


Polynomial = tuple[tuple[float, ...], tuple[float, ...] | None]


def _polynomial(coefficients: Sequence[float], domain: Sequence[float] | None) -> Polynomial:
    checked = _numbers(coefficients, "coefficients")
    if not checked:
        raise UserError("rescale: no coefficients; give them highest power first, e.g. [1.0, 0.0] for y = x")
    if domain is None:
        return checked, None
    bounds = _numbers(domain, "domain")
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise UserError(f"rescale: domain {list(bounds)} is not a pair [low, high] with low <= high")
    return checked, bounds


def _plain(coefficients: tuple[float, ...], domain: tuple[float, ...] | None) -> dict[str, object]:
    return {"coefficients": list(coefficients), "domain": None if domain is None else list(domain)}


def _numbers(values: Sequence[float], what: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(v) for v in values)
    except (TypeError, ValueError):
        raise UserError(f"rescale: {what} must be a list of numbers, got {values!r}") from None
    if not all(math.isfinite(v) for v in numbers):
        raise UserError(f"rescale: {what} {list(numbers)} hold a value that is not finite")
    return numbers
