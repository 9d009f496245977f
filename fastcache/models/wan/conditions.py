"""What Wan2.1 I2V and VACE are shown besides text, as channels of their latent input.

Layouts: Wan-Video/Wan2.1 (image2video.py, vace.py); causal use: NVlabs/FastGen.
"""

import numpy as np
import torch
from torch import Tensor

from fastcache.models.wan.vae import FRAMES, STRIDE, VideoVAE, pixel_frames

MASK_CHANNELS = FRAMES  # of I2V: one for each pixel frame of a latent frame
CELL = STRIDE * STRIDE  # mask channels of VACE: one for each pixel of a latent pixel


def first_frame_channels(vae: VideoVAE, image: np.ndarray, frames: int) -> Tensor:
    """I2V's channels [1, F, 20, H/8, W/8] of an image uint8 [H, W, 3]: 4 of mask, 16 of image latent.

    The mask is 1 where a pixel frame is given: latent frame 0, and 0 in all later ones, so that the chunks after the
    first are told of nothing given. The latent is that of the image followed by grey (zero) frames.
    """
    video = torch.zeros(pixel_frames(frames), 3, *image.shape[:2])
    video[0] = _pixels(image[None])[0]
    latent = vae.encode(video)
    mask = latent.new_zeros(1, frames, MASK_CHANNELS, *latent.shape[-2:])
    mask[:, 0] = 1
    return torch.cat((mask, latent), dim=2)


def all_given(channels: Tensor) -> Tensor:
    """The same with a mask of ones: in a store pass, every frame of the latent is final."""
    return torch.cat((torch.ones_like(channels[:, :, :MASK_CHANNELS]), channels[:, :, MASK_CHANNELS:]), dim=2)


def control_channels(vae: VideoVAE, control: np.ndarray, frames: int) -> Tensor:
    """VACE's context [1, F, 96, H/8, W/8] of a control video uint8 [T, H, W, 3].

    16 channels of inactive latent (the video where it is to be kept: nowhere, so grey), 16 of reactive latent (the
    video where it is to be followed: everywhere), 64 of mask (1: everywhere). A control shorter than the rollout covers
    its whole latent frames; the frames after it are zeros in every channel, no control.
    """
    covered = min((len(control) - 1) // FRAMES + 1, frames)
    video = _pixels(control[: pixel_frames(covered)])
    reactive, inactive = vae.encode(video), vae.encode(torch.zeros_like(video))
    mask = reactive.new_ones(1, covered, CELL, *reactive.shape[-2:])
    context = torch.cat((inactive, reactive, mask), dim=2)
    return torch.cat((context, context.new_zeros(1, frames - covered, *context.shape[2:])), dim=1)


def _pixels(frames: np.ndarray) -> Tensor:
    """uint8 [T, H, W, 3] -> [T, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(np.array(frames)).permute(0, 3, 1, 2).float() / 127.5 - 1
