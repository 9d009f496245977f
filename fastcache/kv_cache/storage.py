"""Tags, their lifetime, and cross-attention entries: the part of an engine that no engine changes.

Entries are keyed ``_self_kv[block_idx][cache_tag]``, ``_cross_kv[block_idx][cache_tag]`` and
``_working[block_idx][cache_tag]``; tags are independent namespaces (the halves of classifier-free guidance).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fastcache.kv_cache.entries import CrossEntry, KVSpec, SelfEntry, WorkingChunk, check_kv
from fastcache.kv_cache.errors import (
    CacheNotFilledError,
    CrossAlreadyFilledError,
    GradientReadError,
    KVSpecMismatchError,
    UnknownTagError,
    UnregisteredModuleError,
)
from fastcache.kv_cache.registration import Registration

Entry = TypeVar("Entry", SelfEntry, CrossEntry, WorkingChunk)
ByBlock = dict[int, dict[str, Entry]]


class KVStorage(Registration, ABC):
    """Allocation, clearing and cross entries of one branch."""

    def __init__(self) -> None:
        super().__init__()
        self._specs: dict[str, KVSpec] = {}
        self._self_kv: ByBlock[SelfEntry] = {}
        self._cross_kv: ByBlock[CrossEntry] = {}
        self._working: ByBlock[WorkingChunk] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle keeps the options only: it comes up empty and unregistered, for ids are of this process's
        modules and a teacher's K/V are not its student's. The model that holds the copy registers its own modules."""
        return {**self.__dict__, **KVStorage._nothing()}

    @staticmethod
    def _nothing() -> dict[str, Any]:
        names = ("_module_to_block", "_slots", "_specs", "_self_kv", "_cross_kv", "_working")
        return {name: {} for name in names}

    def tags(self) -> tuple[str, ...]:
        return tuple(self._specs)

    def spec(self, cache_tag: str) -> KVSpec:
        """Raises UnknownTagError for a tag that was never ensured."""
        if cache_tag not in self._specs:
            known = ", ".join(self._specs) or "none"
            raise UnknownTagError(f"cache_tag {cache_tag!r} was never given to ensure_capacity (known: {known})")
        return self._specs[cache_tag]

    def ensure_capacity(self, cache_tag: str, spec: KVSpec, on_mismatch: str = "error") -> bool:
        """Give every registered block an empty self entry and, with cross_len, a zero cross entry, where it has none.

        Returns whether anything was created. Raises KVSpecMismatchError if the tag has another spec, unless
        on_mismatch="realloc", which releases this tag (no other) first, or if this engine cannot serve the spec;
        UnregisteredModuleError with no module.
        """
        if on_mismatch not in ("error", "realloc"):
            raise ValueError(f"on_mismatch {on_mismatch!r} is neither error nor realloc")
        blocks = self.block_indices
        if not blocks:
            raise UnregisteredModuleError("no attention module is registered; register the model's modules first")
        self._check_spec(spec)
        differences = self._specs[cache_tag].differences(spec) if cache_tag in self._specs else []
        if differences and on_mismatch == "error":
            raise KVSpecMismatchError(f"cache_tag {cache_tag!r} is allocated otherwise: {'; '.join(differences)}")
        if differences:
            self.release(cache_tag)
        missing = [block for block in blocks if cache_tag not in self._self_kv.get(block, {})]
        for block in missing:
            if spec.cross_len:
                self._cross_kv.setdefault(block, {})[cache_tag] = _zero_cross(spec)
            self._self_kv.setdefault(block, {})[cache_tag] = self._new_entry(spec)
        self._specs[cache_tag] = spec
        return bool(missing)

    def clear(self, cache_tag: str | None = None) -> None:
        """Empty one tag or all: self entries to length 0, cross entries zeroed in place and is_init False, provisional
        chunks dropped. Specs and allocations stay. Raises UnknownTagError."""
        for tag in self._named(cache_tag):
            for entry in self._of(self._self_kv, tag):
                self._cut(entry, 0)
                entry.ends.clear()
            for cross in self._of(self._cross_kv, tag):
                cross.k.zero_()
                cross.v.zero_()
                cross.is_init = False
            self.drop_current(tag)

    def release(self, cache_tag: str | None = None) -> None:
        """Free one tag or all and forget the spec. Raises UnknownTagError."""
        for tag in self._named(cache_tag):
            for store in (self._self_kv, self._cross_kv, self._working):
                for by_tag in store.values():
                    by_tag.pop(tag, None)  # type: ignore[attr-defined]
            del self._specs[tag]

    def drop_current(self, cache_tag: str) -> None:
        """Discard the provisional chunk of every block. Raises UnknownTagError."""
        self.spec(cache_tag)
        for by_tag in self._working.values():
            by_tag.pop(cache_tag, None)

    def memory_bytes(self, cache_tag: str | None = None) -> int:
        """Bytes held on every device: self, cross and provisional K/V, a shared storage counted once."""
        storages = {}
        for tag in self._named(cache_tag):
            for x in self._tensors(tag):
                storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return sum(storages.values())

    def cross_is_init(self, module: nn.Module, *, cache_tag: str) -> bool:
        """Whether the cross entry of the module's block has been written."""
        return self._lookup(self._cross_kv, module, cache_tag).is_init

    def put_cross_kv(self, module: nn.Module, k: Tensor, v: Tensor, *, cache_tag: str) -> None:
        """Copy the context's K/V [B, cross_len, n, d], detached, into the entry: once, then only after clear().

        Raises CrossAlreadyFilledError, KVSpecMismatchError, UnknownTagError, UnregisteredModuleError.
        """
        entry = self._lookup(self._cross_kv, module, cache_tag)
        check_kv(self.spec(cache_tag), k, v, tokens=self.spec(cache_tag).cross_len)
        if entry.is_init:
            raise CrossAlreadyFilledError(f"{self._where(module, cache_tag)}: cross K/V are filled; clear() first")
        with torch.no_grad():
            entry.k.copy_(k)
            entry.v.copy_(v)
        entry.is_init = True

    def get_cross_kv(self, module: nn.Module, *, cache_tag: str) -> tuple[Tensor, Tensor]:
        """K/V [B, cross_len, n, d] for a no-grad forward.

        Raises CacheNotFilledError before put_cross_kv(), GradientReadError with grad enabled (recompute then).
        """
        entry = self._lookup(self._cross_kv, module, cache_tag)
        if torch.is_grad_enabled():
            raise GradientReadError(f"{self._where(module, cache_tag)}: cross K/V read with grad enabled")
        if not entry.is_init:
            raise CacheNotFilledError(f"{self._where(module, cache_tag)}: cross K/V were never written")
        return entry.k, entry.v

    def _lookup(self, store: ByBlock[Entry], module: nn.Module, cache_tag: str) -> Entry:
        block_idx = self.block_index(module)
        self.spec(cache_tag)
        entry = store.get(block_idx, {}).get(cache_tag)
        if entry is None:
            raise UnknownTagError(f"block {block_idx}, tag {cache_tag!r}: no entry; call ensure_capacity()")
        return entry

    def _where(self, module: nn.Module, cache_tag: str) -> str:
        return f"block {self.block_index(module)}, tag {cache_tag!r}"

    def _named(self, cache_tag: str | None) -> tuple[str, ...]:
        if cache_tag is None:
            return self.tags()
        self.spec(cache_tag)
        return (cache_tag,)

    @staticmethod
    def _of(store: ByBlock[Entry], cache_tag: str) -> list[Entry]:
        return [by_tag[cache_tag] for by_tag in store.values() if cache_tag in by_tag]

    def _tensors(self, cache_tag: str) -> Iterator[Tensor]:
        for entry in self._of(self._self_kv, cache_tag):
            yield from entry.tensors()
        for cross in self._of(self._cross_kv, cache_tag):
            yield from (cross.k, cross.v)
        for chunk in self._of(self._working, cache_tag):
            yield from (chunk.k, chunk.v)

    def host_bytes(self, cache_tag: str | None = None) -> int:
        """Bytes of self K/V held elsewhere than on the device that attends: in pinned memory or in a file."""
        self._named(cache_tag)
        return 0

    def _check_spec(self, spec: KVSpec) -> None:
        """Raise KVSpecMismatchError where this engine cannot serve the spec."""
        return None

    @abstractmethod
    def _new_entry(self, spec: KVSpec) -> SelfEntry:
        """An empty self entry."""

    @abstractmethod
    def _cut(self, entry: SelfEntry, end_token: int) -> None:
        """Drop what is stored at or after end_token, a chunk boundary. The caller shortens entry.ends."""


def _zero_cross(spec: KVSpec) -> CrossEntry:
    shape = (spec.batch_size, spec.cross_len, spec.num_heads, spec.head_dim)
    # made outside inference mode, so that clear() may zero them in place from anywhere
    with torch.inference_mode(False):
        k = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        return CrossEntry(k, torch.zeros_like(k))
