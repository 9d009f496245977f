"""The engines side by side on K/V of a real rollout: bytes, their peak, errors of K, V and of attention's output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fastcache import catalog
from fastcache.allocations import peak_bytes
from fastcache.build import build
from fastcache.kv_cache import BaseKVCacheEngine, CausalContext, KVSpec
from fastcache.models.attention import CachedAttention, attend_pieces
from fastcache.models.blocks import run_blocks
from fastcache.models.rows import Rows
from fastcache.study import arithmetic

NAMES = ("vanilla", "static", "window", "int8", "int4", "offload")
TAG = "pos"


@dataclass
class Row:
    """One engine. Errors are mean absolute differences over mean absolute values; None where nothing is compared."""

    name: str
    bytes: int
    host_bytes: int
    expected: int  # by the formula
    peak: int = 0  # bytes allocated at most while the video is stored and read
    bf16_share: float = 0.0  # peak over the bytes of the same K/V in bfloat16
    k_error: float | None = None
    v_error: float | None = None
    attention_error: float | None = None


def make(name: str, modules: nn.ModuleList, spec: KVSpec) -> BaseKVCacheEngine:
    """A shipped engine that serves the blocks."""
    engine = build(catalog.load("engine", name))
    engine.register_blocks(modules)
    engine.ensure_capacity(TAG, spec)
    return engine


def expected_bytes(name: str, engine: Any, layers: int, spec: KVSpec) -> int:
    """Bytes that the formula gives for capacity_tokens committed tokens."""
    tokens, dim = spec.capacity_tokens or 0, spec.num_heads * spec.head_dim
    if name in ("int8", "int4"):
        return arithmetic.packed_bytes(layers, tokens, spec.num_heads, spec.head_dim, engine.bits)
    if name == "window":
        tokens = min(tokens, engine.window_frames * (spec.frame_tokens or 0))
    return arithmetic.cache_bytes(layers, tokens, dim, spec.dtype.itemsize)


def attention(block: Any) -> nn.Module:
    """The self-attention module of a block, by which engines know it."""
    return block.self_attn


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.Identity()


@torch.inference_mode()
def summary_bytes(layers: int = 12, positions: int = 1000, heads: int = 8, chunk: int = 100) -> list[Row]:
    """The memory example, measured: ``heads`` of 64 channels in float32, committed ``chunk`` positions at a time."""
    spec = KVSpec(1, heads, 64, torch.float32, "cpu", positions, frame_tokens=chunk // 4)
    modules = nn.ModuleList(_Blocks() for _ in range(layers))
    rows = []
    for name in NAMES:
        engine = make(name, modules, spec)
        for start in range(0, positions, chunk):
            for module in modules:
                k = torch.randn(1, chunk, heads, 64)
                engine.append_self_kv(attention(module), k, k.clone(), cache_tag=TAG, start_token=start)
        expected = expected_bytes(name, engine, layers, spec)
        rows.append(Row(name, engine.memory_bytes(), engine.host_bytes(), expected))
    return rows


class Compared(CachedAttention):
    """The attention of a forward, and how far off it would be with other engines on the same q, k and v."""

    def __init__(self, ctx: CausalContext, others: Mapping[str, BaseKVCacheEngine]):
        super().__init__(ctx)
        self.others = others
        self.off = dict.fromkeys(others, 0.0)
        self.size = 0.0

    def self_attention(self, module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = super().self_attention(module, q, k, v)
        where: Any = {"cache_tag": self.ctx.cache_tag, "start_token": self.ctx.start_token}
        for name, engine in self.others.items():
            self.off[name] += float((attend_pieces(q, engine.attend_pieces(module, k, v, **where)) - out).abs().mean())
        self.size += float(out.abs().mean())
        return out


@dataclass
class Filled:
    """A DiT whose default engine holds the chunks of a video but the last; that one's context and input."""

    dit: Any
    ctx: CausalContext
    latent: Tensor
    context: Tensor
    chunks: int = field(init=False)

    def __post_init__(self) -> None:
        self.chunks = self.ctx.cur_start_frame // self.ctx.num_frames


@torch.inference_mode()
def compare(filled: Filled) -> list[Row]:
    """Every engine on the K/V that ``filled`` holds, and under one denoising forward of its last chunk."""
    dit, ctx = filled.dit, filled.ctx
    source, blocks = dit.kv_cache_engines["main"], dit.blocks
    whole = source.spec(TAG)
    spec = KVSpec(
        1, whole.num_heads, whole.head_dim, whole.dtype, whole.device, ctx.end_token, frame_tokens=ctx.frame_seqlen
    )
    held = [source.get_self_prefix(attention(b), cache_tag=TAG, end_token=ctx.start_token) for b in blocks]
    engines, rows = {}, []
    for name in NAMES:
        engines[name], peak = peak_bytes(partial(_fill, name, blocks, spec, held, ctx))
        engine = engines[name]
        committed = KVSpec(
            1, spec.num_heads, spec.head_dim, spec.dtype, spec.device, ctx.start_token, frame_tokens=ctx.frame_seqlen
        )
        formula = expected_bytes(name, engine, len(blocks), spec if name == "static" else committed)
        row = Row(name, engine.memory_bytes(), engine.host_bytes(), formula, peak)
        row.bf16_share = peak / expected_bytes("vanilla", None, len(blocks), committed) * spec.dtype.itemsize / 2
        row.k_error, row.v_error = _errors(engine, blocks, held, name)
        rows.append(row)
    run = dit.prepare(filled.latent, torch.full((1, ctx.num_frames), 1000.0), filled.context, ctx)
    plan = Compared(ctx, engines)
    run_blocks(dit, run.x, run.control, run.e0, Rows(run.grid), run.rope, run.context, plan)
    for row in rows:
        row.attention_error = plan.off[row.name] / plan.size
    return rows


def _fill(name: str, blocks: nn.ModuleList, spec: KVSpec, held: list, ctx: CausalContext) -> BaseKVCacheEngine:
    """An engine with the same K/V, each chunk read once before it is stored, as a rollout does."""
    engine = make(name, blocks, spec)
    for start in range(0, ctx.start_token, ctx.num_tokens):
        for block, (k, v) in zip(blocks, held, strict=True):
            own = k[:, start : start + ctx.num_tokens], v[:, start : start + ctx.num_tokens]
            for piece in engine.attend_pieces(attention(block), *own, cache_tag=TAG, start_token=start):
                del piece
            engine.append_self_kv(attention(block), *own, cache_tag=TAG, start_token=start)
    return engine


def _errors(engine: BaseKVCacheEngine, blocks: nn.ModuleList, held: list, name: str) -> tuple[float | None, ...]:
    if name == "window":
        return None, None  # what it holds is exact
    off, size = [0.0, 0.0], [0.0, 0.0]
    for block, exact in zip(blocks, held, strict=True):
        got = engine.get_self_prefix(attention(block), cache_tag=TAG)
        assert got is not None
        for i in (0, 1):
            off[i] += float((got[i] - exact[i]).abs().mean())
            size[i] += float(exact[i].abs().mean())
    return off[0] / size[0], off[1] / size[1]
