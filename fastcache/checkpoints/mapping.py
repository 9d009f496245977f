"""The tensors of one file, mapped: no bytes are read before they are used, and nothing but tensors is unpickled."""

import json
import math
import mmap
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcache.errors import UserError

DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0


def tensors_of(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name (nested dicts: keys joined by dots) and safetensors' metadata; told apart by the first bytes.

    Raises UserError where the file cannot be read, is damaged, or holds more than tensors.
    """
    try:
        with file.open("rb") as opened:
            start = opened.read(48)
    except OSError as error:
        raise UserError(f"weights={file} cannot be read: {error}") from None
    if start.startswith(b"version https://git-lfs"):
        raise UserError(f"weights={file} is a Git LFS pointer, not the weights; fetch them with: git lfs pull")
    if start.startswith(b"PK"):
        return _torch(file), {}
    if start[8:9] == b"{":
        return _safetensors(file)
    if start.startswith(b"\x80"):
        raise UserError(
            f"weights={file} is a pickle of the kind torch wrote before 1.6, which cannot be mapped; save it again: "
            "torch.save(torch.load(old, weights_only=True), new)"
        )
    raise UserError(f"weights={file} is neither safetensors nor a torch checkpoint; is the file complete?")


def _safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Mapped by hand: safetensors' own mapping is refused for files larger than memory.

    The library checks the header first: that the offsets fit shapes and dtypes and cover the file.
    """
    try:
        with safe_open(file, framework="np") as opened:
            metadata = opened.metadata() or {}
        content = _private(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"weights={file} cannot be read as safetensors ({error}); is the file complete?") from None
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    if odd := next((entry["dtype"] for entry in header.values() if entry["dtype"] not in DTYPES), None):
        raise UserError(f"weights={file} holds {odd} numbers; expected one of {', '.join(DTYPES)}")
    return {name: _view(content, begin, entry) for name, entry in header.items()}, metadata


def _private(file: Path) -> mmap.mmap:
    """The file's bytes; writes stay in memory. Nothing is reserved, so that the file may be larger than memory."""
    with file.open("rb") as opened:
        if sys.platform == "win32":
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        flags, prot = mmap.MAP_PRIVATE | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(opened.fileno(), 0, flags=flags, prot=prot)


def _view(content: mmap.mmap, begin: int, entry: Mapping[str, Any]) -> Tensor:
    dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    count, offset = math.prod(shape), begin + entry["data_offsets"][0]
    return torch.frombuffer(content, dtype=dtype, count=count, offset=offset).view(shape)


def _torch(file: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)|global (\S+)|Unsupported (\w+ \S+)", str(error))
        what = next((text for text in named.groups() if text), "") if named else str(error).splitlines()[0]
        raise UserError(
            f"weights={file} needs more than tensors to be unpickled ({what.rstrip('.')}), which can run any code, so "
            "it is refused; save the state dict alone in the program it came from: torch.save(model.state_dict(), new)"
        ) from None
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        if "Cannot allocate memory" in why:
            raise UserError(
                f"weights={file} ({file.stat().st_size / 1e9:.0f} GB) is larger than what this machine lets torch map; "
                "write it as safetensors on a larger one: python -m fastcache.checkpoints IN OUT to=original"
            ) from None
        raise UserError(f"weights={file} cannot be read as a torch checkpoint ({why}); is the file complete?") from None
    return dict(_flat(content, ""))


def _flat(content: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, Tensor):
        yield prefix.removesuffix("."), content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _flat(value, f"{prefix}{key}.")
