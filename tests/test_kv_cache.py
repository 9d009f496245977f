"""The life of a K/V engine: chunks, tags, cross entries, the provisional chunk."""

import torch
from kv_toys import CROSS, DIM, HEADS, SPEC, at, build, commit, rand, refused
from torch import nn

import fastcache.kv_cache as kv
from fastcache.kv_cache import KVSpec


def test_attention_sees_the_committed_chunks_then_the_current_one():
    engine, blocks = build()
    first = commit(engine, blocks, 0, tokens=5)  # the first chunk may carry the remainder
    second = commit(engine, blocks, 5, tokens=3)
    for block, (k0, v0), (k1, v1) in zip(blocks, first, second, strict=True):
        k, v = rand(3), rand(3)
        keys, values = engine.attend_view(block.self_attn, k, v, **at(8))
        assert torch.equal(keys, torch.cat([k0, k1, k], 1)) and torch.equal(values, torch.cat([v0, v1, v], 1))
        assert engine.self_len(block.self_attn, cache_tag="pos") == 8
    assert engine.block_lens("pos") == {0: 8, 1: 8}


def test_entries_are_keyed_by_block_then_tag():
    engine, blocks = build()
    commit(engine, blocks, 0)
    commit(engine, blocks, 3)
    assert engine._module_to_block[id(blocks[1].self_attn)] == engine._module_to_block[id(blocks[1].cross_attn)] == 1
    entry = engine._self_kv[1]["pos"]
    assert [x.shape[1] for x in entry.k] == [x.shape[1] for x in entry.v] == [3, 3] and entry.len == 6
    assert engine._cross_kv[1]["pos"].is_init is False and not engine._cross_kv[1]["pos"].k.any()
    assert engine.num_blocks == 2 and engine.tags() == ("pos", "neg") and engine.spec("neg") == SPEC


def test_a_branch_without_cross_attention_has_no_cross_entries():
    engine, blocks = build(spec=KVSpec(1, HEADS, DIM, torch.float32, "cpu"))
    with refused(engine, kv.UnknownTagError):
        engine.cross_is_init(blocks[0].cross_attn, cache_tag="pos")


def test_prefix_is_none_until_something_is_stored_and_one_chunk_is_not_copied():
    engine, blocks = build()
    module = blocks[0].self_attn
    assert engine.get_self_prefix(module, cache_tag="pos") is None
    k, v = rand(3), rand(3)
    assert engine.attend_view(module, k, v, **at(0)) == (k, v)
    engine.append_self_kv(module, k, v, **at(0))
    prefix_k, prefix_v = engine.get_self_prefix(module, cache_tag="pos")
    assert prefix_k.data_ptr() == k.data_ptr() and prefix_v.data_ptr() == v.data_ptr()
    assert engine.get_self_prefix(module, cache_tag="pos", end_token=0) is None


def test_an_earlier_position_sees_the_shorter_prefix():
    engine, blocks = build()
    (k0, v0), _ = commit(engine, blocks, 0)
    commit(engine, blocks, 3)
    module, k, v = blocks[0].self_attn, rand(3), rand(3)
    keys, values = engine.attend_view(module, k, v, **at(3))
    assert torch.equal(keys, torch.cat([k0, k], 1)) and torch.equal(values, torch.cat([v0, v], 1))
    assert torch.equal(engine.get_self_prefix(module, cache_tag="pos", end_token=3)[0], k0)


def test_a_held_prefix_survives_later_chunks_and_clear():
    engine, blocks = build()
    commit(engine, blocks, 0)
    held, _ = engine.get_self_prefix(blocks[0].self_attn, cache_tag="pos")
    before = held.clone()
    commit(engine, blocks, 3)
    engine.clear()
    assert torch.equal(held, before)


def test_a_stored_view_does_not_alias_its_larger_buffer():
    engine, blocks = build(num_blocks=1)
    module, buffer = blocks[0].self_attn, rand(9)
    expected = buffer[:, :3].clone()
    engine.append_self_kv(module, buffer[:, :3], buffer[:, :3], **at(0))
    buffer.zero_()
    assert torch.equal(engine.get_self_prefix(module, cache_tag="pos")[0], expected)


def test_gradients_flow_through_the_current_chunk_only():
    engine, blocks = build(num_blocks=1)
    module = blocks[0].self_attn
    k = rand(3, requires_grad=True)
    with torch.no_grad():
        engine.append_self_kv(module, k, k, **at(0))
    assert not engine.get_self_prefix(module, cache_tag="pos")[0].requires_grad
    current = rand(3, requires_grad=True)
    keys, _ = engine.attend_view(module, current, current, **at(3))
    keys.sum().backward()
    assert torch.equal(current.grad, torch.ones_like(current)) and k.grad is None


def test_clear_empties_one_tag_or_all_and_keeps_allocations():
    engine, blocks = build()
    for tag in ("pos", "neg"):
        commit(engine, blocks, 0, tag=tag)
        engine.put_cross_kv(blocks[0].cross_attn, rand(CROSS), rand(CROSS), cache_tag=tag)
        engine.put_current_kv(blocks[0].self_attn, rand(3), rand(3), **at(3, tag))
    buffer = engine._cross_kv[0]["pos"].k
    engine.clear("pos")
    assert engine.block_lens("pos") == {0: 0, 1: 0} and engine.block_lens("neg") == {0: 3, 1: 3}
    assert engine._cross_kv[0]["pos"].k is buffer and not buffer.any()
    assert not engine.cross_is_init(blocks[0].cross_attn, cache_tag="pos")
    assert engine.cross_is_init(blocks[0].cross_attn, cache_tag="neg")
    with refused(engine, kv.CacheNotFilledError):
        engine.get_current_kv(blocks[0].self_attn, cache_tag="pos")
    engine.get_current_kv(blocks[0].self_attn, cache_tag="neg")
    engine.clear()
    assert engine.block_lens("neg") == {0: 0, 1: 0} and engine.tags() == ("pos", "neg")
    assert engine.ensure_capacity("pos", SPEC) is False
    commit(engine, blocks, 0)


def test_entries_made_in_inference_mode_can_be_cleared_outside():
    engine, blocks = build(tags=())
    with torch.inference_mode():
        engine.ensure_capacity("pos", SPEC)
        engine.put_cross_kv(blocks[0].cross_attn, rand(CROSS), rand(CROSS), cache_tag="pos")
        commit(engine, blocks, 0)
    engine.clear()
    assert engine.block_lens("pos") == {0: 0, 1: 0} and not engine._cross_kv[0]["pos"].k.any()


def test_release_forgets_the_tag_and_frees_its_bytes():
    engine, blocks = build()
    commit(engine, blocks, 0)
    engine.put_current_kv(blocks[0].self_attn, rand(3), rand(3), **at(3))
    engine.release("pos")
    assert engine.tags() == ("neg",) and engine.memory_bytes() == engine.memory_bytes("neg")
    with refused(engine, kv.UnknownTagError, "neg"):
        engine.spec("pos")
    engine.ensure_capacity("pos", SPEC)
    with refused(engine, kv.CacheNotFilledError):
        engine.get_current_kv(blocks[0].self_attn, cache_tag="pos")
    engine.release()
    assert engine.tags() == () and engine.memory_bytes() == 0


def test_memory_counts_self_cross_and_provisional_bytes_once():
    engine, blocks = build(num_blocks=3, tags=("pos",))
    row = HEADS * DIM * 4
    assert engine.memory_bytes() == 3 * 2 * CROSS * row
    commit(engine, blocks, 0)
    assert engine.memory_bytes("pos") == 3 * 2 * (CROSS + 3) * row
    shared = rand(3)
    engine.put_current_kv(blocks[0].self_attn, shared, shared, **at(3))
    assert engine.memory_bytes() == 3 * 2 * (CROSS + 3) * row + 3 * row


def test_a_late_block_gets_its_entries_from_a_second_call():
    engine, blocks = build()
    late = nn.Identity()
    engine.register(late, 2)
    with refused(engine, kv.UnknownTagError, "block 2"):
        engine.self_len(late, cache_tag="pos")
    assert engine.ensure_capacity("pos", SPEC) is True
    assert engine.self_len(late, cache_tag="pos") == 0


def test_truncate_drops_later_chunks_on_every_block():
    engine, blocks = build()
    kept = commit(engine, blocks, 0)
    commit(engine, blocks, 3)
    k = rand(3)
    engine.append_self_kv(blocks[0].self_attn, k, k, **at(6))  # a store pass that failed after block 0
    engine.put_current_kv(blocks[1].self_attn, k, k, **at(6))
    engine.truncate("pos", 6)
    assert engine.block_lens("pos") == {0: 6, 1: 6}
    with refused(engine, kv.CacheNotFilledError):
        engine.get_current_kv(blocks[1].self_attn, cache_tag="pos")
    engine.truncate("pos", 3)
    for block, (k0, _) in zip(blocks, kept, strict=True):
        assert torch.equal(engine.get_self_prefix(block.self_attn, cache_tag="pos")[0], k0)
    commit(engine, blocks, 3)
    engine.truncate("pos", 0)
    assert engine.block_lens("pos") == {0: 0, 1: 0}


def test_tags_never_mix():
    engine, blocks = build()
    module, cross = blocks[0].self_attn, blocks[0].cross_attn
    (pos, _), _ = commit(engine, blocks, 0, tag="pos")
    (neg, _), _ = commit(engine, blocks, 0, tag="neg")
    commit(engine, blocks, 3, tag="pos")
    assert engine.self_len(module, cache_tag="neg") == 3
    assert torch.equal(engine.get_self_prefix(module, cache_tag="neg")[0], neg)
    assert torch.equal(engine.get_self_prefix(module, cache_tag="pos", end_token=3)[0], pos)
    engine.put_current_kv(module, rand(3), rand(3), **at(3, "neg"))
    engine.put_cross_kv(cross, rand(CROSS), rand(CROSS), cache_tag="neg")
    with refused(engine, kv.CacheNotFilledError):
        engine.get_current_kv(module, cache_tag="pos")
    assert not engine.cross_is_init(cross, cache_tag="pos")


# cross entries


def test_cross_entry_is_copied_once_and_read_back():
    engine, blocks = build()
    module, k, v = blocks[0].cross_attn, rand(CROSS, requires_grad=True), rand(CROSS)
    expected = k.detach().clone()
    engine.put_cross_kv(module, k, v, cache_tag="pos")
    with torch.no_grad():
        k.zero_()
        keys, values = engine.get_cross_kv(module, cache_tag="pos")
    assert torch.equal(keys, expected) and torch.equal(values, v) and not keys.requires_grad
    assert engine.cross_is_init(module, cache_tag="pos")
    assert not engine.cross_is_init(blocks[1].cross_attn, cache_tag="pos")


def test_cross_entry_takes_new_conditioning_after_clear():
    engine, blocks = build()
    module, k = blocks[0].cross_attn, rand(CROSS)
    engine.put_cross_kv(module, rand(CROSS), rand(CROSS), cache_tag="pos")
    engine.clear("pos")
    engine.put_cross_kv(module, k, k, cache_tag="pos")
    with torch.no_grad():
        assert torch.equal(engine.get_cross_kv(module, cache_tag="pos")[0], k)


# provisional chunk


def test_a_selective_write_replaces_its_rows_and_nothing_else():
    engine, blocks = build()
    commit(engine, blocks, 0)
    module, k, v = blocks[0].self_attn, rand(6), rand(6)
    engine.put_current_kv(module, k, v, **at(3))
    k_before, index = k.clone(), torch.tensor([4, 1])
    rows_k, rows_v = rand(2), rand(2)
    full_k, full_v = engine.scatter_current_kv(module, index, rows_k, rows_v, **at(3))
    assert torch.equal(full_k[:, index], rows_k) and torch.equal(full_v[:, index], rows_v)
    others = torch.tensor([0, 2, 3, 5])
    assert torch.equal(full_k[:, others], k[:, others]) and torch.equal(full_v[:, others], v[:, others])
    assert torch.equal(k, k_before)  # the tensors of the full step may still be held by somebody
    held = full_k.clone()
    engine.scatter_current_kv(module, torch.tensor([0]), rand(1), rand(1), **at(3))
    assert torch.equal(full_k, held)
    assert engine.self_len(module, cache_tag="pos") == 3


def test_an_empty_selection_changes_nothing():
    engine, blocks = build()
    module, k = blocks[0].self_attn, rand(6)
    engine.put_current_kv(module, k, k, **at(0))
    full_k, _ = engine.scatter_current_kv(module, torch.empty(0, dtype=torch.int64), rand(0), rand(0), **at(0))
    assert torch.equal(full_k, k)


def test_the_store_pass_drops_the_provisional_chunk_of_its_block():
    engine, blocks = build()
    for block in blocks:
        engine.put_current_kv(block.self_attn, rand(3), rand(3), **at(0))
    engine.append_self_kv(blocks[0].self_attn, rand(3), rand(3), **at(0))
    with refused(engine, kv.CacheNotFilledError):
        engine.get_current_kv(blocks[0].self_attn, cache_tag="pos")
    engine.get_current_kv(blocks[1].self_attn, cache_tag="pos")
    engine.drop_current("pos")
    with refused(engine, kv.CacheNotFilledError):
        engine.get_current_kv(blocks[1].self_attn, cache_tag="pos")


def test_a_second_full_step_replaces_the_provisional_chunk():
    engine, blocks = build()
    module, k = blocks[0].self_attn, rand(3)
    engine.put_current_kv(module, rand(3), rand(3), **at(0))
    engine.put_current_kv(module, k, k, **at(0))
    assert torch.equal(engine.get_current_kv(module, cache_tag="pos")[0], k)
