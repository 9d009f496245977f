"""A random causal Wan DiT of a few thousand numbers, for tests: real blocks, real K/V, meaningless videos."""

import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from fastcache.condition import Condition
from fastcache.errors import UserError
from fastcache.models.config import DiTConfig
from fastcache.models.dit import CausalWanDiT
from fastcache.models.precision import cast
from fastcache.models.video_model import VideoModel

LATENT_SHAPE = (12, 8, 8)
FRAME_SIZE = (16, 16)
TEXT_LEN, TEXT_DIM = 8, 24
WEIGHT_STD = 0.15

IMAGE_LEN, IMAGE_DIM = 4, 20
CONTROL = 2 * LATENT_SHAPE[0] + 4
LAYOUTS = ("t2v", "i2v", "vace")


def toy_config(layers: int = 2, precision: str = "sf_bf16", layout: str = "t2v") -> DiTConfig:
    """Head width 12: the three rotary axes get two channel pairs each. A VACE block goes with every second block.

    Raises UserError on an unknown layout.
    """
    if layout not in LAYOUTS:
        raise UserError(f"layout={layout} is not one of {', '.join(LAYOUTS)}")
    sizes: dict = dict(
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
    if layout == "i2v":
        sizes |= {"in_dim": 2 * LATENT_SHAPE[0] + 4, "image_dim": IMAGE_DIM, "image_len": IMAGE_LEN}
    if layout == "vace":
        sizes |= {"vace_layers": tuple(range(0, layers, 2)), "vace_in_dim": CONTROL}
    return DiTConfig(**sizes)


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


def picture_latents(pixels: np.ndarray) -> Tensor:
    """uint8 [T, 16, 16, 3] -> latents [T, 12, 8, 8]."""
    return pixel_unshuffle(torch.from_numpy(pixels).movedim(-1, 1).float() / 127.5 - 1, 2)


def show_image(prompt: str, seed: int, frames: int, image: np.ndarray | None = None) -> Condition:
    latent = picture_latents(_drawn(prompt, 1)[0:1] if image is None else image[None])
    first = (torch.arange(frames) == 0).float()[:, None, None, None]
    mask = first.expand(-1, 4, *LATENT_SHAPE[1:])
    tokens = latent.flatten()[: IMAGE_LEN * IMAGE_DIM].view(1, IMAGE_LEN, IMAGE_DIM)
    return Condition(encode_prompt(prompt, seed), tokens, torch.cat((mask, first * latent), 1)[None])


def show_control(prompt: str, seed: int, frames: int, control: np.ndarray | None = None) -> Condition:
    video = picture_latents(_drawn(prompt, frames) if control is None else control[:frames])
    shown = torch.cat((torch.zeros_like(video), video, torch.ones(len(video), 4, *LATENT_SHAPE[1:])), 1)
    padded = torch.cat((shown, shown.new_zeros(frames - len(shown), *shown.shape[1:])))
    return Condition(encode_prompt(prompt, seed), control=padded[None])


def _drawn(prompt: str, frames: int) -> np.ndarray:
    """Random pixels that belong to a prompt, uint8 [frames, 16, 16, 3]."""
    key = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big")
    return np.random.default_rng(key).integers(0, 256, (frames, *FRAME_SIZE, 3), np.uint8)


def describe(
    layers: int = 2, precision: str = "sf_bf16", layout: str = "t2v", **_: object
) -> tuple[DiTConfig, tuple[int, int, int]]:
    """Sizes of the model that load() would build with these options, and the shape of its latent frames."""
    return toy_config(layers, precision, layout), LATENT_SHAPE


def load(
    weights: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
    seed: int = 0,
    precision: str = "sf_bf16",
    frames_per_chunk: int = 3,
    layout: str = "t2v",
) -> VideoModel:
    """The toy model; equal ``layers`` and ``seed`` give equal weights. Raises UserError if given a weights file."""
    if weights is not None:
        raise UserError(f"weights={weights}: the toy model draws its weights from model.seed; leave the option out")
    dit = build(toy_config(layers, precision, layout), seed)
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
        needs=dit.config.needs,
        frame_size=FRAME_SIZE,
        show={"t2v": None, "i2v": show_image, "vace": show_control}[layout],
    )
