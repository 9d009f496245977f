"""The calibration probe: computes every step in full and records what reuse would have cost."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fastcache.methods.base import INDICATORS, CacheMethod, choice, read_indicator, rel_l1
from fastcache.step import Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class Probe(CacheMethod):
    """For each two consecutive steps of a chunk, ``samples`` gets x, the relative L1 distance of the indicators, and y,
    that of the residuals: y is the error of the very tensor that a skipping method would have reused. With them go
    chunk, step and sigma (those of the later step). A new video starts a new list."""

    name: ClassVar[str] = "calibrate"
    indicators: ClassVar[tuple[str, ...]] = INDICATORS

    indicator: str = "modulated_input"

    def check(self) -> None:
        choice(self, "indicator", self.indicators)

    def begin_video(self) -> None:
        super().begin_video()
        self.samples: list[dict[str, float | int]] = []

    def begin_chunk(self, chunk_idx: int) -> None:
        super().begin_chunk(chunk_idx)
        self.reference: Tensor | None = None

    def step(self, step: Step, run: Runner) -> StepResult:
        current = read_indicator(self.indicator, step, run)
        former, reference = self.residual, self.reference
        result = self.full(step, run)
        self.note(None)
        self.reference = current
        if former is None or reference is None or self.residual is None:
            return result
        x, y = rel_l1(current, reference), rel_l1(self.residual, former)
        if math.isfinite(x) and math.isfinite(y):
            place = {"chunk": step.chunk_idx, "step": step.step_idx, "sigma": step.sigma}
            self.samples.append({"x": x, "y": y, **place})
        else:
            self.nonfinite("the distance between indicators")
        return result
