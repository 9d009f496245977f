"""Packed storage of K/V: 8-bit integers, or two 4-bit ones a byte, with their scales.

A value x is kept as round((x - low) / scale), 8 bits symmetric (low = 0), 4 bits with a low end. One scale (and low)
serves either a token and head (``per="token"``), or a channel over a group of 64 tokens (``per="channel"``; keys have
channels far larger than the rest: KIVI, arXiv 2402.02750). Both are bfloat16, rounded so that the range is covered: the
error of a value is at most half a scale, plus the rounding of the dtype it is read in.

Packing and unpacking go through the tokens in steps, so that no wide copy of a whole chunk is made.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 64  # tokens
SCALE = torch.bfloat16


@dataclass
class Packed:
    """N tokens [B, N, n, d]: data [B, N, n, d] int8 or [B, N, n, d / 2] uint8; scale and low [B, N, n, 1] per token or
    [B, ceil(N / 64), n, d] per channel, low None for 8 bits."""

    data: Tensor
    scale: Tensor
    low: Tensor | None
    per: str

    @property
    def tokens(self) -> int:
        return self.data.shape[1]

    def tensors(self) -> Iterator[Tensor]:
        yield self.data
        yield self.scale
        if self.low is not None:
            yield self.low


def pack(x: Tensor, bits: int, per: str) -> Packed:
    """Quantise x [B, N, n, d]; bits 8 or 4, d even for 4."""
    batch, tokens, heads, dim = x.shape
    data = (
        torch.empty(x.shape, dtype=torch.int8, device=x.device)
        if bits == 8
        else torch.empty((batch, tokens, heads, dim // 2), dtype=torch.uint8, device=x.device)
    )
    shape = (batch, tokens, heads, 1) if per == "token" else (batch, -(-tokens // GROUP), heads, dim)
    scale = torch.empty(shape, dtype=SCALE, device=x.device)
    low = torch.empty_like(scale) if bits == 4 else None
    for start in range(0, tokens, GROUP):
        part = x[:, start : start + GROUP].to(torch.float32, copy=True)
        at = _scales(per, start, start + GROUP)
        dim_of = {"token": -1, "channel": 1}[per]
        if low is None:
            most = torch.maximum(part.amax(dim_of, keepdim=True), -part.amin(dim_of, keepdim=True))
            scale[:, at] = _round(most / 127, up=True)
            data[:, start : start + GROUP] = part.div_(_safe(scale[:, at])).round_()
        else:
            low[:, at] = _round(part.amin(dim_of, keepdim=True), up=False)
            part.sub_(low[:, at])
            scale[:, at] = _round(part.amax(dim_of, keepdim=True) / 15, up=True)
            part = part.div_(_safe(scale[:, at])).round_().to(torch.uint8)
            data[:, start : start + GROUP] = part[..., 0::2] | (part[..., 1::2] << 4)
    return Packed(data, scale, low, per)


def unpack(packed: Packed, start: int, end: int, out: Tensor) -> Tensor:
    """Tokens start to end, start a multiple of 64, into ``out`` [B, end - start, n, d], which is returned."""
    step = end - start if packed.per == "token" else GROUP
    for first in range(start, end, step):
        last = min(first + step, end)
        data, to = packed.data[:, first:last], out[:, first - start : last - start]
        scale = packed.scale[:, _scales(packed.per, first, last)].to(out.dtype)
        if packed.low is None:
            torch.mul(data, scale, out=to)
        else:
            to[..., 0::2] = data & 15
            to[..., 1::2] = data >> 4
            to.mul_(scale).add_(packed.low[:, _scales(packed.per, first, last)].to(out.dtype))
    return out


def _scales(per: str, start: int, end: int) -> slice:
    """The scales of tokens start to end; per channel, of one group."""
    return slice(start, end) if per == "token" else slice(start // GROUP, start // GROUP + 1)


def _safe(scale: Tensor) -> Tensor:
    """A divisor: all values are equal where the scale is 0."""
    return scale.float().clamp_min(torch.finfo(SCALE).tiny)


def _round(x: Tensor, up: bool) -> Tensor:
    """float32 to the scale's dtype, never below x (up) or never above it."""
    near = x.to(SCALE)
    wrong = near.float() < x if up else near.float() > x
    return torch.where(wrong, torch.nextafter(near, torch.full_like(near, float("inf") if up else -float("inf"))), near)
