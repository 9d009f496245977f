"""TeaCache (arXiv:2411.19108): one decision for the whole step, from the change of the timestep-modulated input."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fastcache.methods.base import AdaptiveMethod, choice, read_indicator, rel_l1
from fastcache.step import Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class TeaCache(AdaptiveMethod):
    """Adds up the rescaled distance of the indicator; below ``thresh`` the residual of the last full step is reused.

    ``compare_with``: ``previous`` measures from the step before, so the score is the length of a path; ``cached``
    measures from the step whose residual would be reused.
    """

    name: ClassVar[str] = "teacache"

    compare_with: str = "previous"

    def check(self) -> None:
        super().check()
        choice(self, "compare_with", ("previous", "cached"))

    def begin_chunk(self, chunk_idx: int) -> None:
        super().begin_chunk(chunk_idx)
        self.score = 0.0

    def step(self, step: Step, run: Runner) -> StepResult:
        current = read_indicator(self.indicator, step, run)
        score = self._score(step, current)
        self.note(score)
        reuse = score < self.thresh
        if not reuse or self.compare_with == "previous":
            self.reference = current
        self.score = score if reuse else 0.0
        return self.reuse(step) if reuse else self.full(step, run)

    def _score(self, step: Step, current: Tensor) -> float:
        """The running score with this step's distance; infinite where the step must be computed."""
        if step.forced_full or self.residual is None or self.reference is None:
            return math.inf
        score = self.score + self.expected(rel_l1(current, self.reference), step)
        if math.isfinite(score):
            return score
        self.nonfinite("the distance between indicators")
        return math.inf
