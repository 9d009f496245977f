"""Small engines, chunks and checks shared by the K/V tests."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fastcache.kv_cache import CrossEntry, KVCacheEngine, KVSpec, SelfEntry, WorkingChunk
from fastcache.kv_cache.host_store import HostStore
from fastcache.kv_cache.packing import Packed

HEADS, DIM, CROSS = 2, 4, 5
SPEC = KVSpec(1, HEADS, DIM, torch.float32, "cpu", capacity_tokens=None, cross_len=CROSS)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = nn.Identity()
        self.cross_attn = nn.Identity()


def build(num_blocks=2, tags=("pos", "neg"), spec=SPEC, make=KVCacheEngine, **options):
    blocks = nn.ModuleList(Block() for _ in range(num_blocks))
    engine = make(**options)
    engine.register_blocks(blocks)
    for tag in tags:
        engine.ensure_capacity(tag, spec)
    return engine, blocks


def rand(tokens, batch=1, heads=HEADS, dim=DIM, **options):
    return torch.randn(batch, tokens, heads, dim, **options)


def at(start, tag="pos"):
    return {"cache_tag": tag, "start_token": start}


def commit(engine, blocks, start, tokens=3, tag="pos"):
    """A store pass: one chunk on every block. Returns the (k, v) of each block."""
    stored = [(rand(tokens), rand(tokens)) for _ in blocks]
    for block, (k, v) in zip(blocks, stored, strict=True):
        engine.append_self_kv(block.self_attn, k, v, **at(start, tag))
    return stored


def frozen(value):
    """A comparable copy of anything an engine holds."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.tolist())
    if isinstance(value, dict):
        return {key: frozen(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [frozen(inner) for inner in value]
    if isinstance(value, SelfEntry | CrossEntry | WorkingChunk | Packed):
        return frozen(dict(vars(value)))
    if isinstance(value, HostStore):
        return value.used
    return value


@contextmanager
def refused(engine, error, match=None):
    """The body raises ``error`` and leaves all of the engine's state as it was."""
    before = frozen(vars(engine))
    with pytest.raises(error, match=match):
        yield
    assert frozen(vars(engine)) == before
