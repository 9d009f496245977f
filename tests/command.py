"""Drives the command line inside the test process: a subprocess would import torch each time."""

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
