"""VanillaKVCacheEngine: self-attention K/V as a list with one tensor per committed chunk.

Payload of an entry: ``k`` and ``v``, lists of [B, N_i, n, d] tensors, and ``ends``, with ``len`` the sum of N_i. Chunks
may differ in size and are never merged or written in place, so whoever holds a prefix may keep it. The list grows
without bound unless the spec has capacity_tokens. Attention runs on one concatenation [prefix | current chunk] per
call, and on the current chunk itself while nothing is committed.

Lifecycle and errors: base.py.
"""

from torch import Tensor

from fastcache.kv_cache.base import BaseKVCacheEngine
from fastcache.kv_cache.entries import KVSpec, SelfEntry, owned


class VanillaKVCacheEngine(BaseKVCacheEngine):
    """Raw chunks, dense cross entries."""

    def _new_entry(self, spec: KVSpec) -> SelfEntry:
        return SelfEntry()

    def _commit(self, entry: SelfEntry, k: Tensor, v: Tensor) -> None:
        entry.k.append(owned(k))
        entry.v.append(owned(v))

    def _visible(self, entry: SelfEntry, end_token: int) -> tuple[list[Tensor], list[Tensor]]:
        count = sum(end <= end_token for end in entry.ends)
        return entry.k[:count], entry.v[:count]

    def _cut(self, entry: SelfEntry, end_token: int) -> None:
        count = sum(end <= end_token for end in entry.ends)
        del entry.k[count:], entry.v[count:]
