"""OffloadKVCacheEngine: committed chunks outside the device's memory, fetched block by block when attention needs them.

Payload of an entry: lists ``k`` and ``v`` with one host tensor per committed chunk (host_store.py), and ``ends``. On a
GPU the host tensors are pinned; while a block attends, the past of the next block is copied to the device on a side
stream, so two blocks' pasts are on the device at a time. On a CPU they lie in a memory-mapped file, whose pages the
system may drop, and one block's past is read at a time. ``budget_mb`` bounds what may lie there. The working chunk
stays on the device. Bitwise equal to the vanilla engine.

Lifecycle and errors: base.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastcache.errors import UserError
from fastcache.kv_cache.base import BaseKVCacheEngine, join
from fastcache.kv_cache.entries import KVSpec, SelfEntry, check_kv
from fastcache.kv_cache.errors import CapacityExceededError
from fastcache.kv_cache.host_store import HostStore, size

MB = 1_000_000


class OffloadedEntry(SelfEntry):
    """Its k and v are not on the device that attends."""

    def tensors(self) -> Iterator[Tensor]:
        return iter(())


@dataclass
class Staged:
    """A block's past on its way to the device, with room for the current chunk behind it."""

    start_token: int
    k: Tensor  # [B, start_token + tokens, n, d]
    v: Tensor
    ready: torch.cuda.Event


class OffloadKVCacheEngine(BaseKVCacheEngine):
    """``budget_mb``: megabytes (10^6) that may be stored, None for no bound; ``folder``: where the file goes, None for
    the system's temporary folder. Raises UserError on a budget that is no positive number."""

    def __init__(self, budget_mb: float | None = None, folder: str | None = None, debug: bool = False) -> None:
        super().__init__(debug)
        number = isinstance(budget_mb, int | float) and not isinstance(budget_mb, bool)
        if budget_mb is not None and not (number and budget_mb > 0):
            raise UserError(f"engine.budget_mb={budget_mb}: expected megabytes, or null for no bound")
        self.budget_mb, self.folder = budget_mb, folder
        self._store = HostStore(folder)
        self._staged: dict[tuple[int, str], Staged] = {}
        self._side: torch.cuda.Stream | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_store": HostStore(self.folder), "_staged": {}, "_side": None}

    def attend_view(
        self, module: nn.Module, k: Tensor, v: Tensor, *, cache_tag: str, start_token: int
    ) -> tuple[Tensor, Tensor]:
        entry = self._lookup(self._self_kv, module, cache_tag)
        check_kv(self.spec(cache_tag), k, v)
        past_k, past_v = self._past(entry, self._where(module, cache_tag), start_token, k.shape[1])
        if not past_k or k.device.type != "cuda" or torch.is_grad_enabled():
            return join([*(x.to(k.device) for x in past_k), k]), join([*(x.to(v.device) for x in past_v), v])
        return self._fetched(self.block_index(module), k, v, cache_tag, start_token)

    def get_self_prefix(
        self, module: nn.Module, *, cache_tag: str, end_token: int | None = None
    ) -> tuple[Tensor, Tensor] | None:
        held = super().get_self_prefix(module, cache_tag=cache_tag, end_token=end_token)
        device = self.spec(cache_tag).device
        return None if held is None else (held[0].to(device), held[1].to(device))

    def host_bytes(self, cache_tag: str | None = None) -> int:
        entries = [entry for tag in self._named(cache_tag) for entry in self._of(self._self_kv, tag)]
        return sum(size(x) for entry in entries for x in (*entry.k, *entry.v))

    def share(self, frames: int, head_dim: int, item: int) -> float:
        return 0.0  # but for the past of two blocks

    def drop_current(self, cache_tag: str) -> None:
        super().drop_current(cache_tag)
        self._staged = {key: staged for key, staged in self._staged.items() if key[1] != cache_tag}

    def release(self, cache_tag: str | None = None) -> None:
        super().release(cache_tag)
        self._staged.clear()

    def _check_room(self, entry: SelfEntry, spec: KVSpec, tokens: int, where: str) -> None:
        """As the base class; the budget must hold the chunk on every block that has not stored it yet."""
        super()._check_room(entry, spec, tokens, where)
        if self.budget_mb is None:
            return
        one = 2 * spec.batch_size * tokens * spec.num_heads * spec.head_dim * spec.dtype.itemsize
        tag = next(t for by_tag in self._self_kv.values() for t, e in by_tag.items() if e is entry)
        need = one * sum(other.len <= entry.len for other in self._of(self._self_kv, tag))
        if self._store.used + need > self.budget_mb * MB:
            raise CapacityExceededError(
                f"{where}: {self._store.used / MB:.1f} MB are stored and this chunk needs {need / MB:.1f} MB more; the "
                f"budget is engine.budget_mb={self.budget_mb:g}"
            )

    def _new_entry(self, spec: KVSpec) -> OffloadedEntry:
        return OffloadedEntry()

    def _commit(self, entry: SelfEntry, k: Tensor, v: Tensor) -> None:
        if k.device.type != "cuda":
            with torch.inference_mode(False), torch.no_grad():
                kept = self._store.keep(k), self._store.keep(v)
        else:
            side = self._side_stream(k.device)
            side.wait_stream(torch.cuda.current_stream(k.device))
            with torch.cuda.stream(side):
                kept = self._store.keep(k), self._store.keep(v)
            k.record_stream(side)  # its memory must not be reused before the copy is done
            v.record_stream(side)
        entry.k.append(kept[0])
        entry.v.append(kept[1])

    def _visible(self, entry: SelfEntry, end_token: int) -> tuple[list[Tensor], list[Tensor]]:
        count = sum(end <= end_token for end in entry.ends)
        return entry.k[:count], entry.v[:count]

    def _cut(self, entry: SelfEntry, end_token: int) -> None:
        count = sum(end <= end_token for end in entry.ends)
        del entry.k[count:], entry.v[count:]

    def _fetched(self, block: int, k: Tensor, v: Tensor, cache_tag: str, start_token: int) -> tuple[Tensor, Tensor]:
        """The staged past of a block with the current chunk behind it; sets off the next block's."""
        tokens, total = k.shape[1], start_token + k.shape[1]
        staged = self._staged.pop((block, cache_tag), None)
        if staged is None or staged.start_token != start_token or staged.k.shape[1] != total:
            staged = self._stage(block, k, cache_tag, start_token)
        blocks = self.block_indices
        following = blocks[(blocks.index(block) + 1) % len(blocks)]
        entry = self._self_kv[following][cache_tag]
        if following != block and start_token in entry.ends:
            self._staged[following, cache_tag] = self._stage(following, k, cache_tag, start_token)
        stream = torch.cuda.current_stream(k.device)
        stream.wait_event(staged.ready)
        for whole, own in ((staged.k, k), (staged.v, v)):
            whole.record_stream(stream)
            whole[:, total - tokens :].copy_(own)
        return staged.k, staged.v

    def _stage(self, block: int, like: Tensor, cache_tag: str, start_token: int) -> Staged:
        """Queue the copies of a block's past on the side stream."""
        past = self._visible(self._self_kv[block][cache_tag], start_token)
        side = self._side_stream(like.device)
        shape = (like.shape[0], start_token + like.shape[1], *like.shape[2:])
        whole = []
        with torch.cuda.stream(side):
            for pieces in past:
                out = torch.empty(shape, dtype=like.dtype, device=like.device)
                at = 0
                for piece in pieces:
                    out[:, at : at + piece.shape[1]].copy_(piece, non_blocking=True)
                    at += piece.shape[1]
                whole.append(out)
            ready = torch.cuda.Event()
            ready.record(side)
        return Staged(start_token, whole[0], whole[1], ready)

    def _side_stream(self, device: torch.device) -> torch.cuda.Stream:
        if self._side is None:
            self._side = torch.cuda.Stream(device)
        return self._side
