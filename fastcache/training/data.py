"""Endless training batches of the procedural world, addressed by (seed, iteration) so that a resumed run goes on."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.ndimage import grey_dilation
from torch import Tensor

from fastcache.models.tiny import FRAMES_PER_CHUNK, encode, encode_scene
from fastcache.world.features import PATCH_DIM, PATCHES, patch_features
from fastcache.world.render import draw_unsaid, render
from fastcache.world.scene import FRAMES, random_scene

SPRITE_WEIGHT = 3.0

_TABLE = torch.from_numpy(patch_features(0, FRAMES)).view(FRAMES, PATCHES * PATCHES, PATCH_DIM)


class Batch(NamedTuple):
    latents: Tensor  # [B, F, 12, 16, 16]
    weight: Tensor  # [B, F, 1, 16, 16], mean 1: sprite pixels count more
    text: Tensor  # [B, text_len, text_dim]
    features: Tensor  # [B, F, S, PATCH_DIM]
    chunks: int


def make_batch(rng: np.random.Generator, chunks: int, videos: int) -> Batch:
    """``chunks`` 0: single frames at random times; otherwise clips of that many chunks at a random chunk offset."""
    latents, weights, texts, features = [], [], [], []
    last = FRAMES // FRAMES_PER_CHUNK - chunks
    offset = FRAMES_PER_CHUNK * int(rng.integers(0, last + 1))
    for _ in range(videos):
        scene = random_scene(rng)
        frames = offset + np.arange(FRAMES_PER_CHUNK * chunks) if chunks else rng.integers(0, FRAMES, 1)
        video, covered = render(scene, draw_unsaid(scene, rng), frames)
        latents.append(encode(torch.from_numpy(video)))
        near = grey_dilation(covered, size=(1, 5, 5)).reshape(len(frames), 16, 2, 16, 2).max((2, 4))
        weights.append(torch.from_numpy(1 + (SPRITE_WEIGHT - 1) * near)[:, None])
        texts.append(encode_scene(scene))
        features.append(_TABLE[torch.from_numpy(frames)])
    weight = torch.stack(weights)
    weight /= weight.mean()
    return Batch(torch.stack(latents), weight, torch.stack(texts), torch.stack(features), max(chunks, 1))
