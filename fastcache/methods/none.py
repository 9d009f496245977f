"""No caching: every step in full. The reference, and the rows of the Euler sampler."""

from dataclasses import dataclass
from typing import ClassVar

from fastcache.methods.base import CacheMethod
from fastcache.step import Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class NoCache(CacheMethod):
    """Computes everything, keeps nothing."""

    name: ClassVar[str] = "none"

    def estimate_bytes(self, numbers: int, blocks: int, item: int) -> int:
        return 0

    def step(self, step: Step, run: Runner) -> StepResult:
        self.note(None)
        return StepResult(run.full(), 1.0)


@dataclass(kw_only=True, eq=False)
class Euler(NoCache):
    """NoCache under the Euler sampler; its own name, so that its rows are never taken for the reference."""

    name: ClassVar[str] = "euler"
