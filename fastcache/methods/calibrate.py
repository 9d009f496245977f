"""The calibration probe: computes every step in full and records what reuse would have cost."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fastcache.methods.base import INDICATORS, CacheMethod, choice, read_indicator, rel_l1, rel_l1_per_token
from fastcache.step import Grid, Runner, Step, StepResult

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(kw_only=True, eq=False)
class Probe(CacheMethod):
    """For each two consecutive steps of a chunk, ``samples`` gets x, the relative L1 distance of the indicators, and y,
    that of the residuals: y is the error of the very tensor that a skipping method would have reused. With them go
    chunk, step and sigma (those of the later step), and for a closer look:

    - ``frames``: x and y of each latent frame, [F] each;
    - ``tokens``: the QUANTILES of x and y over tokens, and the rank correlation of the two (None where x is constant);
    - ``norm_ratio`` and ``cosine`` of the later residual to the earlier one, means over tokens (MagCache's gamma).

    A new video starts a new list.
    """

    name: ClassVar[str] = "calibrate"
    indicators: ClassVar[tuple[str, ...]] = INDICATORS

    indicator: str = "modulated_input"

    def check(self) -> None:
        choice(self, "indicator", self.indicators)

    def begin_video(self) -> None:
        super().begin_video()
        self.samples: list[dict[str, Any]] = []

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
            change = _closer((current, reference), (self.residual, former), step.grid)
            self.samples.append({"x": x, "y": y, **place, **change})
        else:
            self.nonfinite("the distance between indicators")
        return result


def _closer(indicator: tuple[Tensor, Tensor], residual: tuple[Tensor, Tensor], grid: Grid) -> dict[str, Any]:
    """Frames, tokens, norm_ratio and cosine of a sample; pairs of (later, earlier)."""
    span = grid.tokens_per_frame
    now, then = (r[0].float() for r in residual)
    if indicator[0].ndim == 4:  # e0 [1, F or 1, 6, C]: the tokens of a frame share it
        x_frames = rel_l1_per_token(*(i.flatten(2) for i in indicator)).expand(grid.frames)
        x_tokens = x_frames.repeat_interleave(span)
    else:
        x_frames = _of_frames(indicator[0][0].float(), indicator[1][0].float(), span)
        x_tokens = rel_l1_per_token(*indicator)
    y_tokens = rel_l1_per_token(*residual)
    norms = now.norm(dim=-1), then.norm(dim=-1)
    return {
        "frames": {"x": x_frames.tolist(), "y": _of_frames(now, then, span).tolist()},
        "tokens": {"x": _quantiles(x_tokens), "y": _quantiles(y_tokens), "rank": _rank(x_tokens, y_tokens)},
        "norm_ratio": float((norms[0] / (norms[1] + 1e-8)).mean()),
        "cosine": float(torch.cosine_similarity(now, then, dim=-1).mean()),
    }


def _of_frames(now: Tensor, then: Tensor, span: int) -> Tensor:
    """[L, C] against [L, C] -> [F]: the relative L1 distance of each frame."""
    now, then = now.view(-1, span * now.shape[-1]), then.view(-1, span * then.shape[-1])
    return (now - then).abs().mean(dim=1) / (then.abs().mean(dim=1) + 1e-8)


def _quantiles(values: Tensor) -> list[float]:
    return torch.quantile(values, torch.tensor(QUANTILES, device=values.device)).tolist()


def _rank(x: Tensor, y: Tensor) -> float | None:
    """Spearman's rank correlation [-1, 1] of two [L] tensors, equal values in any order; None where x is constant."""
    if bool(x.max() == x.min()) or bool(y.max() == y.min()):
        return None
    ranks = torch.stack([v.argsort().argsort().double() for v in (x, y)])
    return float(torch.corrcoef(ranks)[0, 1])
