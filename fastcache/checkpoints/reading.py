"""Tensors of a checkpoint, mapped from its files and under original Wan names, whoever wrote it.

Known writers: Self-Forcing and Causal-Forcing (.pt: a dict of ``generator`` and ``generator_ema``), Wan-Video
(safetensors), diffusers (a folder), FastGen (state dicts under diffusers' names), and this package.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fastcache.checkpoints import names, sizes
from fastcache.checkpoints.files import Files, find
from fastcache.checkpoints.mapping import tensors_of
from fastcache.errors import UserError

PREFERRED = ("generator", "student", "net", "model", "transformer")
"""Names that the weights for sampling go by where no averaged ones are there."""


@dataclass(frozen=True)
class Checkpoint:
    """``tensors`` under original names, mapped: their bytes are read when used. ``writer_names`` original or diffusers;
    ``part`` what was chosen where a file holds several models; ``config`` of config.json, ``metadata`` of safetensors.
    """

    files: Files
    tensors: Mapping[str, Tensor]
    writer_names: str
    part: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.files.path

    def describe(self) -> str:
        return sizes.describe(sizes.read(self.tensors))


def read(path: str | Path, part: str = "auto") -> Checkpoint:
    """Map a checkpoint; nothing but tensors is ever unpickled, and no tensor is copied.

    ``part``: which model where a file holds several ("generator", "generator_ema", "model.net"); auto takes the
    averaged one (ema) if there is one. Raises UserError on files that are missing, damaged, or hold more than
    tensors, and where no Wan transformer or no such part is in them.
    """
    files = find(path)
    metadata: dict[str, str] = {}
    stored: dict[str, Tensor] = {}
    for file in files.tensors:
        found, told = tensors_of(file)
        if twice := next((name for name in found if name in stored), None):
            raise UserError(f"weights={path}: {twice} is in several of its files")
        stored |= found
        metadata |= told
    if lost := [name for name in files.weight_map() if name not in stored]:
        raise UserError(f"weights={path}: its index names {lost[0]}, but no shard holds it; fetch the shards again")
    stored = {names.unwrapped(name): tensor for name, tensor in stored.items()}
    prefix = _choose(names.prefixes(stored), part, files.path, stored)
    others = [other for other in names.prefixes(stored) if other.startswith(prefix) and other != prefix]
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(prefix) and not any(name.startswith(other) for other in others)
    }
    theirs = names.is_diffusers(tensors)
    if theirs:
        tensors = {names.to_original(name): tensor for name, tensor in tensors.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not names.is_unused(name)}
    config = _config(files.config) if files.config else {}
    return Checkpoint(files, tensors, "diffusers" if theirs else "original", prefix.rstrip("."), config, metadata)


def _choose(prefixes: list[str], part: str, path: Path, stored: Mapping[str, Tensor]) -> str:
    if not prefixes:
        some = ", ".join(list(stored)[:3]) or "no tensors at all"
        raise UserError(f"weights={path} holds no Wan transformer; it holds {some}")
    segments = {prefix: prefix.rstrip(".").split(".") for prefix in prefixes}
    if part != "auto":
        chosen = [p for p in prefixes if f".{part}." in f".{p}"]
        if len(chosen) != 1:
            raise UserError(f"part={part}: {_parts(path, chosen or prefixes)}")
        return chosen[0]
    averaged = [p for p in prefixes if any("ema" in segment.split("_") for segment in segments[p])]
    named = [] if averaged else [[p for p in prefixes if name in segments[p]] for name in PREFERRED]
    for group in (prefixes, averaged, *named):
        if len(group) == 1:
            return group[0]
    raise UserError(f"{_parts(path, averaged or prefixes)}; say which with part=NAME")


def _parts(path: Path, prefixes: list[str]) -> str:
    return f"weights={path} holds {', '.join(prefix.rstrip('.') or 'one unnamed model' for prefix in prefixes)}"


def _config(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{file} is no JSON object; expected the sizes of a transformer")
    return found
