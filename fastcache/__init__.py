"""Feature caching for few-step, chunk-autoregressive video diffusion transformers.

The names below are imported when they are first used, so that ``import fastcache`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastcache.api import generate, load_fit, load_model, score
    from fastcache.kv_cache import KVCacheEngine, VanillaKVCacheEngine
    from fastcache.methods.motioncache import MotionCache
    from fastcache.methods.none import NoCache
    from fastcache.methods.reuse import DirectReuse
    from fastcache.methods.teacache import TeaCache
    from fastcache.sampler import Euler, FewStep

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("generate", "load_fit", "load_model", "score"), "api"),
    **dict.fromkeys(("KVCacheEngine", "VanillaKVCacheEngine"), "kv_cache"),
    **dict.fromkeys(("Euler", "FewStep"), "sampler"),
    "DirectReuse": "methods.reuse",
    "MotionCache": "methods.motioncache",
    "NoCache": "methods.none",
    "TeaCache": "methods.teacache",
}

__all__ = [
    "DirectReuse",
    "Euler",
    "FewStep",
    "KVCacheEngine",
    "MotionCache",
    "NoCache",
    "TeaCache",
    "VanillaKVCacheEngine",
    "generate",
    "load_fit",
    "load_model",
    "score",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
