"""Where attention meets the K/V engines: the only file of the model that knows a cache exists."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fastcache.kv_cache import CausalContext


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention of q [B, M, heads, d] over k, v [B, N, heads, d] -> [B, M, heads * d]; scale 1/sqrt(d)."""
    out = scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.transpose(1, 2).flatten(2)


class AttentionPlan(Protocol):
    """How the tokens of one forward see each other and the past."""

    def self_attention(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rotated q, k and v [B, M, heads, d] of this forward's tokens -> [B, M, heads * d]."""
        ...

    def cross_kv(self, module: nn.Module, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """K/V of the cross-attention context, projected now or read from the engine."""
        ...


class CachedAttention:
    """Attention over [cached prefix | current chunk] as CausalContext asks, engines found by module ownership.

    With no engines it is plain attention under ``ctx.block_mask``. Write before read: a selective forward puts its
    rows into the provisional chunk before its queries attend. A store pass commits after attending.
    """

    def __init__(self, ctx: CausalContext):
        self.ctx = ctx

    def self_attention(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx = self.ctx
        engine = ctx.resolve_registered_engine(module)
        if engine is None:
            return attend(q, k, v, ctx.block_mask)
        where: Any = {"cache_tag": ctx.cache_tag, "start_token": ctx.start_token}
        if ctx.sel is not None:
            k, v = engine.scatter_current_kv(module, ctx.sel, k, v, **where)
        elif ctx.keep_current and not ctx.store_kv:
            engine.put_current_kv(module, k, v, **where)
        keys, values = engine.attend_view(module, k, v, **where)
        out = attend(q, keys, values)
        if ctx.store_kv:
            engine.append_self_kv(module, k, v, **where)
        return out

    def cross_kv(self, module: nn.Module, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        ctx = self.ctx
        engine = ctx.resolve_registered_engine(module)
        if engine is None or torch.is_grad_enabled():
            return project()
        if engine.cross_is_init(module, cache_tag=ctx.cache_tag):
            return engine.get_cross_kv(module, cache_tag=ctx.cache_tag)
        k, v = project()
        if ctx.store_kv or ctx.cross_fill == "first_no_grad":
            engine.put_cross_kv(module, k, v, cache_tag=ctx.cache_tag)
        return k, v
