"""QuantizedKVCacheEngine: committed chunks in 8 or 4 bits, the chunk being denoised in full precision.

Payload of an entry: lists ``k`` and ``v`` of packed chunks (packing.py) and ``ends``. A chunk is quantised once, when
it is committed. Attention reads the past piece by piece (attend_pieces): a piece is unpacked, attended to and dropped,
so that beside the packed cache only one piece of one block is ever alive in full precision. attend_view() and
get_self_prefix() unpack one block's whole past, for whoever asks.

Lifecycle and errors: base.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fastcache.errors import UserError
from fastcache.kv_cache.base import BaseKVCacheEngine
from fastcache.kv_cache.entries import KVSpec, SelfEntry, check_kv
from fastcache.kv_cache.errors import KVSpecMismatchError
from fastcache.kv_cache.packing import GROUP, Packed, pack, unpack

BITS = (8, 4)
KEYS = ("token", "channel")
PIECES = 16  # a piece is a sixteenth of the past, at least a group, at most a chunk


@dataclass(kw_only=True)
class PackedEntry(SelfEntry):
    """Committed chunks in packed form; ``k`` and ``v`` of the base class stay empty."""

    packed_k: list[Packed] = field(default_factory=list)
    packed_v: list[Packed] = field(default_factory=list)
    dtype: torch.dtype

    def tensors(self) -> Iterator[Tensor]:
        for packed in (*self.packed_k, *self.packed_v):
            yield from packed.tensors()

    def read(self, place: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Tokens start to end of the committed chunk at that place, in full precision."""
        k, v = self.packed_k[place], self.packed_v[place]
        return self._full(k, start, end), self._full(v, start, end)

    def _full(self, packed: Packed, start: int, end: int) -> Tensor:
        batch, _, heads, width = packed.data.shape
        dim = width * (2 if packed.low is not None else 1)
        out = torch.empty((batch, end - start, heads, dim), dtype=self.dtype, device=packed.data.device)
        return unpack(packed, start, end, out)


class QuantizedKVCacheEngine(BaseKVCacheEngine):
    """``bits`` 8 or 4; ``keys`` says what shares a scale among keys, a token and head or a channel of a group of
    tokens; values always have one per token and head. Raises UserError on anything else."""

    piecewise = True

    def __init__(self, bits: int = 8, keys: str = "token", debug: bool = False) -> None:
        super().__init__(debug)
        if isinstance(bits, bool) or bits not in BITS:
            raise UserError(f"engine.bits={bits} is not one of 8, 4; type engine=int8 or engine=int4")
        if keys not in KEYS:
            raise UserError(f"engine.keys={keys} is not one of {', '.join(KEYS)}")
        self.bits, self.keys = bits, keys

    def attend_pieces(
        self, module: nn.Module, k: Tensor, v: Tensor, *, cache_tag: str, start_token: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        entry = self._lookup(self._self_kv, module, cache_tag)
        check_kv(self.spec(cache_tag), k, v)
        self._check_prefix(entry, self._where(module, cache_tag), start_token)
        return self._pieces(entry, k, v, start_token)

    def share(self, frames: int, head_dim: int, item: int) -> float:
        return (head_dim * self.bits / 8 + (2 if self.bits == 8 else 4)) / (head_dim * item)

    @staticmethod
    def _pieces(entry: SelfEntry, k: Tensor, v: Tensor, end_token: int) -> Iterator[tuple[Tensor, Tensor]]:
        assert isinstance(entry, PackedEntry)
        step = max(GROUP, end_token // PIECES // GROUP * GROUP)
        for place, packed in enumerate(entry.packed_k[: sum(end <= end_token for end in entry.ends)]):
            for start in range(0, packed.tokens, step):
                yield entry.read(place, start, min(start + step, packed.tokens))
        yield k, v

    def _check_spec(self, spec: KVSpec) -> None:
        if self.bits == 4 and spec.head_dim % 2:
            raise KVSpecMismatchError(f"head_dim {spec.head_dim} is odd: two 4-bit values share a byte")

    def _new_entry(self, spec: KVSpec) -> PackedEntry:
        return PackedEntry(dtype=spec.dtype)

    def _commit(self, entry: SelfEntry, k: Tensor, v: Tensor) -> None:
        assert isinstance(entry, PackedEntry)
        with torch.no_grad():
            packed = pack(k, self.bits, self.keys), pack(v, self.bits, "token")
        entry.packed_k.append(packed[0])
        entry.packed_v.append(packed[1])

    def _visible(self, entry: SelfEntry, end_token: int) -> tuple[list[Tensor], list[Tensor]]:
        assert isinstance(entry, PackedEntry)
        count = sum(end <= end_token for end in entry.ends)
        with torch.no_grad():
            read = [entry.read(i, 0, entry.packed_k[i].tokens) for i in range(count)]
        return [k for k, _ in read], [v for _, v in read]

    def _cut(self, entry: SelfEntry, end_token: int) -> None:
        assert isinstance(entry, PackedEntry)
        count = sum(end <= end_token for end in entry.ends)
        del entry.packed_k[count:], entry.packed_v[count:]
