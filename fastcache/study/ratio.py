"""Cached against recomputed rollouts of a video DiT: the time of both in one run, forward by forward.

Recomputing, every forward computes all chunks up to its own, the finished ones at t = 0 under the block-causal mask:
the same flow for the current chunk, which is checked. Both sides run as many forwards, the store pass included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastcache.condition import Condition
from fastcache.forwards import Forwards
from fastcache.kv_cache import CausalContext
from fastcache.kv_cache.masks import dense_block_mask
from fastcache.study.engines import TAG, Filled


@dataclass
class Growth:
    """Seconds of a forward by chunk, and of whole rollouts by their length in chunks."""

    timed: list[int]  # chunks that were timed
    cached: np.ndarray  # seconds of a cached forward of each chunk, interpolated between the timed ones
    recomputed: np.ndarray
    difference: float  # largest between the flows of both

    def ratio(self, chunks: int) -> float:
        """Rollouts of so many chunks: time recomputed / time cached."""
        return float(self.recomputed[:chunks].sum() / self.cached[:chunks].sum())


@torch.inference_mode()
def growth(
    model: Any, condition: Condition, latents: Tensor, sampler: Any, whole: int, later: Sequence[int]
) -> tuple[Growth, Filled]:
    """Time the first ``whole`` chunks of latents [1, F, C, H, W] with every forward of a rollout, chunks ``later`` with
    one each. Also returns the DiT with the first ``whole`` - 1 chunks in its K/V engine."""
    dit, size = model.dit, sampler.frames_per_chunk
    chunks = latents.split(size, dim=1)
    dit.clear_caches()
    video = Forwards(dit, sampler, TAG, condition, latents.shape[1], selective=False)
    seqlen = dit.grid(chunks[0]).tokens_per_frame
    timesteps = [*sampler.timesteps.tolist(), 0.0]
    generator = torch.Generator().manual_seed(0)
    seconds: dict[int, list[tuple[float, float]]] = {}
    difference = 0.0
    for c, chunk in enumerate(chunks):
        noisy = torch.randn(chunk.shape, generator=generator).to(chunk)
        if c == 0:
            video.store(chunk, 0)  # allocates, and warms up
            for engine in dit.kv_cache_engines.values():
                engine.truncate(TAG, 0)
        if c < whole or c in later:
            dense_block_mask((size,) * (c + 1), seqlen)  # kept: made once, and not on the clock
            for t in timesteps if c < whole else timesteps[:1]:
                began = perf_counter()
                ours = _cached(video, noisy, c, t, seqlen)
                between = perf_counter()
                theirs = _recomputed(video, [*chunks[:c], noisy], t, seqlen)
                seconds.setdefault(c, []).append((between - began, perf_counter() - between))
                difference = max(difference, float((ours - theirs).abs().max()))
        video.store(chunk, c)
    timed = sorted(seconds)
    mean = np.array([np.mean(seconds[c], axis=0) for c in timed])
    every = np.arange(len(chunks))
    cached = np.interp(every, timed, mean[:, 0])
    recomputed = np.interp(every, timed, mean[:, 1] / (np.array(timed) + 1)) * (every + 1)
    for engine in dit.kv_cache_engines.values():
        engine.truncate(TAG, (whole - 1) * size * seqlen)
    ctx = _context(video, (whole - 1) * size, size, seqlen, {"cache_engines": dit.kv_cache_engines, "is_ar": True})
    return Growth(timed, cached, recomputed, difference), Filled(dit, ctx, chunks[whole - 1], video.context)


def _context(video: Forwards, start: int, frames: int, seqlen: int, more: dict[str, Any]) -> CausalContext:
    return CausalContext(cache_tag=TAG, cur_start_frame=start, num_frames=frames, frame_seqlen=seqlen, **more)


def _cached(video: Forwards, x: Tensor, chunk_idx: int, t: float, seqlen: int) -> Tensor:
    size = x.shape[1]
    more = {"cache_engines": video.engines, "is_ar": True}
    return _flow(video, x, torch.full((1, size), t), _context(video, chunk_idx * size, size, seqlen, more))


def _recomputed(video: Forwards, chunks: list[Tensor], t: float, seqlen: int) -> Tensor:
    """The current chunk's flow from all chunks, nothing cached."""
    size, x = chunks[-1].shape[1], torch.cat(chunks, 1)
    times = torch.zeros(1, x.shape[1])
    times[:, -size:] = t
    mask = dense_block_mask((size,) * len(chunks), seqlen)
    return _flow(video, x, times, _context(video, 0, x.shape[1], seqlen, {"block_mask": mask}))[:, -size:]


def _flow(video: Forwards, x: Tensor, times: Tensor, ctx: CausalContext) -> Tensor:
    run = video.dit.prepare(x, times.to(x.device), video.context, ctx)
    return run.head(run.full())
