"""TaylorSeer (ICCV 2025): skipped features are forecast from computed ones instead of copied."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fastcache.errors import UserError
from fastcache.methods.base import CacheMethod, choice, number
from fastcache.step import Features, Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class TaylorSeer(CacheMethod):
    """Computes when ``interval`` steps have passed since the last computed one and forecasts between.

    A fractional interval takes the whole ones around it in turn, one a chunk. Forecasts extrapolate the outputs of
    each attention and FFN, which then pass through this step's gates (``scope=module``), or the residual of the whole
    stack (``scope=stack``, a fraction of the memory). Up to ``max_order`` differences are kept: ``predictor=taylor``
    takes them as derivatives, each over the last gap (exact up to order 1), ``newton`` as divided differences, exact
    for polynomials of degree ``max_order`` whatever the gaps. ``time`` is the step's index or its sigma.
    """

    name: ClassVar[str] = "taylorseer"
    dial: ClassVar[str | None] = "interval"
    off: ClassVar[float | None] = 1.0
    most: ClassVar[float | None] = 4.0

    interval: float = 1.0
    max_order: int = 1
    predictor: str = "taylor"
    time: str = "index"
    scope: str = "module"

    def check(self) -> None:
        self.interval = number(self, "interval", low=1.0)
        if not isinstance(self.max_order, int) or isinstance(self.max_order, bool) or not 0 <= self.max_order <= 3:
            raise UserError(f"taylorseer: max_order={self.max_order} must be 0, 1, 2 or 3")
        choice(self, "predictor", ("taylor", "newton"))
        choice(self, "time", ("index", "sigma"))
        choice(self, "scope", ("module", "stack"))

    def estimate_bytes(self, numbers: int, blocks: int, item: int) -> int:
        features = 3 * blocks if self.scope == "module" else 1
        return features * numbers * (item + 4 * self.max_order)

    def begin_video(self) -> None:
        self.phase = 0.0
        super().begin_video()  # takes one turn of the interval's pattern, as the original does

    def begin_chunk(self, chunk_idx: int) -> None:
        super().begin_chunk(chunk_idx)
        self.times: list[float] = []  # of the computed steps, latest first
        self.differences: dict[str, list[Tensor]] = {}  # of each feature, by order
        self.since = 0
        whole = math.floor(self.interval)
        self.phase += self.interval - whole
        longer = self.phase >= 1 - 1e-9
        self.phase -= longer
        self.chunk_interval = whole + longer

    def step(self, step: Step, run: Runner) -> StepResult:
        now = float(step.step_idx) if self.time == "index" else step.sigma
        if step.forced_full or not self.times:
            self.note(None)
            return self._compute(step, run, now)
        self.since += 1
        self.note(self.since)
        if self.since >= self.chunk_interval:
            return self._compute(step, run, now)
        out = self._forecast(step, run, now)
        if bool(out.isfinite().all()):
            return StepResult(out, 0.0)
        self.nonfinite("a forecast")
        return self._compute(step, run, now)

    def _compute(self, step: Step, run: Runner, now: float) -> StepResult:
        self.since = 0
        if self.scope == "stack":
            out = run.full()
            features: Features = {"stack": out - step.x}
        else:
            out, features = run.record()
        if not bool(torch.stack([f.isfinite().all() for f in features.values()]).all()):
            self.nonfinite("a computed feature")
            self.times, self.differences = [], {}
            return StepResult(out, 1.0)
        self.times = [now, *self.times[: self.max_order]]
        self.differences = {key: self._ladder(key, feature) for key, feature in features.items()}
        return StepResult(out, 1.0)

    def _ladder(self, key: str, feature: Tensor) -> list[Tensor]:
        """The feature and its differences up to max_order, as far as there are computed steps; orders >= 1 in fp32."""
        rungs = [feature]
        for order, former in enumerate(self.differences.get(key, [])[: self.max_order]):
            gap = self.times[0] - self.times[1 if self.predictor == "taylor" else order + 1]
            rungs.append((rungs[order].float() - former.float()) / gap)
        return rungs

    def _forecast(self, step: Step, run: Runner, now: float) -> Tensor:
        """The tokens after the blocks [B, L, C] at time ``now``."""
        weights = [1.0]
        for order in range(self.max_order):
            ahead = (now - self.times[0]) / (order + 1) if self.predictor == "taylor" else 0.0
            if self.predictor == "newton" and order < len(self.times):
                ahead = now - self.times[order]
            weights.append(weights[-1] * ahead)
        features = {key: _weighted(rungs, weights) for key, rungs in self.differences.items()}
        return step.x + features["stack"] if self.scope == "stack" else run.replay(features)


def _weighted(rungs: list[Tensor], weights: list[float]) -> Tensor:
    total = rungs[0]
    for rung, weight in zip(rungs[1:], weights[1:], strict=False):
        total = total + weight * rung
    return total.to(rungs[0].dtype)
