"""Tensors kept on disk: what an encoder made of a prompt, a picture or a video, so that no run makes it again."""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fastcache.cachedir import cache_dir
from fastcache.files import written_aside


class Kept:
    """One kind of tensor; ``identity``, plain values, says of what encoder and with what settings.

    A file carries the hash of its tensor: a damaged one counts as absent, which is said. A cache that cannot be written
    costs time, nothing else, which is said too.
    """

    def __init__(self, kind: str, *identity: Any):
        self.kind, self.identity = kind, identity

    def path(self, source: str | bytes) -> Path:
        """Where the tensor made of ``source`` is kept."""
        told = source if isinstance(source, str) else hashlib.sha256(source).hexdigest()
        key = hashlib.sha256(json.dumps([self.kind, *self.identity, told]).encode()).hexdigest()
        return cache_dir() / self.kind / f"{key}.safetensors"

    def read(self, source: str | bytes) -> Tensor | None:
        path = self.path(source)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                tensor, told = file.get_tensor("kept"), (file.metadata() or {}).get("sha256")
            if told == _digest(tensor):
                return tensor
        except (SafetensorError, OSError):
            pass
        warnings.warn(f"{path} is damaged: what it held is made again", stacklevel=2)
        return None

    def write(self, source: str | bytes, tensor: Tensor) -> None:
        path = self.path(source)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_aside(path) as aside:
                save_file({"kept": tensor.contiguous()}, aside, metadata={"sha256": _digest(tensor)})
        except (OSError, SafetensorError) as error:
            warnings.warn(f"{path.parent} cannot be written, so what was encoded is not kept: {error}", stacklevel=2)


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
