"""Endless training batches of the procedural world, addressed by (seed, iteration) so that a resumed run goes on."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.ndimage import grey_dilation
from torch import Tensor

from fastcache.models.tiny import FRAMES_PER_CHUNK
from fastcache.models.tiny_latents import encode
from fastcache.models.tiny_shown import control_channels, image_channels, image_embeds
from fastcache.world.features import PATCH_DIM, PATCHES, patch_features, text_features
from fastcache.world.render import Unsaid, as_drawn, draw_layout, draw_unsaid, render
from fastcache.world.scene import FRAMES, Scene, random_scene, wander

SPRITE_WEIGHT = 3.0
GROUND_UNTOLD = 0.3  # share of I2V texts that leave the background to the picture
STRAIGHT = 0.3  # share of VACE clips whose sprites move straight; the others wander
CONTROL_ENDS = 0.1  # share of VACE clips whose control ends early

_TABLE = torch.from_numpy(patch_features(0, FRAMES)).view(FRAMES, PATCHES * PATCHES, PATCH_DIM)


class Shown(NamedTuple):
    """What I2V and VACE models are shown of a batch; see condition.Condition."""

    image_embeds: Tensor | None = None
    channels: Tensor | None = None
    control: Tensor | None = None


class Batch(NamedTuple):
    latents: Tensor  # [B, F, 12, 16, 16]
    weight: Tensor  # [B, F, 1, 16, 16], mean 1: sprite pixels count more
    text: Tensor  # [B, text_len, text_dim]
    features: Tensor  # [B, F, S, PATCH_DIM]
    chunks: int
    shown: Shown


def make_batch(rng: np.random.Generator, chunks: int, videos: int, layout: str = "t2v") -> Batch:
    """``chunks`` 0: single frames at random times; otherwise clips of that many chunks at a random chunk offset."""
    latents, weights, texts, features = [], [], [], []
    shown: list[Shown] = []
    last = FRAMES // FRAMES_PER_CHUNK - chunks
    offset = FRAMES_PER_CHUNK * int(rng.integers(0, last + 1))
    for _ in range(videos):
        scene = random_scene(rng)
        frames = offset + np.arange(FRAMES_PER_CHUNK * chunks) if chunks else rng.integers(0, FRAMES, 1)
        if layout == "vace" and rng.random() >= STRAIGHT:
            scene = wander(scene, rng)
        unsaid = draw_unsaid(scene, rng)
        video, covered = render(scene, unsaid, frames)
        text, seen = _show(layout, scene, unsaid, frames, rng)
        latents.append(encode(torch.from_numpy(video)))
        near = grey_dilation(covered, size=(1, 5, 5)).reshape(len(frames), 16, 2, 16, 2).max((2, 4))
        weights.append(torch.from_numpy(1 + (SPRITE_WEIGHT - 1) * near)[:, None])
        texts.append(torch.from_numpy(text))
        shown.append(seen)
        features.append(_TABLE[torch.from_numpy(frames)])
    weight = torch.stack(weights)
    weight /= weight.mean()
    given = Shown(*(None if column[0] is None else torch.stack(column) for column in zip(*shown, strict=True)))
    return Batch(torch.stack(latents), weight, torch.stack(texts), torch.stack(features), max(chunks, 1), given)


def _show(
    layout: str, scene: Scene, unsaid: Unsaid, frames: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, Shown]:
    """Text features, and what a model of this layout is shown of the scene at the given frames."""
    at = torch.from_numpy(frames)
    if layout == "i2v":
        picture, _ = render(scene, unsaid, [0])
        latent = encode(torch.from_numpy(picture.clip(0, 1)))[0]
        text = text_features(as_drawn(scene, unsaid), ground=rng.random() >= GROUND_UNTOLD)
        return text, Shown(image_embeds(latent), image_channels(latent, at))
    if layout == "vace":
        control = control_channels(torch.from_numpy(draw_layout(scene, frames)))
        if rng.random() < CONTROL_ENDS:
            control[at >= int(rng.integers(FRAMES_PER_CHUNK, FRAMES))] = 0
        return text_features(scene, motion=False), Shown(control=control)
    return text_features(scene), Shown()
