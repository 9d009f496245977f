"""MotionCache: tokens that move are recomputed sooner than tokens that stand still."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fastcache.errors import UserError
from fastcache.methods.base import AdaptiveMethod, choice, number, read_indicator, rel_l1, rel_l1_per_token
from fastcache.methods.tokenwise import refresh
from fastcache.step import Grid, Runner, Step, StepResult


@dataclass(kw_only=True, eq=False)
class MotionCache(AdaptiveMethod):
    """Each token adds up (rescaled distance of the indicator) x (its motion weight); at ``thresh`` it is recomputed.

    Weights are frame-to-frame differences of the last full output, normalised per frame by ``weight_norm``: ``mean``,
    ``max``, or ``max_rescale`` (to [weight_floor, 1], the paper's alpha). Frame 0 is compared with the last frame of
    the former chunk: its last full output (``frame0=previous_output``) or its output at the same step (``same_step``,
    as in the paper). ``distance=token`` gives each token its own distance, ``chunk`` that of the whole chunk (the
    paper's). A selection smaller than ``min_update_ratio`` of the tokens is dropped. With ``temporal_consistency`` the
    frames vote: a position is recomputed in all of them, if more than ``temporal_thresh`` of them want it, or in none.
    """

    name: ClassVar[str] = "motioncache"
    selective: ClassVar[bool] = True

    weight_norm: str = "mean"
    weight_floor: float = 0.3
    min_update_ratio: float = 0.0
    temporal_consistency: bool = False
    temporal_thresh: float = 0.5
    distance: str = "token"
    frame0: str = "previous_output"

    def check(self) -> None:
        super().check()
        choice(self, "weight_norm", ("mean", "max", "max_rescale"))
        choice(self, "distance", ("token", "chunk"))
        choice(self, "frame0", ("previous_output", "same_step"))
        for key in ("weight_floor", "min_update_ratio", "temporal_thresh"):
            setattr(self, key, number(self, key, low=0.0, high=1.0))
        if not isinstance(self.temporal_consistency, bool):
            raise UserError(f"motioncache: temporal_consistency={self.temporal_consistency} must be true or false")
        if self.indicator == "e0" and self.distance == "token":
            raise UserError(
                "motioncache needs a per-token indicator; e0 is per frame: use indicator=modulated_input, "
                "or method.distance=chunk, which takes e0"
            )

    def begin_video(self) -> None:
        self.last_frames: dict[int, Tensor] = {}  # this chunk's last frame [1, S, C] of each full step
        super().begin_video()

    def begin_chunk(self, chunk_idx: int) -> None:
        super().begin_chunk(chunk_idx)
        self.former_frames, self.last_frames = self.last_frames, {}
        self.score, self.weights = torch.empty(0), torch.empty(0)  # [L] each, from the first full step on

    def step(self, step: Step, run: Runner) -> StepResult:
        current = read_indicator(self.indicator, step, run)
        former, self.reference = self.reference, current
        if step.forced_full or former is None or self.residual is None:
            self.note(None)
            return self._full(step, run)
        score = self.score + self._change(current, former, step) * self.weights
        mean = float(score.mean().item())
        self.note(mean)
        if not math.isfinite(mean):
            self.nonfinite("a token's score")
            return self._full(step, run)
        tokens, self.score = self._select(score, step.grid)
        out, residual, fraction = refresh(step, run, self.residual, tokens)
        if fraction:
            self.keep(residual)
        return StepResult(out, fraction)

    def _full(self, step: Step, run: Runner) -> StepResult:
        result = self.full(step, run)
        out = result.x.float()
        self.score = torch.zeros(out.shape[1], device=out.device)
        self.weights = self._weights(out, step)
        if self.frame0 == "previous_output":
            self.last_frames.clear()
        self.last_frames[step.step_idx] = out[:, -step.grid.tokens_per_frame :].clone()
        return result

    def _change(self, current: Tensor, former: Tensor, step: Step) -> Tensor:
        """Distance of each token [L], or of the chunk [], in units of expected reuse error where there is a fit."""
        if self.distance == "chunk":
            return torch.tensor(self.expected(rel_l1(current, former), step), device=current.device)
        change = rel_l1_per_token(current, former)
        return change if self.rescale is None else self.rescale.per_token(change, step.step_idx)

    def _select(self, score: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """Tokens to recompute (int64, ascending) and the scores after it."""
        need = score >= self.thresh
        if self.temporal_consistency:
            votes = need.view(grid.frames, -1).float().mean(dim=0)
            need = (votes > self.temporal_thresh).repeat(grid.frames)
        tokens = need.nonzero().flatten()
        if 0 < tokens.numel() < self.min_update_ratio * grid.tokens:
            return tokens[:0], score
        return tokens, score.masked_fill(need, 0.0)

    def _weights(self, out: Tensor, step: Step) -> Tensor:
        """Motion weight of each token [L] from a full output [1, L, C] in float32."""
        frames = out[0].view(step.grid.frames, step.grid.tokens_per_frame, -1)
        motion = _change_of_frames(frames[1:], frames[:-1])
        former = self._former_frame(step.step_idx)
        if former is not None:
            first = _change_of_frames(frames[:1], former)
        else:
            first = motion[:1] if len(motion) else torch.ones_like(frames[:, :, 0])
        motion = torch.cat([first, motion])
        if self.weight_norm == "mean":
            return (motion / (motion.mean(dim=1, keepdim=True) + 1e-8)).flatten()
        high = motion.amax(dim=1, keepdim=True)
        if self.weight_norm == "max":
            return (motion / (high + 1e-8)).flatten()
        low = motion.amin(dim=1, keepdim=True)
        return (self.weight_floor + (1 - self.weight_floor) * (motion - low) / (high - low + 1e-8)).flatten()

    def _former_frame(self, step_idx: int) -> Tensor | None:
        """The former chunk's last frame [1, S, C]; None in the first chunk of a video."""
        if not self.former_frames:
            return None
        latest = max(self.former_frames)
        return self.former_frames.get(step_idx, self.former_frames[latest])


def _change_of_frames(frames: Tensor, former: Tensor) -> Tensor:
    """[N, S, C] against [N, S, C] -> [N, S]: relative L1 difference of each position."""
    return (frames - former).abs().mean(dim=-1) / (former.abs().mean(dim=-1) + 1e-8)
