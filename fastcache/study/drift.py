"""Rollouts far beyond the trained length, in a window: memory by chunk, and whether the sprites are still right."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from fastcache import api
from fastcache.kv_cache import WindowKVCacheEngine
from fastcache.world.measure import look
from fastcache.world.scene import settle
from fastcache.world.words import read_prompt


@dataclass
class Drift:
    """One long rollout, chunk by chunk. A share or error is None where no sprite could be looked at."""

    rope: str
    window_frames: int
    sink_frames: int
    kv_bytes: list[int]
    near: list[float | None]  # share of sprites within tolerance of where the prompt puts them
    shape: list[float | None]  # share of sprites of the right shape
    error: list[float | None]  # median distance in pixels; far off counts as the search radius
    seconds: float

    @property
    def constant(self) -> bool:
        """Whether K/V memory was the same after every chunk."""
        return len(set(self.kv_bytes)) == 1

    def mean(self, series: Sequence[float | None], first: int, last: int) -> float | None:
        values = [x for x in series[first:last] if x is not None]
        return float(np.mean(values)) if values else None


def long_rollout(
    model: Any, prompts: Sequence[str], frames: int, window_frames: int, sink_frames: int, rope: str, seed: int = 0
) -> Drift:
    """Roll out ``frames`` latent frames of each prompt of a tiny text-to-video model and look at every chunk."""
    model.dit.set_kv_engines(lambda branch: WindowKVCacheEngine(window_frames, sink_frames, rope))
    (engine,) = model.dit.kv_cache_engines.values()
    size, began = model.frames_per_chunk, perf_counter()
    kv_bytes: dict[int, int] = {}
    sightings: list[list[Any]] = [[] for _ in range(frames // size)]
    for idx, prompt in enumerate(prompts):

        def on_step(chunk_idx: int, trace: Any) -> None:
            kv_bytes[chunk_idx] = engine.memory_bytes()

        video = api.generate(model, prompt, schedule="FFFF", frames=frames, seed=seed, idx=idx, on_step=on_step)
        scene = settle(read_prompt(prompt), np.random.default_rng(seed + idx))
        for seen in look(video.frames, scene, range(size // 2, frames, size)):
            sightings[seen.frame // size].append(seen)
    return Drift(
        rope,
        window_frames,
        sink_frames,
        [kv_bytes[c] for c in sorted(kv_bytes)],
        [float(np.mean([s.near for s in found])) if found else None for found in sightings],
        [float(np.mean([s.shape_right for s in found])) if found else None for found in sightings],
        [float(np.median([min(s.error, 10.0) for s in found])) if found else None for found in sightings],
        perf_counter() - began,
    )
