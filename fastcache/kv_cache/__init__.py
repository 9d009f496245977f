"""K/V caching for causal video models: one engine per model branch, routed by attention-module identity.

base.py documents the contract and the errors, vanilla_engine.py the default engine, context.py the routing, masks.py
the chunk plans and training masks.
"""

from fastcache.kv_cache.base import BaseKVCacheEngine
from fastcache.kv_cache.context import CausalContext
from fastcache.kv_cache.entries import CrossEntry, KVSpec, SelfEntry, WorkingChunk
from fastcache.kv_cache.errors import (
    AmbiguousEngineError,
    CacheNotFilledError,
    CapacityExceededError,
    ChunkBoundaryError,
    ChunkOrderError,
    ContextError,
    CrossAlreadyFilledError,
    DuplicateRegistrationError,
    EvictedError,
    GradientReadError,
    GradientStoreError,
    KVCacheError,
    KVSpecMismatchError,
    NonFiniteError,
    PositionOutOfRangeError,
    SelectionError,
    UnknownTagError,
    UnregisteredModuleError,
)
from fastcache.kv_cache.masks import (
    chunk_ends,
    chunk_plan,
    dense_block_mask,
    flex_block_mask,
    pad_len,
    teacher_forcing_mask,
)
from fastcache.kv_cache.offload_engine import OffloadKVCacheEngine
from fastcache.kv_cache.quantized_engine import QuantizedKVCacheEngine
from fastcache.kv_cache.static_engine import StaticKVCacheEngine
from fastcache.kv_cache.vanilla_engine import VanillaKVCacheEngine
from fastcache.kv_cache.window_engine import WindowKVCacheEngine

KVCacheEngine = VanillaKVCacheEngine

__all__ = [
    "AmbiguousEngineError",
    "BaseKVCacheEngine",
    "CacheNotFilledError",
    "CapacityExceededError",
    "CausalContext",
    "ChunkBoundaryError",
    "ChunkOrderError",
    "ContextError",
    "CrossAlreadyFilledError",
    "CrossEntry",
    "DuplicateRegistrationError",
    "EvictedError",
    "GradientReadError",
    "GradientStoreError",
    "KVCacheEngine",
    "KVCacheError",
    "KVSpec",
    "KVSpecMismatchError",
    "NonFiniteError",
    "OffloadKVCacheEngine",
    "PositionOutOfRangeError",
    "QuantizedKVCacheEngine",
    "SelectionError",
    "SelfEntry",
    "StaticKVCacheEngine",
    "UnknownTagError",
    "UnregisteredModuleError",
    "VanillaKVCacheEngine",
    "WindowKVCacheEngine",
    "WorkingChunk",
    "chunk_ends",
    "chunk_plan",
    "dense_block_mask",
    "flex_block_mask",
    "pad_len",
    "teacher_forcing_mask",
]
