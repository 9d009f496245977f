"""The static engine: rows written in place, views, and not a byte of the past copied."""

import pytest
import torch
from kv_toys import CROSS, DIM, HEADS, at, build, commit, rand, refused

import fastcache.kv_cache as kv
from fastcache.allocations import traced

CAPACITY = 32
SPEC = kv.KVSpec(1, HEADS, DIM, torch.float32, "cpu", CAPACITY, CROSS)
ROW = HEADS * DIM * 4


def static(**options):
    return build(spec=SPEC, make=kv.StaticKVCacheEngine, **options)


@torch.no_grad()
def test_attention_reads_the_buffer_itself_at_every_step():
    engine, blocks = static(num_blocks=1)
    module = blocks[0].self_attn
    buffers = [x.data_ptr() for x in engine._self_kv[0]["pos"].tensors()]
    for start in (0, 3, 6):
        for _ in range(3):  # denoising steps
            k, v = rand(3), rand(3)
            views = engine.attend_view(module, k, v, **at(start))
            assert [x.data_ptr() for x in views] == buffers
            assert torch.equal(views[0][:, start:], k) and torch.equal(views[1][:, start:], v)
        engine.append_self_kv(module, k, v, **at(start))
        assert [x.data_ptr() for x in engine.get_self_prefix(module, cache_tag="pos")] == buffers


@torch.no_grad()
def test_no_step_allocates_anything():
    engine, blocks = static(num_blocks=1)
    module = blocks[0].self_attn
    commit(engine, blocks, 0, tokens=20)
    k, v, index, row = rand(3), rand(3), torch.tensor([1]), rand(1)

    def chunk():
        engine.attend_view(module, k, v, **at(20))
        held = engine.put_current_kv(module, k, v, **at(20))
        engine.attend_view(module, *held, **at(20))
        held = engine.scatter_current_kv(module, index, row, row, **at(20))
        engine.attend_view(module, *held, **at(20))
        engine.append_self_kv(module, *held, **at(20))
        engine.get_self_prefix(module, cache_tag="pos")

    _, events = traced(chunk)
    assert not [size for size in events if size >= ROW]  # not even one token; scalars of the checks aside


@torch.no_grad()
def test_a_store_pass_sets_the_provisional_chunk_aside_and_nothing_else():
    engine, blocks = static(num_blocks=1)
    module = blocks[0].self_attn
    commit(engine, blocks, 0, tokens=20)
    draft = engine.put_current_kv(module, rand(3), rand(3), **at(20))[0].clone()
    k, v = rand(3), rand(3)
    _, events = traced(lambda: engine.attend_view(module, k, v, **at(20)))
    assert sum(size for size in events if size >= ROW) == 2 * 3 * ROW  # K and V of that chunk
    assert torch.equal(engine.get_current_kv(module, cache_tag="pos")[0], draft)
    full, _ = engine.scatter_current_kv(module, torch.tensor([0]), rand(1), rand(1), **at(20))
    assert torch.equal(full[:, 1:], draft[:, 1:])


def test_with_grad_nothing_that_autograd_may_need_is_overwritten():
    engine, blocks = static(num_blocks=1)
    module = blocks[0].self_attn
    commit(engine, blocks, 0)
    k = rand(3, requires_grad=True)
    keys, _ = engine.attend_view(module, k, k, **at(3))
    assert keys.data_ptr() != engine._self_kv[0]["pos"].keys.data_ptr()
    loss = (keys * keys).sum()
    commit(engine, blocks, 3)
    loss.backward()
    assert torch.equal(k.grad, 2 * k)


def test_needs_a_capacity_and_keeps_to_it():
    with pytest.raises(kv.KVSpecMismatchError, match="capacity_tokens"):
        build(spec=kv.KVSpec(1, HEADS, DIM, torch.float32, "cpu"), make=kv.StaticKVCacheEngine)
    engine, blocks = static(num_blocks=1)
    commit(engine, blocks, 0, tokens=30)
    with torch.no_grad(), refused(engine, kv.CapacityExceededError, "30 tokens .* 3 exceed the capacity of 32"):
        engine.attend_view(blocks[0].self_attn, rand(3), rand(3), **at(30))  # at the first step, not after the last


def test_bytes_are_those_of_the_buffers_whatever_is_in_them():
    engine, blocks = static(num_blocks=3, tags=("pos",))
    assert engine.memory_bytes() == 3 * 2 * (CAPACITY + CROSS) * ROW
    commit(engine, blocks, 0)
    engine.put_current_kv(blocks[0].self_attn, rand(3), rand(3), **at(3))
    assert engine.memory_bytes() == 3 * 2 * (CAPACITY + CROSS) * ROW
    engine.release()
    assert engine.memory_bytes() == 0


def test_counters_are_python_ints():
    engine, blocks = static(num_blocks=1)
    commit(engine, blocks, 0)
    entry = engine._self_kv[0]["pos"]
    assert {type(x) for x in (entry.len, entry.held, entry.evicted, *entry.ends)} == {int}
