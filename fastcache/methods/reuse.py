"""Naive reuse: every cacheable step adds the residual of the last computed one."""

from dataclasses import dataclass
from typing import ClassVar

from fastcache.methods.base import CacheMethod
from fastcache.step import Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class DirectReuse(CacheMethod):
    """The fixed mask that the adaptive methods have to beat; the schedule alone decides what is computed."""

    name: ClassVar[str] = "reuse"

    def step(self, step: Step, run: Runner) -> StepResult:
        self.note(None)
        if step.forced_full or self.residual is None:
            return self.full(step, run)
        return self.reuse(step)
