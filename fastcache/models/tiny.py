"""The bundled tiny models: an ordinary causal Wan DiT over 32x32 videos of the procedural world.

The input stage alone differs from Wan: constant features of where and when a patch is are added after patch
embedding, the text encoder turns words into numbers (fastcache.world), and latents are pixels in another basis.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fastcache.models.dit import CausalWanDiT, DiTConfig
from fastcache.models.precision import cast
from fastcache.models.video_model import VideoModel
from fastcache.models.weights import file_hash, load_weights
from fastcache.step import Grid
from fastcache.world.features import PATCH_DIM, PATCHES, TEXT_DIM, TEXT_LEN, patch_features, text_features
from fastcache.world.scene import FRAMES, Scene, settle
from fastcache.world.words import read_prompt

LATENT_SHAPE = (12, 16, 16)
FRAMES_PER_CHUNK = 3
WEIGHTS = Path(__file__).resolve().parent.parent / "weights"

# Orthonormal colour basis (light, red-green, blue-yellow); offset and scale make latents zero-mean, unit-variance.
_BASIS = torch.tensor([[1, 1, 1], [1, -1, 0], [-1, -1, 2]], dtype=torch.float64)
_BASIS = (_BASIS / _BASIS.norm(dim=1, keepdim=True)).float()
_OFFSET = torch.tensor([0.25, 0.21, 0.21])
_SCALE = 0.19


def tiny_config(dim: int = 192, layers: int = 6, heads: int = 4, precision: str = "sf_bf16") -> DiTConfig:
    """Sizes of a tiny DiT; RoPE bases fit its tiny grid, where 10000 would leave the angles nearly constant."""
    return DiTConfig(
        dim=dim,
        ffn_dim=4 * dim,
        num_heads=heads,
        num_layers=layers,
        in_dim=LATENT_SHAPE[0],
        out_dim=LATENT_SHAPE[0],
        freq_dim=64,
        text_dim=TEXT_DIM,
        text_len=TEXT_LEN,
        rope_theta=(100.0, 30.0, 30.0),
        precision=precision,
    )


class TokenFeatures(nn.Module):
    """Learned projection of the constant patch features (where and when), added to the patch tokens."""

    def __init__(self, dim: int):
        super().__init__()
        self.proj = nn.Linear(PATCH_DIM, dim, bias=False)

    def forward(self, start_frame: int, grid: Grid) -> Tensor:
        if (grid.height, grid.width) != (PATCHES, PATCHES):
            raise ValueError(f"tiny models have {PATCHES}x{PATCHES} patches a frame, not {grid.height}x{grid.width}")
        features = torch.from_numpy(patch_features(start_frame, grid.frames))
        return self.proj(features.to(self.proj.weight))


def encode(video: Tensor) -> Tensor:
    """Pixels [..., F, 32, 32, 3] in [0, 1] -> latents [..., F, 12, 16, 16]: colour rotation, pixel-unshuffle by 2."""
    x = ((video - _OFFSET) @ _BASIS.T / _SCALE).unflatten(-2, (-1, 2)).unflatten(-4, (-1, 2))
    return x.movedim((-1, -4, -2), (-5, -4, -3)).flatten(-5, -3)


def decode(latents: Tensor) -> np.ndarray:
    """Latents [1, F, 12, 16, 16] -> uint8 frames [F, 32, 32, 3]; the exact inverse of encode() up to rounding."""
    x = latents[0].float().cpu().unflatten(-3, (3, 2, 2)).movedim((-5, -4, -3), (-1, -4, -2))
    pixels = x.flatten(-3, -2).flatten(-4, -3) * _SCALE @ _BASIS + _OFFSET
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def encode_scene(scene: Scene) -> Tensor:
    return torch.from_numpy(text_features(scene))


def encode_prompt(prompt: str, seed: int) -> Tensor:
    """Prompt embeddings [1, text_len, text_dim]; ``seed`` settles positions and speeds that the words leave open."""
    return encode_scene(prompt_scene(prompt, seed))[None]


def prompt_scene(prompt: str, seed: int) -> Scene:
    """The scene, positions and speeds included, that ``encode_prompt`` tells the model of."""
    return settle(read_prompt(prompt), np.random.default_rng(seed))


def build(config: DiTConfig) -> CausalWanDiT:
    return CausalWanDiT(config, TokenFeatures(config.dim))


def describe(precision: str = "sf_bf16", **_: object) -> tuple[DiTConfig, tuple[int, int, int]]:
    """Sizes of the model that load() would build with these options, and the shape of its latent frames."""
    return tiny_config(precision=precision), LATENT_SHAPE


def load(
    weights: str | Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    precision: str = "sf_bf16",
    name: str = "tiny_t2v",
) -> VideoModel:
    """The bundled text-to-video model, or the same architecture with other weights.

    Raises UserError where the weights file is missing, damaged or of another shape.
    """
    path = Path(weights) if weights is not None else WEIGHTS / f"{name}.safetensors"
    dit = build(tiny_config(precision=precision))
    load_weights(dit, path)
    dit.eval().requires_grad_(False)
    cast(dit, dtype)
    return VideoModel(
        name=name,
        dit=dit.to(device),
        latent_shape=LATENT_SHAPE,
        frames_per_chunk=FRAMES_PER_CHUNK,
        weights_hash=file_hash(path),
        encode_prompt=encode_prompt,
        decode=decode,
        trained_frames=FRAMES,
    )
