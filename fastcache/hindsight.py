"""The oracle's search: the best masks of a budget, known only once everything has been computed.

Chunk by chunk each mask of ``skip`` reused steps is tried behind the chunks chosen so far, and the one whose latent
lies nearest to that of the full computation (mean squared error) is kept. That is greedy: a mask is judged by its own
chunk, not by what it does to later ones. So the plan is compared at the end with each mask kept for the whole video,
and the best of all by the video's error is taken: no fixed mask of the same budget is nearer to the full computation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastcache.methods.none import NoCache
from fastcache.methods.planned import Oracle
from fastcache.sample import Rollout
from fastcache.schedule import Schedule

Run = Callable[[Any, int, Tensor | None], Rollout]
"""(method, latent frames, given latents or None) -> a rollout of the video in question."""


@torch.inference_mode()
def search(oracle: Oracle, run: Run, forced: Schedule, frames: int, size: int) -> None:
    """Set ``oracle.masks`` for a video of ``frames`` latent frames in chunks of ``size``."""
    choices = oracle.candidates(forced)
    chunks = frames // size
    if len(choices) == 1:
        oracle.masks = choices * chunks
        return
    target = run(NoCache(), frames, None).latents
    plan: list[tuple[int, ...]] = []
    past: Tensor | None = None
    for chunk_idx in range(chunks):
        end = (chunk_idx + 1) * size
        tried = []
        for mask in choices:
            oracle.masks = [*plan, mask]
            made = run(oracle, end, past).latents
            tried.append((_error(made[:, -size:], target[:, end - size : end]), mask, made))
        _, best, past = min(tried, key=lambda one: one[0])
        plan.append(best)
    assert past is not None
    found = [(_error(past, target), plan)]
    for mask in choices:
        oracle.masks = [mask] * chunks
        found.append((_error(run(oracle, frames, None).latents, target), oracle.masks))
    oracle.masks = min(found, key=lambda one: one[0])[1]


def _error(made: Tensor, target: Tensor) -> float:
    return float((made.double() - target.double()).square().mean())
