"""sha256 of a checkpoint's bytes, remembered for large files. No torch."""

import hashlib
import json
import os
from pathlib import Path

from fastcache.cachedir import cache_dir
from fastcache.checkpoints.files import find

LARGE = 64_000_000
"""Bytes from which on a file's hash is remembered: by path, size and time of change, in fastcache's cache."""


def file_hash(path: str | Path) -> str:
    """sha256 of a file's bytes. Raises OSError where it cannot be read."""
    path = Path(path)
    known, place = path.stat(), str(path.resolve())
    stamp = {"path": place, "size": known.st_size, "mtime_ns": known.st_mtime_ns}
    note = cache_dir() / "hashes" / f"{hashlib.sha256(place.encode()).hexdigest()[:24]}.json"
    if known.st_size >= LARGE and (remembered := _recall(note, stamp)):
        return remembered
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if known.st_size >= LARGE:
        _remember(note, stamp | {"sha256": found})
    return found


def checkpoint_hash(path: str | Path) -> str:
    """Of a file: its sha256. Of a folder or an index: the sha256 of the names and hashes of configuration, index and
    shards in order, so that the folder's own name and other files in it play no part.

    Raises UserError as files.find does, OSError where a file cannot be read.
    """
    files = find(path)
    if files.all == (files.path,):
        return file_hash(files.path)
    lines = "".join(f"{file.name} {file_hash(file)}\n" for file in files.all)
    return hashlib.sha256(lines.encode()).hexdigest()


def _recall(note: Path, stamp: dict) -> str | None:
    try:
        kept = json.loads(note.read_text())
        return str(kept["sha256"]) if all(kept[key] == value for key, value in stamp.items()) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(note: Path, content: dict) -> None:
    part = note.with_suffix(f".{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content))
        part.replace(note)
    except OSError:
        return  # a cache that cannot be written costs time, nothing else
