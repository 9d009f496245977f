"""FlowCache (ICLR 2026): every group of frames in a chunk decides for itself."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fastcache.errors import UserError
from fastcache.methods.base import AdaptiveMethod, choice, read_indicator, rel_l1
from fastcache.methods.tokenwise import refresh
from fastcache.step import Grid, Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class FlowCache(AdaptiveMethod):
    """TeaCache's rule for each ``group_size`` frames of a chunk; the groups that reach ``thresh`` are recomputed
    together, the others add their residual. ``compare_with`` as in TeaCache. The paper's units are the chunks of a
    window that denoises several at once; here a forward holds one chunk, and the units are its frames.
    """

    name: ClassVar[str] = "flowcache"
    selective: ClassVar[bool] = True

    group_size: int = 1
    compare_with: str = "previous"

    def check(self) -> None:
        super().check()
        choice(self, "compare_with", ("previous", "cached"))
        if not isinstance(self.group_size, int) or isinstance(self.group_size, bool) or self.group_size < 1:
            raise UserError(f"flowcache: group_size={self.group_size} must be a whole number of frames, 1 or more")

    def begin_chunk(self, chunk_idx: int) -> None:
        super().begin_chunk(chunk_idx)
        self.scores: list[float] = []
        self.references: list[Tensor] = []

    def step(self, step: Step, run: Runner) -> StepResult:
        groups = self._groups(read_indicator(self.indicator, step, run), step.grid)
        if step.forced_full or self.residual is None or not self.references:
            self.note(None)
            return self._full(step, run, groups)
        changes = (self.expected(rel_l1(now, then), step) for now, then in zip(groups, self.references, strict=True))
        scores = [score + change for score, change in zip(self.scores, changes, strict=True)]
        self.note(*scores)
        if not all(math.isfinite(score) for score in scores):
            self.nonfinite("the distance between indicators")
            return self._full(step, run, groups)
        due = [score >= self.thresh for score in scores]
        self.scores = [0.0 if d else score for d, score in zip(due, scores, strict=True)]
        if self.compare_with == "previous":
            self.references = groups
        else:
            self.references = [now if d else then for d, now, then in zip(due, groups, self.references, strict=True)]
        out, residual, fraction = refresh(step, run, self.residual, self._tokens(due, step))
        if fraction:
            self.keep(residual)
        return StepResult(out, fraction)

    def _full(self, step: Step, run: Runner, groups: list[Tensor]) -> StepResult:
        self.scores, self.references = [0.0] * len(groups), groups
        return self.full(step, run)

    def _groups(self, indicator: Tensor, grid: Grid) -> list[Tensor]:
        """An indicator of frames [1, F or 1, 6, C] or tokens [1, L, C], cut into groups of frames."""
        frames = indicator
        if self.indicator != "e0":
            frames = indicator.unflatten(1, (grid.frames, grid.tokens_per_frame))
        return list(frames.expand(-1, grid.frames, -1, -1).split(self.group_size, dim=1))

    def _tokens(self, due: list[bool], step: Step) -> Tensor:
        frame = torch.arange(step.grid.tokens, device=step.x.device) // step.grid.tokens_per_frame
        return torch.tensor(due, device=step.x.device)[frame // self.group_size].nonzero().flatten()
