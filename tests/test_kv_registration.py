"""Which modules an engine knows, and what a copy of an engine forgets."""

import copy
import gc
import pickle

import pytest
from kv_toys import SPEC, Block, build, commit, refused
from torch import nn

import fastcache.kv_cache as kv
from fastcache.kv_cache import KVCacheEngine


def test_blocks_with_diffusers_names_register_the_same():
    block = nn.Module()
    block.attn1, block.attn2 = nn.Identity(), nn.Identity()
    engine = KVCacheEngine()
    engine.register_blocks([Block(), block])
    assert engine.block_index(block.attn1) == engine.block_index(block.attn2) == 1


@pytest.mark.parametrize("clone", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_empty_and_unregistered_and_keeps_options(clone):
    engine, blocks = build(debug=True)
    commit(engine, blocks, 0)
    twin = clone(engine)
    assert type(twin) is KVCacheEngine and twin.debug and twin.tags() == () and twin.num_blocks == 0
    assert twin.memory_bytes() == 0 and engine.block_lens("pos") == {0: 3, 1: 3}
    for use in (lambda: twin.block_index(blocks[0].self_attn), lambda: twin.ensure_capacity("pos", SPEC)):
        with refused(twin, kv.UnregisteredModuleError):
            use()
    own = Block()
    twin.register_blocks([own])
    twin.ensure_capacity("pos", SPEC)
    assert engine.num_blocks == 2


def test_a_recycled_id_is_not_taken_for_the_old_module():
    engine, old, new = KVCacheEngine(), nn.Identity(), nn.Identity()
    engine.register(old, 0)
    del old
    gc.collect()
    engine._module_to_block = {id(new): 0}  # what the interpreter does when it reuses the address
    assert not engine.is_registered(new) and engine.num_blocks == 0
    with refused(engine, kv.UnregisteredModuleError):
        engine.block_index(new)
    engine.register(new, 0)  # the dead module's slot is free
    assert engine.block_index(new) == 0


def test_registering_the_same_triple_again_does_nothing():
    engine, module = KVCacheEngine(), nn.Identity()
    engine.register(module, 3, role="cross")
    engine.register(module, 3, role="cross")
    assert engine.block_index(module) == 3 and engine.num_blocks == 1 and engine.registered_modules() == [module]
