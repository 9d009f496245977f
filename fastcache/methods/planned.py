"""Controls: masks that no indicator chose. At random, or the best ones in hindsight.

Not methods to use but to measure others by: one that decides well beats random masks of its budget and comes near the
oracle.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from fastcache.errors import UserError
from fastcache.methods.base import CacheMethod, number
from fastcache.schedule import Schedule
from fastcache.step import Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class Planned(CacheMethod):
    """A mask for each chunk, settled before its first step: which of the cacheable steps are reused."""

    dial: ClassVar[str | None] = "skip"
    off: ClassVar[float | None] = 0.0
    most: ClassVar[float | None] = 1e9

    skip: float = 0.0

    def check(self) -> None:
        self.skip = number(self, "skip", low=0.0)

    def begin_chunk(self, chunk_idx: int) -> None:
        super().begin_chunk(chunk_idx)
        self.reused = self.plan(chunk_idx) if chunk_idx >= 0 else ()

    def plan(self, chunk_idx: int) -> Sequence[int]:
        """The steps of a chunk that are reused."""
        raise NotImplementedError

    def step(self, step: Step, run: Runner) -> StepResult:
        self.note(None)
        if step.forced_full or step.step_idx not in self.reused or self.residual is None:
            return self.full(step, run)
        return self.reuse(step)


@dataclass(kw_only=True, eq=False)
class RandomMasks(Planned):
    """Reuses ``skip`` of a chunk's cacheable steps, drawn anew for each chunk; 1.5 is one or two, as often.

    Keyed by seed, video and chunk, so that order and resumption change nothing.
    """

    name: ClassVar[str] = "random"

    def plan(self, chunk_idx: int) -> Sequence[int]:
        draw = random.Random("/".join(map(str, (*self.address, chunk_idx))))
        count = int(self.skip) + (draw.random() < self.skip % 1)
        open_steps = cacheable(self.forced)
        return draw.sample(open_steps, min(count, len(open_steps)))


@dataclass(kw_only=True, eq=False)
class Oracle(Planned):
    """The best mask of ``skip`` reused steps for each chunk, known in hindsight (``hindsight.search`` finds them).

    ``masks`` are one a chunk; a chunk beyond them takes the first that it can.
    """

    name: ClassVar[str] = "oracle"

    def __post_init__(self) -> None:
        self.masks: list[tuple[int, ...]] = []
        super().__post_init__()

    def check(self) -> None:
        super().check()
        if self.skip != int(self.skip):
            raise UserError(f"oracle: skip={self.skip:g} is no whole number of steps; e.g. skip=1")

    def candidates(self, forced: Schedule) -> list[tuple[int, ...]]:
        """Every way to reuse ``skip`` steps of a chunk."""
        open_steps = cacheable(forced)
        return list(combinations(open_steps, min(int(self.skip), len(open_steps))))

    def plan(self, chunk_idx: int) -> Sequence[int]:
        return self.masks[chunk_idx] if chunk_idx < len(self.masks) else self.candidates(self.forced)[0]


def cacheable(forced: Schedule) -> list[int]:
    """The steps that a schedule leaves to the method."""
    return [i for i, full in enumerate(forced) if full is False]
