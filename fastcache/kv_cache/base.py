"""BaseKVCacheEngine: the contract every K/V engine of one branch keeps.

Three keys select an entry: the branch chooses the engine, ``cache_tag`` ("pos", "neg") a namespace inside it, and the
attention module its block. Self-attention K/V come as chunks in time order; K is rotated at absolute positions, so a
chunk may only follow the tokens already committed.

Lifecycle of a rollout and tag::

    register (once per model) -> clear -> ensure_capacity ->
        per chunk: denoising steps   attend_view; put_current_kv or scatter_current_kv if a method selects tokens
                   one store pass    attend_view, attention, append_self_kv, on every block
    -> clear or release

A (block, tag) is unallocated, empty, filling (len > 0), then empty again. A provisional chunk is absent, written in
full by put_current_kv, then committed (append_self_kv drops it) or dropped. Errors are raised before any state changes:

    UnregisteredModuleError  the module is not registered           UnknownTagError     the tag was never ensured
    KVSpecMismatchError      k, v differ from the spec              GradientStoreError  storing a live autograd graph
    CacheNotFilledError      nothing stored to read                 ChunkOrderError     double store, or a gap
    ChunkBoundaryError       a position inside a stored chunk       CapacityExceededError  over capacity_tokens
    SelectionError           a bad token index                      CrossAlreadyFilledError, GradientReadError  cross
    EvictedError             tokens that have left the window       NonFiniteError         NaN or infinity at commit

Storage, tags and cross entries: storage.py; modules: registration.py; payloads: entries.py.
Structure after the KV-cache package of FastGen (github.com/NVlabs/FastGen).
"""

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fastcache.kv_cache.entries import (
    KVSpec,
    SelfEntry,
    WorkingChunk,
    check_finite,
    check_kv,
    check_selection,
    check_storable,
    owned,
)
from fastcache.kv_cache.errors import CacheNotFilledError, CapacityExceededError, ChunkBoundaryError, ChunkOrderError
from fastcache.kv_cache.storage import KVStorage


class BaseKVCacheEngine(KVStorage):
    """Self-attention K/V of one branch. A subclass says how a chunk is held: _new_entry, _commit, _visible, _cut.

    All k and v are [B, tokens, heads, head_dim]. debug=True also looks for duplicates in selections and, on a GPU, for
    NaN at commit (host syncs).
    """

    piecewise = False  # attention should take the past from attend_pieces(), not from attend_view()
    relative = False  # K come and go unrotated; their positions count from the start of the window

    def __init__(self, debug: bool = False) -> None:
        super().__init__()
        self.debug = debug

    def self_len(self, module: nn.Module, *, cache_tag: str) -> int:
        """Committed tokens of the module's block, evicted ones included."""
        return self._lookup(self._self_kv, module, cache_tag).len

    def block_lens(self, cache_tag: str) -> dict[int, int]:
        """Committed tokens by block index; after a store pass all are equal."""
        self.spec(cache_tag)
        return {block: by_tag[cache_tag].len for block, by_tag in self._self_kv.items() if cache_tag in by_tag}

    def append_self_kv(self, module: nn.Module, k: Tensor, v: Tensor, *, cache_tag: str, start_token: int) -> None:
        """Commit one chunk and drop its provisional K/V. Takes ownership of k and v: do not write to them again.

        Raises ChunkOrderError unless start_token is the committed length, CapacityExceededError, KVSpecMismatchError,
        GradientStoreError, NonFiniteError.
        """
        entry = self._writable(module, k, v, cache_tag, start_token)
        check_finite(k, v, self._where(module, cache_tag), self.debug)
        self._commit(entry, k.detach(), v.detach())
        entry.ends.append(start_token + k.shape[1])
        self._working.get(self.block_index(module), {}).pop(cache_tag, None)

    def get_self_prefix(
        self, module: nn.Module, *, cache_tag: str, end_token: int | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Visible committed K/V before end_token (default: all), or None if no token is visible. Read only.

        Raises ChunkBoundaryError, CacheNotFilledError (nothing stored), ChunkOrderError (end_token beyond the end).
        """
        entry = self._lookup(self._self_kv, module, cache_tag)
        k, v = self._prefix(entry, self._where(module, cache_tag), entry.len if end_token is None else end_token)
        return (join(k), join(v)) if k else None

    def attend_view(
        self, module: nn.Module, k: Tensor, v: Tensor, *, cache_tag: str, start_token: int
    ) -> tuple[Tensor, Tensor]:
        """What the current chunk's queries attend to: the visible prefix before start_token, then k, v. Stores nothing.

        Gradients flow through k and v only. A start_token below the committed length sees the shorter prefix. Raises
        CacheNotFilledError (prefix expected, nothing stored), ChunkOrderError (gap), ChunkBoundaryError.
        """
        entry = self._lookup(self._self_kv, module, cache_tag)
        check_kv(self.spec(cache_tag), k, v)
        prefix_k, prefix_v = self._past(entry, self._where(module, cache_tag), start_token, k.shape[1])
        return join([*prefix_k, k]), join([*prefix_v, v])

    def attend_pieces(
        self, module: nn.Module, k: Tensor, v: Tensor, *, cache_tag: str, start_token: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What attend_view() gives, in pieces along the tokens; only the latest piece need be alive. Raises as it does,
        before the first piece."""
        return iter([self.attend_view(module, k, v, cache_tag=cache_tag, start_token=start_token)])

    def put_current_kv(
        self, module: nn.Module, k: Tensor, v: Tensor, *, cache_tag: str, start_token: int
    ) -> tuple[Tensor, Tensor]:
        """Hold k, v of a full denoising step as the provisional chunk, replacing an earlier one. Takes ownership.

        Returns k, v as they are held. Raises as append_self_kv(), NonFiniteError excepted.
        """
        entry = self._writable(module, k, v, cache_tag, start_token)
        chunk = self._hold(entry, k.detach(), v.detach(), start_token)
        self._working.setdefault(self.block_index(module), {})[cache_tag] = chunk
        return chunk.k, chunk.v

    def scatter_current_kv(
        self, module: nn.Module, index: Tensor, k: Tensor, v: Tensor, *, cache_tag: str, start_token: int
    ) -> tuple[Tensor, Tensor]:
        """Overwrite rows index (int64 [M], unique) of the provisional chunk by k, v [B, M, n, d]; returns all its rows.

        Raises CacheNotFilledError without a full put_current_kv() of this chunk, SelectionError, KVSpecMismatchError,
        GradientStoreError.
        """
        entry = self._lookup(self._self_kv, module, cache_tag)
        chunk = self._working.get(self.block_index(module), {}).get(cache_tag)
        if chunk is None or chunk.start_token != start_token:
            held = "none" if chunk is None else f"the chunk at token {chunk.start_token}"
            raise CacheNotFilledError(
                f"{self._where(module, cache_tag)}: a selective step at token {start_token} needs a full step of that "
                f"chunk first (held: {held})"
            )
        check_selection(index, chunk.k.shape[1], chunk.k.device, self.debug)
        check_kv(self.spec(cache_tag), k, v, tokens=index.numel())
        check_storable(k, v)
        self._overwrite(entry, chunk, index, k.detach(), v.detach())
        return chunk.k, chunk.v

    def get_current_kv(self, module: nn.Module, *, cache_tag: str) -> tuple[Tensor, Tensor]:
        """The provisional chunk [B, N, n, d]; raises CacheNotFilledError if there is none."""
        self._lookup(self._self_kv, module, cache_tag)
        chunk = self._working.get(self.block_index(module), {}).get(cache_tag)
        if chunk is None:
            raise CacheNotFilledError(f"{self._where(module, cache_tag)}: no provisional chunk")
        return chunk.k, chunk.v

    def truncate(self, cache_tag: str, end_token: int) -> None:
        """Drop committed chunks at or after end_token, and provisional ones, on all blocks.

        Raises ChunkBoundaryError, with nothing dropped, unless a chunk ends at end_token (or it is 0) on every block,
        EvictedError if what comes before it has left the window.
        """
        self.spec(cache_tag)
        entries = {block: by_tag[cache_tag] for block, by_tag in self._self_kv.items() if cache_tag in by_tag}
        for block, entry in entries.items():
            self._check_cut(entry, end_token, f"block {block}, tag {cache_tag!r}")
        for entry in entries.values():
            self._cut(entry, end_token)
            entry.ends = [end for end in entry.ends if end <= end_token]
        self.drop_current(cache_tag)

    def _writable(self, module: nn.Module, k: Tensor, v: Tensor, cache_tag: str, start_token: int) -> SelfEntry:
        entry = self._lookup(self._self_kv, module, cache_tag)
        spec, where = self.spec(cache_tag), self._where(module, cache_tag)
        check_kv(spec, k, v)
        check_storable(k, v)
        if start_token != entry.len:
            what = "double store" if start_token < entry.len else "gap"
            raise ChunkOrderError(f"{where}: {what}: chunk at token {start_token}, {entry.len} tokens are committed")
        self._check_room(entry, spec, k.shape[1], where)
        return entry

    def _check_room(self, entry: SelfEntry, spec: KVSpec, tokens: int, where: str) -> None:
        """Raise CapacityExceededError unless a chunk of so many tokens fits behind the committed ones."""
        if spec.capacity_tokens is not None and entry.len + tokens > spec.capacity_tokens:
            raise CapacityExceededError(
                f"{where}: {entry.len} tokens + a chunk of {tokens} exceed the capacity of {spec.capacity_tokens}"
            )

    def _check_cut(self, entry: SelfEntry, end_token: int, where: str) -> None:
        _check_boundary(entry, end_token, where)

    def _past(self, entry: SelfEntry, where: str, start_token: int, tokens: int) -> tuple[list[Tensor], list[Tensor]]:
        """The committed K and V that a chunk of so many tokens at start_token sees, as pieces in attention order."""
        self._check_past(entry, where, start_token, tokens)
        return self._visible(entry, start_token)

    def _check_past(self, entry: SelfEntry, where: str, start_token: int, tokens: int) -> None:
        """Raise what _past() raises."""
        self._check_prefix(entry, where, start_token)

    def _prefix(self, entry: SelfEntry, where: str, end_token: int) -> tuple[list[Tensor], list[Tensor]]:
        self._check_prefix(entry, where, end_token)
        return self._visible(entry, end_token)

    def _check_prefix(self, entry: SelfEntry, where: str, end_token: int) -> None:
        if end_token > 0 and entry.len == 0:
            raise CacheNotFilledError(f"{where}: {end_token} earlier tokens expected, none is stored")
        if end_token > entry.len:
            raise ChunkOrderError(f"{where}: gap: {end_token} earlier tokens expected, {entry.len} are stored")
        _check_boundary(entry, end_token, where)

    def check_frames(self, frames_per_chunk: int, frames: int) -> None:
        """Raise UserError where this engine cannot serve a video of so many latent frames."""
        return None

    def share(self, frames: int, head_dim: int, item: int) -> float:
        """Device bytes of a video of so many latent frames / what raw K/V of ``item`` bytes a number take."""
        return 1.0

    def past_frames(self, start_frame: int, frames: int) -> int:
        """Rotary position, in latent frames, of the first of ``frames`` current frames that start at start_frame."""
        return start_frame

    def _hold(self, entry: SelfEntry, k: Tensor, v: Tensor, start_token: int) -> WorkingChunk:
        """The provisional chunk of k and v."""
        return WorkingChunk(owned(k), owned(v), start_token)

    def _overwrite(self, entry: SelfEntry, chunk: WorkingChunk, index: Tensor, k: Tensor, v: Tensor) -> None:
        """Put rows into the provisional chunk; here into fresh tensors, so that whoever holds the earlier ones keeps
        them."""
        chunk.k, chunk.v = chunk.k.index_copy(1, index, k), chunk.v.index_copy(1, index, v)

    @abstractmethod
    def _commit(self, entry: SelfEntry, k: Tensor, v: Tensor) -> None:
        """Hold one more chunk, detached; the caller extends entry.ends."""

    @abstractmethod
    def _visible(self, entry: SelfEntry, end_token: int) -> tuple[list[Tensor], list[Tensor]]:
        """The visible K and V before end_token, a chunk boundary, as pieces in attention order."""


def _check_boundary(entry: SelfEntry, end_token: int, where: str) -> None:
    if end_token != 0 and end_token not in entry.ends:
        raise ChunkBoundaryError(f"{where}: no chunk ends at token {end_token} (chunks end at {entry.ends})")


def join(pieces: list[Tensor]) -> Tensor:
    """One concatenation, and none for a single piece."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
