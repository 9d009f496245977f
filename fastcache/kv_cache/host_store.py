"""Where offloaded K/V lie: a memory-mapped temporary file on a CPU, pinned memory on a GPU; both within a budget."""

import mmap
import os
import tempfile
import weakref
from typing import BinaryIO

import torch
from torch import Tensor

PAGE = mmap.ALLOCATIONGRANULARITY


class HostStore:
    """Tensors outside the memory of the device that attends. ``used`` counts the bytes of those that are alive.

    The file has no name: whatever becomes of the process, nothing is left behind. Raises OSError where ``folder``,
    made if need be, cannot be written.
    """

    def __init__(self, folder: str | None = None):
        self.folder, self.used = folder, 0
        self._file: BinaryIO | None = None
        self._end = 0
        self._free: dict[int, list[int]] = {}  # places given back, by their size

    def keep(self, x: Tensor) -> Tensor:
        """A copy of x, which may be on a GPU; there it is queued on the current stream and not waited for."""
        if x.device.type == "cpu":
            return self._mapped(x)
        pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        pinned.copy_(x, non_blocking=True)
        self.used += size(x)
        weakref.finalize(pinned, self._give_back, size(x), None)
        return pinned

    def _mapped(self, x: Tensor) -> Tensor:
        count = size(x)
        room = -(-count // PAGE) * PAGE
        places = self._free.get(room)
        offset = places.pop() if places else self._grow(room)
        assert self._file is not None
        region = mmap.mmap(self._file.fileno(), count, offset=offset)
        kept = torch.frombuffer(region, dtype=x.dtype).view(x.shape)
        kept.copy_(x)
        self.used += count
        weakref.finalize(region, self._give_back, count, (room, offset))  # it lives as long as any view of kept
        return kept

    def _grow(self, room: int) -> int:
        if self._file is None:
            if self.folder is not None:
                os.makedirs(self.folder, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115, it lives as long as this
        offset, self._end = self._end, self._end + room
        os.ftruncate(self._file.fileno(), self._end)
        return offset

    def _give_back(self, count: int, place: tuple[int, int] | None) -> None:
        self.used -= count
        if place is not None:
            self._free.setdefault(place[0], []).append(place[1])


def size(x: Tensor) -> int:
    return x.numel() * x.element_size()
