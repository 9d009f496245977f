"""What the tiny I2V and VACE models are shown: a first frame, or a control video, as conditions of a rollout.

The layout of channels is Wan's: I2V joins [4 mask | image latents] to the noisy latent and reads image tokens in
cross-attention; VACE reads [inactive | reactive | mask] latents, here with the whole video reactive.
"""

import numpy as np
import torch
from torch import Tensor

from fastcache.condition import Condition
from fastcache.models.tiny_latents import LATENT_SHAPE, encode
from fastcache.world.features import PATCHES, text_features
from fastcache.world.picture import read_picture
from fastcache.world.render import as_drawn, draw_layout, draw_unsaid, render
from fastcache.world.scene import Scene, settle
from fastcache.world.words import read_prompt

CHANNELS, HEIGHT, WIDTH = LATENT_SHAPE
MASK = 4
SHOWN_CHANNELS = {"image": MASK + CHANNELS, "control": 2 * CHANNELS + MASK}
IMAGE_LEN = PATCHES * PATCHES
IMAGE_DIM = 4 * CHANNELS + 2 * PATCHES
GREY = 0.5  # Wan's zero pixel, in [0, 1]


def image_embeds(latent: Tensor) -> Tensor:
    """Image tokens [IMAGE_LEN, IMAGE_DIM] of a frame's latent [12, 16, 16]: a row a patch, its numbers and place."""
    patches = latent.unflatten(2, (PATCHES, 2)).unflatten(1, (PATCHES, 2)).permute(1, 3, 0, 2, 4).flatten(2)
    eye = torch.eye(PATCHES)
    rows = eye[:, None].expand(PATCHES, PATCHES, PATCHES)
    return torch.cat((patches, rows, rows.transpose(0, 1)), -1).flatten(0, 1)


def image_channels(latent: Tensor, frames: Tensor) -> Tensor:
    """[F, 16, 16, 16]: mask and image latents at the given frame numbers; frame 0 is shown, others are grey."""
    first = (frames == 0).float()[:, None, None, None]
    grey = encode(torch.full((1, 2 * HEIGHT, 2 * WIDTH, 3), GREY))
    mask = first.expand(-1, MASK, HEIGHT, WIDTH)
    return torch.cat((mask, first * latent + (1 - first) * grey), 1)


def control_channels(video: Tensor) -> Tensor:
    """Control [T, 32, 32, 3] in [0, 1] -> VACE context [T, 28, 16, 16]: inactive, reactive and mask latents."""
    inactive = encode(torch.full_like(video, GREY))
    mask = torch.ones(len(video), MASK, HEIGHT, WIDTH)
    return torch.cat((inactive, encode(video), mask), 1)


def shown_scene(prompt: str, seed: int, image: np.ndarray | None = None) -> Scene:
    """The scene that the I2V model is told of: the prompt's, its sprites where the first frame has them."""
    return _implied(prompt, seed)[0] if image is None else read_picture(prompt, image, np.random.default_rng(seed))


def first_frame(prompt: str, seed: int) -> np.ndarray:
    """A first frame uint8 [32, 32, 3] that the prompt implies; what it leaves open is drawn from the seed."""
    return _implied(prompt, seed)[1]


def _implied(prompt: str, seed: int) -> tuple[Scene, np.ndarray]:
    """The first frame that a prompt implies, and its scene as the picture has it: nothing needs to be read off it."""
    scene = settle(read_prompt(prompt), np.random.default_rng(seed))
    unsaid = draw_unsaid(scene, np.random.default_rng((seed, 1)))
    drawn, _ = render(scene, unsaid, [0])
    return as_drawn(scene, unsaid), (drawn[0].clip(0, 1) * 255).round().astype(np.uint8)


def layout_video(prompt: str, seed: int, frames: int) -> np.ndarray:
    """A control video uint8 [frames, 32, 32, 3] that the prompt implies."""
    scene = settle(read_prompt(prompt), np.random.default_rng(seed))
    return (draw_layout(scene, np.arange(frames)) * 255).round().astype(np.uint8)


def show_image(prompt: str, seed: int, frames: int, image: np.ndarray | None = None) -> Condition:
    """I2V: continue ``image`` (uint8 [32, 32, 3]; None: one that the prompt implies) as the words say.

    Raises UserError where the picture lacks a sprite of the prompt.
    """
    scene, words = shown_scene(prompt, seed, image), read_prompt(prompt)
    image = first_frame(prompt, seed) if image is None else image
    told = text_features(scene, ground=words.ground_color is not None and words.texture is not None)
    latent = encode(torch.from_numpy(image).float()[None] / 255)[0]
    return Condition(
        torch.from_numpy(told)[None],
        image_embeds=image_embeds(latent)[None],
        channels=image_channels(latent, torch.arange(frames))[None],
    )


def show_control(prompt: str, seed: int, frames: int, control: np.ndarray | None = None) -> Condition:
    """VACE: sprites go where ``control`` (uint8 [T, 32, 32, 3]; None: what the prompt implies) shows them.

    A control that is longer than the rollout is cut, a shorter one padded with zeros, which mean no control.
    """
    control = layout_video(prompt, seed, frames) if control is None else control[:frames]
    scene = settle(read_prompt(prompt), np.random.default_rng(seed))
    shown = control_channels(torch.from_numpy(control).float() / 255)
    padded = torch.cat((shown, shown.new_zeros(frames - len(shown), *shown.shape[1:])))
    return Condition(torch.from_numpy(text_features(scene, motion=False))[None], control=padded[None])
