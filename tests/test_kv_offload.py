"""Offloaded K/V on a CPU: a memory-mapped file, its budget, its places given back."""

import gc

import pytest
import torch
from kv_toys import CROSS, DIM, HEADS, at, build, commit, rand, refused

import fastcache.kv_cache as kv
from fastcache.errors import UserError

CHUNK = 3 * HEADS * DIM * 4  # bytes of K or V


def offload(**options):
    return build(make=kv.OffloadKVCacheEngine, **options)


def test_committed_chunks_lie_in_the_file_and_the_rest_on_the_device():
    engine, blocks = offload()
    empty = engine.memory_bytes()
    stored = commit(engine, blocks, 0)
    assert engine.memory_bytes() == empty
    assert engine.host_bytes() == engine.host_bytes("pos") == engine._store.used == 2 * 2 * CHUNK
    engine.put_current_kv(blocks[0].self_attn, rand(3), rand(3), **at(3))
    assert engine.memory_bytes() == empty + 2 * CHUNK
    for block, (k, v) in zip(blocks, stored, strict=True):
        prefix = engine.get_self_prefix(block.self_attn, cache_tag="pos")
        assert torch.equal(prefix[0], k) and torch.equal(prefix[1], v)


def test_the_file_is_named_nowhere_and_its_places_are_used_again(tmp_path):
    engine, blocks = offload(folder=str(tmp_path))
    commit(engine, blocks, 0)
    size = engine._store._end
    for _ in range(5):
        engine.clear()
        gc.collect()
        assert engine._store.used == 0
        commit(engine, blocks, 0)
    assert engine._store._end == size
    assert list(tmp_path.iterdir()) == []


def test_a_held_prefix_outlives_the_chunk():
    engine, blocks = offload(num_blocks=1)
    ((k, _),) = commit(engine, blocks, 0)
    held = engine.get_self_prefix(blocks[0].self_attn, cache_tag="pos")[0][:, 1:]
    engine.clear()
    commit(engine, blocks, 0)
    assert torch.equal(held, k[:, 1:])


def test_over_the_budget_nothing_is_stored():
    engine, blocks = offload(budget_mb=5 * CHUNK / 1e6)  # two blocks of K and V, and half a block
    commit(engine, blocks, 0)
    with refused(engine, kv.CapacityExceededError, "engine.budget_mb"):
        engine.append_self_kv(blocks[0].self_attn, rand(3), rand(3), **at(3))
    engine.truncate("pos", 0)
    gc.collect()
    commit(engine, blocks, 0, tag="neg")


@pytest.mark.parametrize("budget", [0, -1, "much", True])
def test_refuses_bad_budgets(budget):
    with pytest.raises(UserError, match="megabytes"):
        kv.OffloadKVCacheEngine(budget_mb=budget)


def test_other_dtypes_and_batches():
    spec = kv.KVSpec(2, HEADS, DIM, torch.bfloat16, "cpu", None, CROSS)
    engine, blocks = offload(num_blocks=1, spec=spec)
    k = rand(3, batch=2, dtype=torch.bfloat16)
    engine.append_self_kv(blocks[0].self_attn, k, k, **at(0))
    assert torch.equal(engine.get_self_prefix(blocks[0].self_attn, cache_tag="pos")[0], k)


def test_a_folder_is_made_where_there_is_none(tmp_path):
    engine = kv.OffloadKVCacheEngine(folder=str(tmp_path / "not" / "yet"))
    assert not (tmp_path / "not").exists()
    engine._store.keep(torch.zeros(8))
    assert (tmp_path / "not" / "yet").is_dir()
