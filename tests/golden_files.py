"""Reading a folder of numeric fixtures: tensors, sizes and names all come from its files."""

import json
import re
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from fastcache.forwards import allocate
from fastcache.kv_cache import CausalContext, KVCacheEngine
from fastcache.models.config import DiTConfig
from fastcache.models.dit import CausalWanDiT
from fastcache.models.video_model import VideoModel
from fastcache.noise import Draw

PASSES, METHODS = "a_passes.safetensors", "d_methods.safetensors"
FILES = (
    "a_weights.safetensors",
    PASSES,
    "a_units.safetensors",
    "c_scheduler.json",
    "c_scheduler.safetensors",
    "c_rollout.safetensors",
    METHODS,
)
SUPPORTED = {"model_type": "t2v", "local_attn_size": -1, "sink_size": 0, "qk_norm": True, "cross_attn_norm": True}


def close(actual: torch.Tensor, expected: torch.Tensor, atol: float, what: str) -> None:
    """Largest absolute difference at most ``atol``, the same shape, nothing non-finite."""
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    assert bool(expected.isfinite().all()) and bool(actual.isfinite().all()), f"{what}: not finite"
    error = float((actual.detach().double() - expected.double()).abs().max())
    assert error <= atol, f"{what}: off by {error:.2e}, allowed {atol:.0e}"


class Golden:
    """One folder of fixtures. Files are read once; a file that is needed and absent fails the test by name."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.present = [name for name in FILES if (folder / name).is_file()]

    @cache  # noqa: B019  # lives as long as the test session
    def read(self, name: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Tensors and metadata of a safetensors file."""
        self._require(name)
        with safe_open(self.folder / name, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        return self.read(name)[0]

    def numbers(self, name: str) -> dict:
        self._require(name)
        return json.loads((self.folder / name).read_text())

    @cached_property
    def dit(self) -> CausalWanDiT:
        """The fixtures' model in float32, with vanilla engines."""
        weights, metadata = self.read("a_weights.safetensors")
        assert "config" in metadata, f"a_weights.safetensors in {self.folder} has no metadata key 'config'"
        config = json.loads(metadata["config"])
        other = {k: config[k] for k, v in SUPPORTED.items() if config.get(k, v) != v}
        assert not other, f"{self.folder}: the fixtures' model has {other}; supported here: {SUPPORTED}"
        dit = CausalWanDiT(DiTConfig.from_dict(config))
        dit.load_state_dict(weights)
        dit.set_kv_engines(lambda branch: KVCacheEngine())
        return dit.eval().requires_grad_(False)

    def model(self, noise: torch.Tensor, frames_per_chunk: int) -> VideoModel:
        return VideoModel(
            name="golden",
            dit=self.dit,
            latent_shape=tuple(noise.shape[2:]),
            frames_per_chunk=frames_per_chunk,
            weights_hash="",
            encode_prompt=lambda prompt, seed: torch.empty(0),
            decode=lambda latents: np.empty(0),
        )

    def _require(self, name: str) -> None:
        here = ", ".join(sorted(p.name for p in self.folder.glob("*"))) or "nothing"
        assert (self.folder / name).is_file(), f"{name} is missing in {self.folder} (it holds {here})"


def recorded_draws(noise: torch.Tensor, renoise: torch.Tensor) -> Draw:
    """Noise as the fixtures store it: ``noise`` [B, F, ...]; ``renoise`` [chunks, steps - 1, B * frames, ...]."""

    def draw(chunk_idx: int, step_idx: int, shape: tuple[int, ...]) -> torch.Tensor:
        if step_idx == 0:
            return noise.split(shape[1], dim=1)[chunk_idx]
        return renoise[chunk_idx, step_idx - 1].reshape(shape)

    return draw


class Passes:
    """Chunks of fixture A through one cache: ``prepare`` makes the forward of a pass, ``rows`` reads what it left."""

    def __init__(self, golden):
        self.dit, self.data = golden.dit, golden.tensors(PASSES)
        self.chunks = sorted({int(m[1]) for key in self.data if (m := re.match(r"chunk(\d+)\.", key))})
        self.frames = [self.data[f"chunk{c}.ctx.t"].shape[1] for c in self.chunks]
        self.text = self.dit.encode_context(self.data["prompt_embeds"])
        self.dit.clear_caches()
        self.seqlen = self.dit.grid(self.data["clean"]).tokens_per_frame
        allocate(self.dit, "pos", self.text.shape[0], sum(self.frames) * self.seqlen)

    def names(self, c):
        """Passes of a chunk, the one that stores last."""
        found = {m[1] for key in self.data if (m := re.match(rf"chunk{c}\.(\w+)\.t$", key))}
        return [*sorted(found - {"ctx"}), "ctx"]

    def input(self, c, name):
        start = sum(self.frames[:c])
        clean = self.data["clean"][:, start : start + self.frames[c]]
        return clean if name == "ctx" else self.data[f"chunk{c}.{name}.xt"]

    def prepare(self, c, name, store=False):
        ctx = CausalContext(
            cache_engines=self.dit.kv_cache_engines,
            cur_start_frame=sum(self.frames[:c]),
            num_frames=self.frames[c],
            frame_seqlen=self.seqlen,
            store_kv=store,
            is_ar=True,
            keep_current=not store,
        )
        return self.dit.prepare(self.input(c, name), self.data[f"chunk{c}.{name}.t"], self.text, ctx)

    def rows(self, c, block_idx, stored):
        """K and V of this chunk in one block."""
        module, engine = self.dit.blocks[block_idx].self_attn, self.dit.kv_cache_engines["main"]
        if not stored:
            return engine.get_current_kv(module, cache_tag="pos")
        k, v = engine.get_self_prefix(module, cache_tag="pos")
        start, size = sum(self.frames[:c]) * self.seqlen, self.frames[c] * self.seqlen
        return k[:, start : start + size], v[:, start : start + size]
