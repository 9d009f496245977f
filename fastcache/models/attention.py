"""Where attention meets the K/V engines: the only file of the model that knows a cache exists."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fastcache.kv_cache import CausalContext


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention of q [B, M, heads, d] over k, v [B, N, heads, d] -> [B, M, heads * d]; scale 1/sqrt(d)."""
    out = scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.transpose(1, 2).flatten(2)


def attend_pieces(q: Tensor, pieces: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """attend() over K/V that come in pieces along the tokens, of which one need be alive at a time (online softmax:
    Milakov and Gimelshein, arXiv 1805.02867). Sums in float32; equal to attend() up to rounding."""
    query = q.transpose(1, 2)
    out, norm = query.new_zeros(query.shape, dtype=torch.float32), None
    for k, v in pieces:
        part, part_norm = _attend_with_norm(query, k.transpose(1, 2), v.transpose(1, 2))
        new = part_norm if norm is None else torch.logaddexp(norm, part_norm)
        if norm is not None:
            out.mul_((norm - new).exp_()[..., None])
        out.addcmul_(part.float(), (part_norm - new).exp_()[..., None])
        norm = new
        del k, v, part
    return out.to(q.dtype).transpose(1, 2).flatten(2)


def _attend_with_norm(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of q, k, v [B, heads, tokens, d] and the log of its softmax denominator, float32 [B, heads, M]."""
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[:2]
    if q.device.type == "cuda" and q.dtype != torch.float32 and q.shape[-1] % 8 == 0:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[:2]
    scores = torch.matmul(q.float(), k.float().mT) / q.shape[-1] ** 0.5
    norm = scores.logsumexp(-1)
    return torch.matmul((scores - norm[..., None]).exp_(), v.float()), norm


class AttentionPlan(Protocol):
    """How the tokens of one forward see each other and the past. ``raw_keys``: k are wanted unrotated."""

    raw_keys: bool

    def self_attention(self, module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rotated q, k and v [B, M, heads, d] of this forward's tokens -> [B, M, heads * d]."""
        ...

    def cross_kv(self, module: nn.Module, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """K/V of the cross-attention context, projected now or read from the engine."""
        ...


class CachedAttention:
    """Attention over [cached prefix | current chunk] as CausalContext asks, engines found by module ownership.

    With no engines it is plain attention under ``ctx.block_mask``. Write before read: a selective forward puts its
    rows into the provisional chunk before its queries attend. A store pass commits after attending.

    ``window_rope`` [visible tokens, 2, d / 2], where positions are relative to the visible window: keys are then kept
    unrotated and rotated by it here, at each read.
    """

    def __init__(self, ctx: CausalContext, window_rope: Tensor | None = None):
        self.ctx, self.window_rope = ctx, window_rope
        self.raw_keys = window_rope is not None

    def self_attention(self, module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx = self.ctx
        engine = ctx.resolve_registered_engine(module)
        if engine is None:
            return attend(q, k, v, ctx.block_mask)
        where: Any = {"cache_tag": ctx.cache_tag, "start_token": ctx.start_token}
        if ctx.sel is not None:
            k, v = engine.scatter_current_kv(module, ctx.sel, k, v, **where)
        elif ctx.keep_current and not ctx.store_kv:
            k, v = engine.put_current_kv(module, k, v, **where)
        if engine.piecewise:
            out = attend_pieces(q, engine.attend_pieces(module, k, v, **where))
        else:
            keys, values = engine.attend_view(module, k, v, **where)
            out = attend(q, keys if self.window_rope is None else module.rotate(keys, self.window_rope), values)
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
