"""Drives the command line inside the test process: a subprocess would import torch each time."""

import json
from pathlib import Path

from fastcache.run import main

QUICK = ("model=toy", "frames=6", "num_videos=2", "rescale=none", "metric=psnr", "tracking=disabled")


def fastcache(*words: str) -> int:
    """Exit status of `python -m fastcache.run QUICK... words...`; later words win."""
    keys = {word.partition("=")[0] for word in words}
    return main([*words, *(word for word in QUICK if word.partition("=")[0] not in keys)])


def runs(outputs: Path) -> list[str]:
    """Names of the run folders under ``outputs`` that look finished."""
    return sorted(path.parent.name for path in outputs.glob("*/done.json"))


def read(path):
    """Strict JSON: NaN and Infinity are no JSON."""

    def refuse(name):
        raise AssertionError(f"{name} in {path}")

    return json.loads(Path(path).read_text(), parse_constant=refuse)


def only(out, pattern):
    (path,) = out.glob(pattern)
    return path


def times(folder):
    """When each file was last written; the lock is taken anew each time."""
    return {
        str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.name != ".lock"
    }
