"""The fitted polynomial that turns an indicator distance into the expected relative error of reuse."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fastcache.errors import UserError


class Rescale:
    """Polynomial, coefficients highest power first, evaluated in float64 for numbers and tokens alike.

    With ``clamp`` (default) the distance is first held to ``domain`` (lo, hi), the range of distances it was fitted on,
    and a negative result becomes 0; both are counted in ``clamps``. A non-finite distance gives NaN, never a clamped
    value, so that a method can tell. Raises UserError on empty or non-finite coefficients and on a bad domain.
    """

    def __init__(self, coefficients: Sequence[float], domain: Sequence[float] | None = None, clamp: bool = True):
        self.coefficients = _numbers(coefficients, "coefficients")
        if not self.coefficients:
            raise UserError("rescale: no coefficients; give them highest power first, e.g. [1.0, 0.0] for y = x")
        self.domain = None if domain is None else _numbers(domain, "domain")
        if self.domain is not None and (len(self.domain) != 2 or self.domain[0] > self.domain[1]):
            raise UserError(f"rescale: domain {list(self.domain)} is not a pair [low, high] with low <= high")
        self.clamp = bool(clamp)
        self._clamped: Tensor | int = 0

    def __call__(self, distance: float) -> float:
        """Expected relative error of reuse for one distance; NaN for a non-finite one."""
        return float(self._evaluate(torch.tensor(distance, dtype=torch.float64)).item())

    def per_token(self, distance: Tensor) -> Tensor:
        """The same for a tensor of distances, any shape -> float32; NaN where the distance is not finite."""
        return self._evaluate(distance.double()).float()

    @property
    def clamps(self) -> int:
        """How many distances (tokens, for per_token) were outside the domain or came out negative."""
        return int(self._clamped)

    def config(self) -> dict[str, object]:
        """Everything that decides the result, as plain numbers."""
        domain = None if self.domain is None else list(self.domain)
        return {"coefficients": list(self.coefficients), "domain": domain, "clamp": self.clamp}

    def _evaluate(self, distance: Tensor) -> Tensor:
        finite = distance.isfinite()
        inside = distance if self.domain is None or not self.clamp else distance.clamp(*self.domain)
        value = torch.zeros_like(inside)
        for coefficient in self.coefficients:
            value = value * inside + coefficient
        if self.clamp:
            # Kept on the device until somebody asks: counting must not add a host sync to every step.
            self._clamped = self._clamped + (finite & ((inside != distance) | (value < 0))).sum()
            value = value.clamp(min=0)
        return torch.where(finite, value, math.nan)


def _numbers(values: Sequence[float], what: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(v) for v in values)
    except (TypeError, ValueError):
        raise UserError(f"rescale: {what} must be a list of numbers, got {values!r}") from None
    if not all(math.isfinite(v) for v in numbers):
        raise UserError(f"rescale: {what} {list(numbers)} hold a value that is not finite")
    return numbers
