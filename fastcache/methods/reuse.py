"""Naive reuse: every cacheable step adds the residual of the last computed one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fastcache.errors import UserError
from fastcache.methods.base import CacheMethod
from fastcache.step import Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class DirectReuse(CacheMethod):
    """The fixed mask that the adaptive methods have to beat; the schedule alone decides what is computed.

    ``chunks`` [first, last], counted from 0, confines reuse to these chunks; the others are computed in full.
    """

    name: ClassVar[str] = "reuse"

    chunks: Sequence[int] | None = None

    def check(self) -> None:
        if self.chunks is None:
            return
        ends = list(self.chunks) if isinstance(self.chunks, Sequence) else []
        whole = all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
        if len(ends) != 2 or not whole or not 0 <= ends[0] <= ends[1]:
            raise UserError(f"reuse: chunks={self.chunks}: expected the first and the last chunk, e.g. chunks=[0,2]")

    def step(self, step: Step, run: Runner) -> StepResult:
        self.note(None)
        outside = self.chunks is not None and not self.chunks[0] <= step.chunk_idx <= self.chunks[1]
        if step.forced_full or outside or self.residual is None:
            return self.full(step, run)
        return self.reuse(step)
