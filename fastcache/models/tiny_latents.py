"""Latents of the tiny models: pixels in another basis, exactly invertible, instead of a VAE."""

import numpy as np
import torch
from torch import Tensor

LATENT_SHAPE = (12, 16, 16)

# Orthonormal colour basis (light, red-green, blue-yellow); offset and scale make latents zero-mean, unit-variance.
_BASIS = torch.tensor([[1, 1, 1], [1, -1, 0], [-1, -1, 2]], dtype=torch.float64)
_BASIS = (_BASIS / _BASIS.norm(dim=1, keepdim=True)).float()
_OFFSET = torch.tensor([0.25, 0.21, 0.21])
_SCALE = 0.19


def encode(video: Tensor) -> Tensor:
    """Pixels [..., F, 32, 32, 3] in [0, 1] -> latents [..., F, 12, 16, 16]: colour rotation, pixel-unshuffle by 2."""
    x = ((video - _OFFSET) @ _BASIS.T / _SCALE).unflatten(-2, (-1, 2)).unflatten(-4, (-1, 2))
    return x.movedim((-1, -4, -2), (-5, -4, -3)).flatten(-5, -3)


def decode(latents: Tensor) -> np.ndarray:
    """Latents [1, F, 12, 16, 16] -> uint8 frames [F, 32, 32, 3]; the exact inverse of encode() up to rounding."""
    x = latents[0].float().cpu().unflatten(-3, (3, 2, 2)).movedim((-5, -4, -3), (-1, -4, -2))
    pixels = x.flatten(-3, -2).flatten(-4, -3) * _SCALE @ _BASIS + _OFFSET
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
