"""A random causal Wan DiT of a few thousand numbers, for tests: real blocks, real K/V, meaningless videos."""

import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle

from fastcache.errors import UserError
from fastcache.models.dit import CausalWanDiT, DiTConfig
from fastcache.models.precision import cast
from fastcache.models.video_model import VideoModel

LATENT_SHAPE = (12, 8, 8)
TEXT_LEN, TEXT_DIM = 8, 24
WEIGHT_STD = 0.15


def toy_config(layers: int = 2, precision: str = "sf_bf16") -> DiTConfig:
    """Head width 12: the three rotary axes get two channel pairs each."""
    return DiTConfig(
        dim=48,
        ffn_dim=96,
        num_heads=4,
        num_layers=layers,
        in_dim=LATENT_SHAPE[0],
        out_dim=LATENT_SHAPE[0],
        freq_dim=16,
        text_dim=TEXT_DIM,
        text_len=TEXT_LEN,
        precision=precision,
    )


def build(config: DiTConfig, seed: int = 0) -> CausalWanDiT:
    """A DiT whose every parameter is random, the ones that usually start at zero too: its outputs say something."""
    with torch.random.fork_rng(devices=[]):
        dit = CausalWanDiT(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in dit.named_parameters():
            gain = isinstance(dit.get_submodule(name.rpartition(".")[0]), nn.LayerNorm) or "norm_" in name
            middle = 1.0 if gain and name.endswith("weight") else 0.0
            weight.copy_(middle + WEIGHT_STD * torch.randn(weight.shape, generator=generator))
    return dit.eval().requires_grad_(False)


def encode_prompt(prompt: str, seed: int) -> Tensor:
    """[1, text_len, text_dim]: each word a random vector of its own, words past the end added to the first rows."""
    rows = torch.zeros(TEXT_LEN, TEXT_DIM)
    for i, word in enumerate(prompt.split()):
        key = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
        rows[i % TEXT_LEN] += torch.randn(TEXT_DIM, generator=torch.Generator().manual_seed(key))
    return rows[None]


def decode(latents: Tensor) -> np.ndarray:
    """Latents [1, F, 12, H, W] -> uint8 frames [F, 2H, 2W, 3]."""
    pixels = pixel_shuffle(latents[0].float().cpu(), 2).sigmoid().movedim(1, -1)
    return (pixels * 255).round().to(torch.uint8).numpy()


def describe(layers: int = 2, precision: str = "sf_bf16", **_: object) -> tuple[DiTConfig, tuple[int, int, int]]:
    """Sizes of the model that load() would build with these options, and the shape of its latent frames."""
    return toy_config(layers, precision), LATENT_SHAPE


def load(
    weights: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
    seed: int = 0,
    precision: str = "sf_bf16",
    frames_per_chunk: int = 3,
) -> VideoModel:
    """The toy model; equal ``layers`` and ``seed`` give equal weights. Raises UserError if given a weights file."""
    if weights is not None:
        raise UserError(f"weights={weights}: the toy model draws its weights from model.seed; leave the option out")
    dit = build(toy_config(layers, precision), seed)
    weights_hash = hashlib.sha256(b"".join(p.numpy().tobytes() for p in dit.parameters())).hexdigest()
    cast(dit, dtype)
    return VideoModel(
        name="toy",
        dit=dit.to(device),
        latent_shape=LATENT_SHAPE,
        frames_per_chunk=frames_per_chunk,
        weights_hash=weights_hash,
        encode_prompt=encode_prompt,
        decode=decode,
    )
