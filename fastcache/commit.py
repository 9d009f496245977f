"""Which commit of fastcache this is."""

import subprocess
from contextlib import suppress
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
