"""Addressed randomness: a noise tensor depends on where it is used, never on what was drawn before it."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

Draw = Callable[[int, int, tuple[int, ...]], Tensor]
"""(chunk_idx, step_idx, shape) -> noise: what the rollout is given."""


class Noise:
    """Standard normal noise addressed by (seed, video, chunk, step)."""

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)

    def draw(self, video_idx: int, chunk_idx: int, step_idx: int, shape: tuple[int, ...]) -> Tensor:
        """The noise of one address: fp32 on the CPU, the same on every call. Step 0 is a chunk's initial noise, step k
        the fresh noise added before step k."""
        address = f"{self.seed}/{video_idx}/{chunk_idx}/{step_idx}".encode()
        key = int.from_bytes(hashlib.sha256(address).digest()[:8], "big") >> 1  # manual_seed takes 63 bits
        return torch.randn(shape, generator=torch.Generator().manual_seed(key), dtype=torch.float32)

    def of(self, *videos: int) -> Draw:
        """The draws of a batch of videos, [B, ...] with B = len(videos): a sample's noise ignores its neighbours."""

        def draw(chunk_idx: int, step_idx: int, shape: tuple[int, ...]) -> Tensor:
            assert shape[0] == len(videos)
            return torch.cat([self.draw(video, chunk_idx, step_idx, (1, *shape[1:])) for video in videos])

        return draw
