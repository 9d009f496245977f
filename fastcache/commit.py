"""Which commit of fastcache this is."""

import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path


def describe() -> str | None:
    """``git describe --always --dirty`` of the checkout this package lies in; None outside one."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--tags"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()[:64] or None
    return None


@lru_cache(maxsize=1)
def running() -> str | None:
    """``describe`` as this process first found it: it runs what it has imported, whatever is committed meanwhile."""
    return describe()
