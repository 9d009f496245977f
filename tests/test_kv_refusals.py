"""Every refusal of a K/V engine: the class of the error, and the state left as it was."""

import pytest
import torch
from kv_toys import CROSS, DIM, HEADS, SPEC, at, build, commit, rand, refused
from torch import nn

import fastcache.kv_cache as kv
from fastcache.kv_cache import KVSpec


def uses(engine, module, tag):
    """Every call that names a module and a tag."""
    k = rand(3)
    index = torch.tensor([0])
    return [
        lambda: engine.append_self_kv(module, k, k, **at(0, tag)),
        lambda: engine.put_current_kv(module, k, k, **at(0, tag)),
        lambda: engine.scatter_current_kv(module, index, rand(1), rand(1), **at(0, tag)),
        lambda: engine.attend_view(module, k, k, **at(0, tag)),
        lambda: engine.get_self_prefix(module, cache_tag=tag),
        lambda: engine.get_current_kv(module, cache_tag=tag),
        lambda: engine.self_len(module, cache_tag=tag),
        lambda: engine.cross_is_init(module, cache_tag=tag),
        lambda: engine.put_cross_kv(module, rand(CROSS), rand(CROSS), cache_tag=tag),
        lambda: engine.get_cross_kv(module, cache_tag=tag),
    ]


def test_refuses_an_unregistered_module():
    engine, blocks = build()
    commit(engine, blocks, 0)
    for use in uses(engine, nn.Identity(), "pos"):
        with refused(engine, kv.UnregisteredModuleError, "Identity"):
            use()


def test_refuses_an_unknown_tag_and_names_the_known():
    engine, blocks = build(tags=("pos",))
    commit(engine, blocks, 0)
    whole = [
        lambda: engine.clear("neg"),
        lambda: engine.release("neg"),
        lambda: engine.truncate("neg", 0),
        lambda: engine.drop_current("neg"),
        lambda: engine.memory_bytes("neg"),
        lambda: engine.block_lens("neg"),
        lambda: engine.spec("neg"),
    ]
    for use in uses(engine, blocks[0].self_attn, "neg") + whole:
        with refused(engine, kv.UnknownTagError, "'neg'.*pos"):
            use()


def test_refuses_two_owners_of_a_slot_and_two_slots_of_a_module():
    engine, blocks = build()
    known = blocks[0].self_attn
    for module, block_idx, role in [(known, 1, "self"), (known, 0, "cross"), (nn.Identity(), 0, "self")]:
        with refused(engine, kv.DuplicateRegistrationError, "block 0"):
            engine.register(module, block_idx, role)
    lone = nn.Identity()
    engine.register(lone, 9)
    with refused(engine, kv.DuplicateRegistrationError, "self attention of block 9"):
        engine.register(lone, 9, role="cross")  # that slot is free, the module is not
    with refused(engine, ValueError, "middle"):
        engine.register(nn.Identity(), 5, role="middle")


def test_refuses_reads_of_what_was_never_written():
    engine, blocks = build()
    module, k = blocks[0].self_attn, rand(3)
    with torch.no_grad(), refused(engine, kv.CacheNotFilledError, "cross"):
        engine.get_cross_kv(blocks[0].cross_attn, cache_tag="pos")
    with refused(engine, kv.CacheNotFilledError, "full step"):
        engine.scatter_current_kv(module, torch.tensor([0]), rand(1), rand(1), **at(0))
    with refused(engine, kv.CacheNotFilledError, "none is stored"):
        engine.attend_view(module, k, k, **at(3))  # zeros in front would be attended in silence
    with refused(engine, kv.CacheNotFilledError, "none is stored"):
        engine.get_self_prefix(module, cache_tag="pos", end_token=3)
    engine.put_current_kv(module, k, k, **at(0))
    with refused(engine, kv.CacheNotFilledError, "token 0"):
        engine.scatter_current_kv(module, torch.tensor([0]), rand(1), rand(1), **at(3))  # another chunk's rows


@pytest.mark.parametrize("name", ["append_self_kv", "put_current_kv"])
@pytest.mark.parametrize("start, what", [(0, "double store"), (6, "gap"), (1, "double store"), (-3, "double store")])
def test_refuses_a_chunk_out_of_order(name, start, what):
    engine, blocks = build()
    commit(engine, blocks, 0)
    with refused(engine, kv.ChunkOrderError, what):
        getattr(engine, name)(blocks[0].self_attn, rand(3), rand(3), **at(start))


def test_refuses_to_attend_over_a_gap():
    engine, blocks = build()
    commit(engine, blocks, 0)
    with refused(engine, kv.ChunkOrderError, "gap"):
        engine.attend_view(blocks[0].self_attn, rand(3), rand(3), **at(6))
    with refused(engine, kv.ChunkOrderError, "gap"):
        engine.get_self_prefix(blocks[0].self_attn, cache_tag="pos", end_token=6)


@pytest.mark.parametrize("position", [1, 4, -3])
def test_refuses_positions_inside_a_chunk(position):
    engine, blocks = build()
    commit(engine, blocks, 0)
    commit(engine, blocks, 3)
    module = blocks[0].self_attn
    for use in (
        lambda: engine.attend_view(module, rand(3), rand(3), **at(position)),
        lambda: engine.get_self_prefix(module, cache_tag="pos", end_token=position),
        lambda: engine.truncate("pos", position),
    ):
        with refused(engine, kv.ChunkBoundaryError, str(position)):
            use()


def test_refuses_to_truncate_beyond_the_shortest_block():
    engine, blocks = build()
    commit(engine, blocks, 0)
    engine.append_self_kv(blocks[0].self_attn, rand(3), rand(3), **at(3))
    with refused(engine, kv.ChunkBoundaryError, "block 1"):
        engine.truncate("pos", 6)


WRONG = {
    "batch_size": rand(3, batch=2),
    "num_heads": rand(3, heads=3),
    "head_dim": rand(3, dim=6),
    "dtype": rand(3, dtype=torch.float64),
    "device": torch.empty(1, 3, HEADS, DIM, device="meta"),
}


@pytest.mark.parametrize("field", WRONG)
@pytest.mark.parametrize("name", ["append_self_kv", "put_current_kv", "attend_view"])
def test_refuses_tensors_that_differ_from_the_spec(name, field):
    engine, blocks = build()
    with refused(engine, kv.KVSpecMismatchError, f"k {field}.*v {field}"):
        getattr(engine, name)(blocks[0].self_attn, WRONG[field], WRONG[field], **at(0))


def test_refuses_a_k_that_is_fine_with_a_v_of_another_dtype():
    engine, blocks = build()
    with refused(engine, kv.KVSpecMismatchError, "^v dtype torch.float64"):
        engine.append_self_kv(blocks[0].self_attn, rand(3), rand(3).double(), **at(0))


@pytest.mark.parametrize("k, v", [(rand(3), rand(2)), (rand(3)[0], rand(3)[0]), (rand(0), rand(0))])
def test_refuses_shapes_that_are_no_chunk(k, v):
    engine, blocks = build()
    for name in ("append_self_kv", "put_current_kv", "attend_view"):
        with refused(engine, kv.KVSpecMismatchError):
            getattr(engine, name)(blocks[0].self_attn, k, v, **at(0))


def test_refuses_cross_and_selected_rows_of_the_wrong_length():
    engine, blocks = build()
    with refused(engine, kv.KVSpecMismatchError, f"tokens {CROSS - 1} .expected: {CROSS}"):
        engine.put_cross_kv(blocks[0].cross_attn, rand(CROSS - 1), rand(CROSS - 1), cache_tag="pos")
    engine.put_current_kv(blocks[0].self_attn, rand(3), rand(3), **at(0))
    with refused(engine, kv.KVSpecMismatchError, "tokens 2 .expected: 1"):
        engine.scatter_current_kv(blocks[0].self_attn, torch.tensor([0]), rand(2), rand(2), **at(0))


def test_refuses_another_spec_and_reallocates_this_tag_on_request():
    engine, blocks = build()
    for tag in ("pos", "neg"):
        commit(engine, blocks, 0, tag=tag)
    wider = KVSpec(2, HEADS, DIM, torch.float32, "cpu", cross_len=CROSS + 1)
    with refused(engine, kv.KVSpecMismatchError, "batch_size: 1 != 2; cross_len: 5 != 6"):
        engine.ensure_capacity("pos", wider)
    with refused(engine, ValueError, "maybe"):
        engine.ensure_capacity("pos", wider, on_mismatch="maybe")
    assert engine.ensure_capacity("pos", wider, on_mismatch="realloc") is True
    assert engine.spec("pos") == wider and engine.block_lens("pos") == {0: 0, 1: 0}
    assert engine._cross_kv[0]["pos"].k.shape == (2, CROSS + 1, HEADS, DIM)
    assert engine.spec("neg") == SPEC and engine.block_lens("neg") == {0: 3, 1: 3}


def test_refuses_a_chunk_over_capacity_before_any_block_changes():
    engine, blocks = build(spec=KVSpec(1, HEADS, DIM, torch.float32, "cpu", capacity_tokens=7))
    commit(engine, blocks, 0, tokens=4)
    for name in ("append_self_kv", "put_current_kv"):
        with refused(engine, kv.CapacityExceededError, "block 0, tag 'pos': 4 tokens .* 4 exceed the capacity of 7"):
            getattr(engine, name)(blocks[0].self_attn, rand(4), rand(4), **at(4))
    commit(engine, blocks, 4, tokens=3)


def test_refuses_to_store_a_live_graph():
    engine, blocks = build()
    module = blocks[0].self_attn
    plain, live = rand(3), rand(3, requires_grad=True)
    engine.put_current_kv(module, plain, plain, **at(0))
    index = torch.arange(3)
    for k, v in ((live, plain), (plain, live)):
        for use in (
            lambda k=k, v=v: engine.append_self_kv(module, k, v, **at(0)),
            lambda k=k, v=v: engine.put_current_kv(module, k, v, **at(0)),
            lambda k=k, v=v: engine.scatter_current_kv(module, index, k, v, **at(0)),
        ):
            with refused(engine, kv.GradientStoreError, "no_grad"):
                use()
            with torch.no_grad():
                use()
            engine.clear()
            engine.put_current_kv(module, plain, plain, **at(0))


def test_refuses_cross_reads_with_grad_enabled():
    engine, blocks = build()
    engine.put_cross_kv(blocks[0].cross_attn, rand(CROSS), rand(CROSS), cache_tag="pos")
    with refused(engine, kv.GradientReadError):
        engine.get_cross_kv(blocks[0].cross_attn, cache_tag="pos")


def test_refuses_a_second_cross_write():
    engine, blocks = build()
    engine.put_cross_kv(blocks[0].cross_attn, rand(CROSS), rand(CROSS), cache_tag="pos")
    with refused(engine, kv.CrossAlreadyFilledError, "clear"):
        engine.put_cross_kv(blocks[0].cross_attn, rand(CROSS), rand(CROSS), cache_tag="pos")


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([[0, 1]]),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([True, False, True]),
        torch.tensor([0, 3]),
        torch.tensor([-1, 0]),
        torch.empty(2, dtype=torch.int64, device="meta"),
    ],
)
def test_refuses_a_bad_selection(index):
    engine, blocks = build()
    engine.put_current_kv(blocks[0].self_attn, rand(3), rand(3), **at(0))
    with refused(engine, kv.SelectionError):
        engine.scatter_current_kv(blocks[0].self_attn, index, rand(2), rand(2), **at(0))


def test_debug_mode_refuses_a_duplicate_selection():
    engine, blocks = build(debug=True)
    engine.put_current_kv(blocks[0].self_attn, rand(3), rand(3), **at(0))
    with refused(engine, kv.SelectionError, "twice"):
        engine.scatter_current_kv(blocks[0].self_attn, torch.tensor([1, 1]), rand(2), rand(2), **at(0))


def test_all_refusals_share_one_root():
    errors = [getattr(kv, name) for name in kv.__all__ if name.endswith("Error")]
    assert len(errors) == 18 and all(issubclass(e, kv.KVCacheError) and issubclass(e, RuntimeError) for e in errors)
