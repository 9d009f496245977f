"""Files that appear whole or not at all, fastcache's own cache folder, and hashes that are not computed twice."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REMEMBERED = 64 * 2**20  # bytes from which on the hash of a file is kept: a checkpoint of 20 GB takes a minute


def cache_dir() -> Path:
    """fastcache's own cache: $FASTCACHE_CACHE, or the platform's place for caches."""
    home = Path.home()
    if "FASTCACHE_CACHE" in os.environ:
        return Path(os.environ["FASTCACHE_CACHE"]).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "fastcache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "fastcache"
    return Path(os.environ.get("XDG_CACHE_HOME", home / ".cache")) / "fastcache"


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A path to write to, renamed to ``path`` at the end and removed on an error."""
    aside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def sha256(path: str | Path) -> str:
    """Hash of a file's bytes; of a folder, of the names and hashes of its files, hidden ones left out.

    The hash of a large file is remembered in the cache folder and holds while the file's size and times stay the same.
    Raises OSError where something cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        return _remembered(path) if path.stat().st_size >= REMEMBERED else _hash(path)
    names = sorted(p.relative_to(path) for p in path.rglob("*") if p.is_file())
    shown = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    told = [[name.as_posix(), sha256(path / name)] for name in shown]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(path: Path) -> str:
    path = path.resolve()
    stat = path.stat()
    state = [str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    note = cache_dir() / "hashes" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(note.read_text(encoding="utf-8"))
        if kept["state"] == state:
            return str(kept["sha256"])
    found = _hash(path)
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        note.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(note) as aside:
            aside.write_text(json.dumps({"state": state, "sha256": found}), encoding="utf-8")
    return found
