"""What a tiny model is trained on: the numbers of a training and its loss."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastcache.models.tiny import FRAMES_PER_CHUNK
from fastcache.training.data import Batch
from fastcache.training.forcing import forward


@dataclass
class Recipe:
    """``minutes`` of wall time in all; fractions are of that budget."""

    minutes: float = 90.0
    out: str = "runs/tiny_t2v"
    layout: str = "t2v"  # t2v, i2v or vace
    start: str = ""  # weights of a tiny model to go on from, such as those of tiny_t2v
    seed: int = 0
    lr: float = 3e-3
    adam_lr: float = 2e-3
    ema: float = 0.995
    frames_until: float = 0.18  # single frames alone
    full_clips: float = 0.55  # share of whole clips afterwards; the rest two-chunk clips and single frames
    single_frames: float = 0.25
    renoise: float = 0.3  # share of iterations that regress from a re-noised own prediction
    decay_from: float = 0.55  # linear decay of the learning rate from here on
    context_noise: float = 0.06
    frames: int = 28  # single frames of a batch
    threads: int = 1
    save_every: float = 120.0  # seconds


SIGMAS = torch.tensor([1.0, 0.9375, 5 / 6, 0.625])
SIGMA_ODDS = torch.tensor([0.3, 0.15, 0.2, 0.35])  # the last level paints what is seen


def flow_loss(dit: Any, batch: Batch, generator: torch.Generator, recipe: Recipe, renoise: bool) -> Tensor:
    """Weighted squared error of the flow at a random sampler level a chunk."""
    x0 = batch.latents
    size = 1 if x0.shape[1] == 1 else FRAMES_PER_CHUNK
    draw = lambda: torch.randn(x0.shape, generator=generator)  # noqa: E731
    pick = torch.multinomial(SIGMA_ODDS, len(x0) * batch.chunks, replacement=True, generator=generator)
    level = pick.view(len(x0), batch.chunks).repeat_interleave(size, 1)
    clean = None
    if batch.chunks > 1:
        past = x0[:, :-size]
        amount = recipe.context_noise * torch.rand(len(x0), past.shape[1], 1, 1, 1, generator=generator)
        clean = past + amount * torch.randn(past.shape, generator=generator)
    shaped = lambda index: SIGMAS[index][:, :, None, None, None]  # noqa: E731

    def predict(noisy: Tensor, index: Tensor) -> Tensor:
        return forward(dit, clean, noisy, 1000 * SIGMAS[index], batch.text, batch.features, *batch.shown)

    start = x0
    if renoise:
        level = level.clamp(min=1)
        sigma = shaped(level - 1)
        noisy = (1 - sigma) * x0 + sigma * draw()
        with torch.no_grad():
            start = noisy - sigma * predict(noisy, level - 1)
    sigma = shaped(level)
    noisy = (1 - sigma) * start + sigma * draw()
    target = (noisy - x0) / sigma
    return ((predict(noisy, level) - target).square() * batch.weight).mean()
