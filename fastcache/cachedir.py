"""Where fastcache keeps what it need not make twice."""

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """$FASTCACHE_CACHE, or the platform's place for caches."""
    home = Path.home()
    if "FASTCACHE_CACHE" in os.environ:
        return Path(os.environ["FASTCACHE_CACHE"]).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "fastcache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "fastcache"
    return Path(os.environ.get("XDG_CACHE_HOME", home / ".cache")) / "fastcache"
