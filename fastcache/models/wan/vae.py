"""The Wan2.1 video VAE through diffusers: pixels <-> normalised latents, 8 x 8 pixels and 4 frames to one.

The first latent frame stands for one pixel frame, every later one for four.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastcache.encoders import folder_hash
from fastcache.errors import UserError
from fastcache.models.wan.kept import Kept
from fastcache.models.wan.loading import load_part

TILE_PIXELS = 256 * 256  # of diffusers' tiles
CHANNELS, STRIDE, FRAMES = 16, 8, 4  # of a latent; pixels a latent pixel; pixel frames a latent frame
# What a latent channel is on average, and by how much it varies, in Wan-Video/Wan2.1: z = (mu - MEAN) / STD.
MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)


def pixel_frames(frames: int) -> int:
    """Decoded frames of ``frames`` latent ones."""
    return FRAMES * (frames - 1) + 1


class VideoVAE:
    """Encodes and decodes one video at a time; loaded at first use and then kept, for it is small (0.5 GB).

    ``tiling`` works through overlapping tiles of 256 pixels: a fraction of the memory, faint seams, more time.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: str, tiling: bool = False):
        self.folder, self.dtype, self.device, self.tiling = folder, dtype, device, tiling
        self.kept = Kept("latents", folder_hash(folder), str(dtype), tiling)

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [T, 3, H, W] in [-1, 1], T = 4 (F - 1) + 1, -> latents float32 [1, F, 16, H/8, W/8], normalised.

        The mean of the posterior is taken, no sample of it. Kept on disk.
        """
        source = repr(list(pixels.shape)).encode() + pixels.numpy().tobytes()
        latents = self.kept.read(source)
        if latents is None:
            latents = self._encode(pixels)
            self.kept.write(source, latents)
        return latents

    @torch.inference_mode()
    def _encode(self, pixels: Tensor) -> Tensor:
        video = pixels.movedim(1, 0)[None].to(self.device, self.dtype)
        mu = self.model.encode(video).latent_dist.mode().float()
        return ((mu - _channels(MEAN, mu)) / _channels(STD, mu)).movedim(2, 1).cpu().clone()

    @torch.inference_mode()
    def decode(self, latents: Tensor) -> np.ndarray:
        """Latents [1, F, 16, H, W] -> uint8 frames [T, 8H, 8W, 3]."""
        z = latents.to(self.device).float().movedim(1, 2)
        mu = (z * _channels(STD, z) + _channels(MEAN, z)).to(self.dtype)
        video = self.model.decode(mu).sample[0]
        return torch.stack([_bytes(frame) for frame in video.unbind(1)]).numpy()

    @property
    def model(self):
        """The diffusers AutoencoderKLWan. Raises UserError where it cannot be loaded or is no VAE of Wan2.1's form."""
        if not hasattr(self, "_model"):
            from diffusers import AutoencoderKLWan

            model = load_part(AutoencoderKLWan, "vae", self.folder, torch_dtype=self.dtype)
            form = (model.config.z_dim, model.config.scale_factor_spatial, model.config.scale_factor_temporal)
            if form != (CHANNELS, STRIDE, FRAMES):
                raise UserError(
                    f"model.vae={self.folder} has {form[0]} channels and strides {form[1]} and {form[2]}; the VAE of "
                    f"Wan2.1 has {CHANNELS}, {STRIDE} and {FRAMES}"
                )
            if self.tiling:
                model.enable_tiling()
            self._model = model.to(self.device)
        return self._model


def _channels(values: tuple[float, ...], like: Tensor) -> Tensor:
    """[16] over the channels of [1, 16, F, H, W]."""
    return torch.tensor(values, device=like.device).view(1, -1, 1, 1, 1)


def _bytes(frame: Tensor) -> Tensor:
    """[3, H, W] in [-1, 1] -> uint8 [H, W, 3] on the CPU."""
    return ((frame.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).cpu()
