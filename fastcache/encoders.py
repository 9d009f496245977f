"""The encoders of a real model on disk: folders of its text encoder, tokenizer, image encoder and VAE. No torch.

A model's YAML names them one by one (``vae: /data/vae``) or all at once (``encoders: /data/Wan2.1-T2V-1.3B-Diffusers``,
a folder in the diffusers layout). What is named one by one goes first; a checkpoint of the DiT that is itself such a
folder need not be named twice.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from fastcache.checkpoints.hashing import file_hash
from fastcache.errors import UserError

NAMES = ("text_encoder", "tokenizer", "image_encoder", "vae")
OPTIONS = ("encoders", *NAMES)


def find(options: Mapping[str, Any]) -> dict[str, Path]:
    """The folders that a model's options name and that are there.

    Raises UserError on a folder named that does not exist, and on one in no layout known.
    """
    found: dict[str, Path] = {}
    whole = _folder("encoders", options.get("encoders"))
    for name in NAMES:
        own = _folder(name, options.get(name))
        if own is not None:
            found[name] = own
        elif whole is not None and (whole / name).is_dir():
            found[name] = whole / name
    if whole is not None and not any((whole / name).is_dir() for name in NAMES):
        raise UserError(
            f"model.encoders={whole} holds none of the folders {', '.join(NAMES)}; expected a checkpoint in the "
            "diffusers layout, such as Wan2.1-T2V-1.3B-Diffusers"
        )
    return found


def beside(options: Mapping[str, Any], weights: Any) -> dict[str, Any]:
    """The options, with ``encoders`` the folder of the weights where nothing else is named and they lie there."""
    told = dict(options)
    if "encoders" in told and told["encoders"] is None and weights is not None:
        folder = Path(str(weights)).expanduser()
        told["encoders"] = str(folder) if any((folder / name).is_dir() for name in NAMES) else None
    return told


def needed(options: Mapping[str, Any], names: Sequence[str], model: str) -> dict[str, Path]:
    """The folders of ``names``. Raises UserError naming those that are missing and what to type."""
    found = find(options)
    if missing := [name for name in names if name not in found]:
        whole = options.get("encoders")
        given = f"model.encoders={whole} does not hold" if whole else f"model={model} needs"
        raise UserError(
            f"{given} {' and '.join(missing)}; name a folder in the diffusers layout with model.encoders=DIR, or one "
            f"with model.{missing[0]}=DIR (the README says what to download)"
        )
    return {name: found[name] for name in names}


def hashes(options: Mapping[str, Any]) -> dict[str, str]:
    """sha256 of each folder found. Raises UserError where a file in it cannot be read."""
    told = {}
    for name, folder in find(options).items():
        try:
            told[name] = folder_hash(folder)
        except OSError as error:
            raise UserError(f"model.{name}={folder} cannot be read: {error}") from None
    return told


def parameters(folder: Path) -> int:
    """Numbers in a folder's safetensors files, read off their headers; 0 where there are none that can be read."""
    count = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as opened:
                header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
            count += sum(prod(told["shape"]) for name, told in header.items() if name != "__metadata__")
        except (OSError, ValueError, KeyError, TypeError, MemoryError):
            return 0
    return count


def folder_hash(folder: Path) -> str:
    """sha256 of the names and hashes of a folder's files, hidden ones left out. Raises OSError where one cannot be
    read."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    shown = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    lines = "".join(f"{name.as_posix()} {file_hash(folder / name)}\n" for name in shown)
    return hashlib.sha256(lines.encode()).hexdigest()


def _folder(name: str, value: Any) -> Path | None:
    if value is None:
        return None
    path = Path(str(value)).expanduser().absolute()
    if not path.is_dir():
        raise UserError(f"model.{name}={value}: no such folder")
    return path
