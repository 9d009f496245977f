"""The toy of the arithmetic: a causal transformer that makes one position at a time, with and without a K/V engine."""

from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fastcache.kv_cache import BaseKVCacheEngine, KVSpec, StaticKVCacheEngine

HEAD_DIM = 64
TAG = "pos"


class Layer(nn.Module):
    """Self-attention and an MLP over [1, N, dim]. ``computed`` counts the positions that went through."""

    def __init__(self, dim: int):
        super().__init__()
        self.self_attn = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.norm = nn.LayerNorm(dim)
        self.computed = 0

    def forward(self, x: Tensor, engine: BaseKVCacheEngine | None, start: int) -> Tensor:
        self.computed += x.shape[1]
        q, k, v = (y.unflatten(-1, (-1, HEAD_DIM)) for y in self.self_attn(self.norm(x)).chunk(3, dim=-1))
        keys, values = k, v
        if engine is not None:
            keys, values = engine.attend_view(self.self_attn, k, v, cache_tag=TAG, start_token=start)
            engine.append_self_kv(self.self_attn, k, v, cache_tag=TAG, start_token=start)
        q, keys, values = q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        y = scaled_dot_product_attention(q, keys, values, is_causal=x.shape[1] > 1)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, layers: int, dim: int):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.blocks = nn.ModuleList(Layer(dim) for _ in range(layers))
        self.dim = dim
        self.requires_grad_(False)

    def forward(self, x: Tensor, engine: BaseKVCacheEngine | None = None, start: int = 0) -> Tensor:
        for block in self.blocks:
            x = block(x, engine, start)
        return x

    @property
    def computed(self) -> int:
        return sum(int(block.computed) for block in self.blocks)  # type: ignore[arg-type, misc]

    def engine(self, capacity: int) -> StaticKVCacheEngine:
        made = StaticKVCacheEngine()
        made.register_blocks(self.blocks)
        made.ensure_capacity(TAG, KVSpec(1, self.dim // HEAD_DIM, HEAD_DIM, torch.float32, "cpu", capacity))
        return made


def recompute(decoder: Decoder, prompt: Tensor, new: int) -> Tensor:
    """``new`` positions [1, new, dim] after prompt [1, N, dim], each from all positions before it."""
    x = prompt
    for _ in range(new):
        x = torch.cat([x, decoder(x)[:, -1:]], 1)
    return x[:, prompt.shape[1] :]


def cached(decoder: Decoder, prompt: Tensor, new: int) -> Tensor:
    """The same against cached K/V. The last new position is fed back too, as a rollout that goes on would."""
    engine = decoder.engine(prompt.shape[1] + new)
    y = decoder(prompt, engine)[:, -1:]
    made = [y]
    for i in range(new):
        y = decoder(y, engine, prompt.shape[1] + i)
        made.append(y)
    return torch.cat(made[:new], 1)


class Measured(NamedTuple):
    """Positions that went through all layers, the largest difference of the outputs, and time without / time with."""

    without: int
    cached: int
    difference: float
    speedup: float


@torch.inference_mode()
def measure(layers: int = 4, prompt: int = 3, new: int = 10, dim: int = 512, repeats: int = 5) -> Measured:
    """Both ways, one after the other, ``repeats`` times."""
    decoder = Decoder(layers, dim)
    first = torch.randn(1, prompt, dim, generator=torch.Generator().manual_seed(1))
    counts, seconds, outputs = [], [], []
    for _ in range(repeats + 1):  # the first is a warm-up
        took = []
        for way in (recompute, cached):
            before, began = decoder.computed, perf_counter()
            outputs.append(way(decoder, first, new))
            took.append(perf_counter() - began)
            counts.append(decoder.computed - before)
        seconds.append(took[0] / took[1])
    difference = float((outputs[0] - outputs[1]).abs().max())
    return Measured(counts[0], counts[1], difference, median(seconds[1:]))


@torch.inference_mode()
def one_more(layers: int = 12, positions: int = 1000, dim: int = 512, repeats: int = 2) -> float:
    """Time of the next position after so many: all of them again / that one against the cache."""
    decoder = Decoder(layers, dim)
    x = torch.randn(1, positions, dim, generator=torch.Generator().manual_seed(1))
    engine = decoder.engine(positions + 1)
    decoder(x[:, :-1], engine)
    ratios = []
    for _ in range(repeats):
        began = perf_counter()
        decoder(x)
        between = perf_counter()
        decoder(x[:, -1:], engine, positions - 1)
        ratios.append((between - began) / (perf_counter() - between))
        engine.truncate(TAG, positions - 1)
    return median(ratios)
