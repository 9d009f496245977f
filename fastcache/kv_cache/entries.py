"""What an engine holds per block and cache_tag, and the checks tensors pass before they are held.

Shapes: B batch, N tokens, n heads, d head dim. K is already rotated, at absolute positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import isfinite

import torch
from torch import Tensor

from fastcache.kv_cache.errors import GradientStoreError, KVSpecMismatchError, NonFiniteError, SelectionError


@dataclass(frozen=True)
class KVSpec:
    """What every K and V of one cache_tag looks like.

    capacity_tokens None: unbounded; cross_len 0: no cross K/V; frame_tokens: tokens of a latent frame, for engines that
    count in frames.
    """

    batch_size: int
    num_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device | str
    capacity_tokens: int | None = None
    cross_len: int = 0
    frame_tokens: int | None = None

    def __post_init__(self) -> None:
        # a tensor on "cuda" says "cuda:0": resolve the index once, or no tensor would ever match
        object.__setattr__(self, "device", torch.empty(0, device=self.device).device)

    def differences(self, other: "KVSpec") -> list[str]:
        """["batch_size: 1 != 2", ...], empty when equal."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return [f"{name}: {mine} != {theirs}" for name, mine, theirs in pairs if mine != theirs]


@dataclass
class SelfEntry:
    """Committed self-attention K/V of one block: one [B, N_i, n, d] tensor per chunk, and where each chunk ends."""

    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # absolute token index just past each chunk

    @property
    def len(self) -> int:
        """Committed tokens, evicted ones included."""
        return self.ends[-1] if self.ends else 0

    def tensors(self) -> Iterator[Tensor]:
        """Everything held in the memory of the device that attends."""
        yield from self.k
        yield from self.v


@dataclass
class CrossEntry:
    """K/V [B, cross_len, n, d] of the whole cross-attention context: image tokens if any, then text tokens."""

    k: Tensor
    v: Tensor
    is_init: bool = False


@dataclass
class WorkingChunk:
    """Provisional K/V [B, N, n, d] of the chunk being denoised; it exists once a full forward has written it."""

    k: Tensor
    v: Tensor
    start_token: int


def check_kv(spec: KVSpec, k: Tensor, v: Tensor, tokens: int | None = None) -> None:
    """Raise KVSpecMismatchError unless k and v are [B, N, n, d] of this spec, N = tokens if given, else N > 0."""
    if k.shape != v.shape or k.ndim != 4:
        raise KVSpecMismatchError(f"k and v must be two [B, N, n, d] tensors: k {list(k.shape)}, v {list(v.shape)}")
    wrong = []
    for name, x in (("k", k), ("v", v)):
        batch, length, heads, dim = x.shape
        seen = {"batch_size": batch, "num_heads": heads, "head_dim": dim, "dtype": x.dtype, "device": x.device}
        for attribute, value in seen.items():
            if value != getattr(spec, attribute):
                wrong.append(f"{name} {attribute} {value} (spec: {getattr(spec, attribute)})")
        if length == 0 if tokens is None else length != tokens:
            wrong.append(f"{name} tokens {length} (expected: {'at least 1' if tokens is None else tokens})")
    if wrong:
        raise KVSpecMismatchError("; ".join(wrong))


def check_storable(k: Tensor, v: Tensor) -> None:
    """Raise GradientStoreError if storing k, v would cut them out of a running autograd graph."""
    if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
        raise GradientStoreError("K/V that require grad cannot be stored: run the store pass under torch.no_grad()")


def check_finite(k: Tensor, v: Tensor, where: str, debug: bool = False) -> None:
    """Raise NonFiniteError if k or v holds NaN or infinity: one bad token would reach every later chunk.

    Values are read only where that needs no host sync (CPU) or in debug mode.
    """
    for name, x in (("K", k), ("V", v)):
        if (debug or x.device.type == "cpu") and not all(isfinite(float(end)) for end in x.aminmax()):
            raise NonFiniteError(f"{where}: {name} holds NaN or infinity and is not stored")


def check_selection(index: Tensor, num_tokens: int, device: torch.device | str, debug: bool = False) -> None:
    """Raise SelectionError unless index is 1-D int64 on device with values in [0, num_tokens).

    Values are read only where that needs no host sync (CPU) or in debug mode, which also finds duplicates.
    """
    if index.ndim != 1 or index.dtype != torch.int64:
        raise SelectionError(f"a selection is a 1-D int64 tensor, not {index.ndim}-D {index.dtype}")
    if index.device != device:
        raise SelectionError(f"selection on {index.device}, K/V on {device}")
    if index.numel() and (debug or index.device.type == "cpu"):
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= num_tokens:
            raise SelectionError(f"selection spans {low}..{high}, the chunk has tokens 0..{num_tokens - 1}")
    if debug and index.unique().numel() != index.numel():
        raise SelectionError("selection holds a token twice")


def owned(x: Tensor) -> Tensor:
    """x detached, and cloned if it is a view into a larger storage that it would keep alive."""
    x = x.detach()
    return x.clone() if x.untyped_storage().nbytes() > x.numel() * x.element_size() else x
