"""The bundled tiny models: an ordinary causal Wan DiT over 32x32 videos of the procedural world.

The input stage alone differs from Wan: constant features of where and when a patch is are added after patch
embedding, the text encoder turns words into numbers (fastcache.world), and latents are pixels in another basis.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fastcache.checkpoints.hashing import checkpoint_hash
from fastcache.errors import UserError
from fastcache.models.config import DiTConfig
from fastcache.models.dit import CausalWanDiT
from fastcache.models.tiny_latents import LATENT_SHAPE, decode
from fastcache.models.tiny_shown import IMAGE_DIM, IMAGE_LEN, SHOWN_CHANNELS, show_control, show_image
from fastcache.models.video_model import VideoModel
from fastcache.models.weights import load_weights
from fastcache.step import Grid
from fastcache.world.features import PATCH_DIM, PATCHES, TEXT_DIM, TEXT_LEN, patch_features, text_features
from fastcache.world.scene import FRAMES, SIZE, Scene, settle
from fastcache.world.words import read_prompt

FRAMES_PER_CHUNK = 3
WEIGHTS = Path(__file__).resolve().parent.parent / "weights"

LAYOUTS: dict[str, dict] = {
    "t2v": {},
    "i2v": {"in_dim": LATENT_SHAPE[0] + SHOWN_CHANNELS["image"], "image_dim": IMAGE_DIM, "image_len": IMAGE_LEN},
    "vace": {"vace_layers": (0, 2, 4), "vace_in_dim": SHOWN_CHANNELS["control"]},
}
SHOW = {"t2v": None, "i2v": show_image, "vace": show_control}


def tiny_config(
    layout: str = "t2v", dim: int = 192, layers: int = 6, heads: int = 4, precision: str = "sf_bf16"
) -> DiTConfig:
    """Sizes of a tiny DiT; RoPE bases fit its tiny grid, where 10000 would leave the angles nearly constant.

    Raises UserError on an unknown layout.
    """
    if layout not in LAYOUTS:
        raise UserError(f"layout={layout} is not one of {', '.join(LAYOUTS)}")
    sizes: dict = dict(
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
    return DiTConfig(**sizes | LAYOUTS[layout])


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


def describe(precision: str = "sf_bf16", layout: str = "t2v", **_: object) -> tuple[DiTConfig, tuple[int, int, int]]:
    """Sizes of the model that load() would build with these options, and the shape of its latent frames."""
    return tiny_config(layout, precision=precision), LATENT_SHAPE


def load(
    weights: str | Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    precision: str = "sf_bf16",
    name: str = "tiny_t2v",
    layout: str = "t2v",
) -> VideoModel:
    """A bundled model of one of the layouts t2v, i2v and vace, or the same architecture with other weights.

    Raises UserError where the layout is unknown and where the weights file is missing, damaged or of another shape.
    """
    path = Path(weights) if weights is not None else WEIGHTS / f"{name}.safetensors"
    with torch.device("meta"):
        dit = build(tiny_config(layout, precision=precision))
    load_weights(dit, path, dtype, device)
    return VideoModel(
        name=name,
        dit=dit,
        latent_shape=LATENT_SHAPE,
        frames_per_chunk=FRAMES_PER_CHUNK,
        weights_hash=checkpoint_hash(path),
        encode_prompt=encode_prompt,
        decode=decode,
        trained_frames=FRAMES,
        needs=dit.config.needs,
        frame_size=(SIZE, SIZE),
        show=SHOW[layout],
    )
