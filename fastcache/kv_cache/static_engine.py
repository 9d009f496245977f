"""StaticKVCacheEngine: one preallocated K and one V buffer per block, written in place, read as a view.

Payload of an entry: ``keys`` and ``values`` [B, capacity, n, d], allocated once by ensure_capacity(), and ``ends``. The
current chunk is written behind the committed tokens, at every step on the same rows, and attention reads one view
[prefix | current chunk]: no byte of the prefix is ever copied. A provisional chunk lives in those rows too; where
another forward needs them (a store pass), that chunk alone is set aside. Counters are Python ints: no host sync.

Two reads do copy: with grad enabled, because autograd may need what an in-place write would overwrite, and from a
position before the committed end, because the rows behind it are taken. A view that is held on to shows what is
written later, after clear() or truncate() too.

Lifecycle and errors: base.py. After the buffers of Self-Forcing (github.com/guandeh17/Self-Forcing).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastcache.kv_cache.base import BaseKVCacheEngine, join
from fastcache.kv_cache.entries import KVSpec, SelfEntry, WorkingChunk, check_kv
from fastcache.kv_cache.errors import KVSpecMismatchError


@dataclass(kw_only=True)
class StaticEntry(SelfEntry):
    """Committed tokens in the first ``held`` rows, whatever their absolute index."""

    keys: Tensor
    values: Tensor
    evicted: int = 0  # tokens that have left, always the oldest behind the sink
    sink: int = 0  # tokens that never leave
    window: int = 0  # tokens held at most, the current chunk included; 0: as many as the buffer

    @property
    def held(self) -> int:
        return self.len - self.evicted

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.keys, self.values)

    def row(self, token: int) -> int:
        """Where a token that is held lies."""
        return token if token <= self.sink else token - self.evicted

    def rows(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        return self.keys[:, start:end], self.values[:, start:end]


class StaticKVCacheEngine(BaseKVCacheEngine):
    """Needs a spec with capacity_tokens. Bitwise equal to the vanilla engine."""

    def attend_view(
        self, module: nn.Module, k: Tensor, v: Tensor, *, cache_tag: str, start_token: int
    ) -> tuple[Tensor, Tensor]:
        """As the base class, and CapacityExceededError already here, for k and v go into the buffer."""
        entry = self._lookup(self._self_kv, module, cache_tag)
        assert isinstance(entry, StaticEntry)
        spec, where = self.spec(cache_tag), self._where(module, cache_tag)
        check_kv(spec, k, v)
        if start_token < entry.len or torch.is_grad_enabled():
            past_k, past_v = self._past(entry, where, start_token, k.shape[1])
            return join([*past_k, k]), join([*past_v, v])
        self._check_past(entry, where, start_token, k.shape[1])
        self._check_room(entry, spec, k.shape[1], where)
        self._write(entry, k, v, self._working.get(self.block_index(module), {}).get(cache_tag))
        return entry.rows(0, entry.held + k.shape[1])

    def _check_spec(self, spec: KVSpec) -> None:
        if spec.capacity_tokens is None:
            raise KVSpecMismatchError(f"{type(self).__name__} preallocates: the spec must give capacity_tokens")

    def _buffer_tokens(self, spec: KVSpec) -> int:
        assert spec.capacity_tokens is not None
        return spec.capacity_tokens

    def _new_entry(self, spec: KVSpec) -> StaticEntry:
        shape = (spec.batch_size, self._buffer_tokens(spec), spec.num_heads, spec.head_dim)
        with torch.inference_mode(False):  # written to from anywhere
            keys = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
            return StaticEntry(keys=keys, values=torch.zeros_like(keys))

    def _hold(self, entry: SelfEntry, k: Tensor, v: Tensor, start_token: int) -> WorkingChunk:
        assert isinstance(entry, StaticEntry)
        return WorkingChunk(*self._write(entry, k, v), start_token)

    def _overwrite(self, entry: SelfEntry, chunk: WorkingChunk, index: Tensor, k: Tensor, v: Tensor) -> None:
        assert isinstance(entry, StaticEntry)
        chunk.k, chunk.v = self._write(entry, chunk.k, chunk.v)  # back into its rows, if it was set aside
        with torch.no_grad():
            chunk.k.index_copy_(1, index, k)
            chunk.v.index_copy_(1, index, v)

    def _commit(self, entry: SelfEntry, k: Tensor, v: Tensor) -> None:
        assert isinstance(entry, StaticEntry)
        self._write(entry, k, v)

    def _visible(self, entry: SelfEntry, end_token: int) -> tuple[list[Tensor], list[Tensor]]:
        assert isinstance(entry, StaticEntry)
        k, v = entry.rows(0, entry.row(end_token))
        return ([k], [v]) if end_token else ([], [])

    def _cut(self, entry: SelfEntry, end_token: int) -> None:
        assert isinstance(entry, StaticEntry)
        if end_token <= entry.sink:
            entry.evicted = 0

    def _make_room(self, entry: StaticEntry, tokens: int) -> None:
        """Evict what a chunk of so many tokens pushes out; nothing here."""

    def _write(
        self, entry: StaticEntry, k: Tensor, v: Tensor, working: WorkingChunk | None = None
    ) -> tuple[Tensor, Tensor]:
        """k and v into the rows behind the committed ones; returns the rows. A ``working`` chunk there makes way."""
        rows = entry.rows(entry.held, entry.held + k.shape[1])
        if _same(k, rows[0]) and _same(v, rows[1]):
            return rows
        if working is not None and _inside(working.k, entry.keys):
            working.k, working.v = working.k.clone(), working.v.clone()
        k, v = k.clone() if _inside(k, entry.keys) else k, v.clone() if _inside(v, entry.values) else v
        held = entry.held
        self._make_room(entry, k.shape[1])
        if entry.held != held:
            rows = entry.rows(entry.held, entry.held + k.shape[1])
        rows[0].copy_(k)  # outside any graph: the buffer wants no gradient, k and v are detached or grad is off
        rows[1].copy_(v)
        return rows


def _same(x: Tensor, rows: Tensor) -> bool:
    return x.data_ptr() == rows.data_ptr() and x.shape == rows.shape and x.stride() == rows.stride()


def _inside(x: Tensor, buffer: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
