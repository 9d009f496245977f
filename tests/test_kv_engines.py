"""Every engine under whole rollouts of toy models of every layout."""

import copy

import pytest
import torch
from layouts import LAYOUTS

import fastcache.kv_cache as kv
from fastcache import api, catalog
from fastcache.build import build
from fastcache.methods.motioncache import MotionCache
from fastcache.methods.none import NoCache
from fastcache.models import toy

EXACT = {
    "static": {"_target_": "fastcache.kv_cache.StaticKVCacheEngine"},
    "window": {"_target_": "fastcache.kv_cache.WindowKVCacheEngine", "window_frames": 9},
    "window-relative": {"_target_": "fastcache.kv_cache.WindowKVCacheEngine", "window_frames": 9, "rope": "relative"},
    "offload": {"_target_": "fastcache.kv_cache.OffloadKVCacheEngine"},
}
ENGINES = catalog.options("engine")


def latents(layout, node, method=None, frames=9):
    model = toy.load(layout=layout)
    model.dit.set_kv_engines(lambda branch: build(node))
    return api.generate(model, "a red circle", method, frames=frames).rollout.latents


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [NoCache, lambda: MotionCache(thresh=0.9)], ids=["none", "motioncache"])
def test_rollouts_equal_vanilla_bit_for_bit(layout, make):
    vanilla = latents(layout, catalog.load("engine", "vanilla"), make())
    for name, node in EXACT.items():
        assert torch.equal(latents(layout, node, make()), vanilla), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fewer_bits_mean_more_error(layout):
    vanilla = latents(layout, catalog.load("engine", "vanilla"))
    errors = [float((latents(layout, catalog.load("engine", n)) - vanilla).abs().mean()) for n in ("int8", "int4")]
    assert 0 < errors[0] < errors[1] / 4 < vanilla.abs().mean() / 4


@pytest.mark.parametrize("name", ENGINES)
def test_a_store_pass_that_fails_halfway_leaves_all_blocks_alike(name, monkeypatch):
    model = toy.load(layout="vace")
    dit = model.dit
    dit.set_kv_engines(lambda branch: build(catalog.load("engine", name)))
    calls, forward = [], dit.blocks[1].self_attn.forward

    def fails(*args):
        calls.append(len(args))
        if len(calls) == 10:  # the store pass of the second chunk
            raise RuntimeError("out of memory")
        return forward(*args)

    monkeypatch.setattr(dit.blocks[1].self_attn, "forward", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        api.generate(model, "a red circle", schedule="FFFF", frames=6)
    lens = {length for engine in dit.kv_cache_engines.values() for length in engine.block_lens("pos").values()}
    assert lens == {3 * 16}
    monkeypatch.undo()
    again = api.generate(model, "a red circle", schedule="FFFF", frames=6).rollout.latents
    assert torch.equal(again, latents("vace", catalog.load("engine", name), frames=6))


@pytest.mark.parametrize("name", ENGINES)
def test_a_copied_model_has_empty_engines_that_know_no_module(name):
    model = toy.load()
    model.dit.set_kv_engines(lambda branch: build(catalog.load("engine", name)))
    api.generate(model, "a red circle", frames=3)
    twin = copy.deepcopy(model.dit)
    engine = twin.kv_cache_engines["main"]
    assert type(engine) is type(model.dit.kv_cache_engines["main"])
    assert engine.tags() == () and engine.num_blocks == 0 and engine.memory_bytes() == engine.host_bytes() == 0
    with pytest.raises(kv.UnregisteredModuleError):
        engine.self_len(twin.blocks[0].self_attn, cache_tag="pos")
    options = {key: value for key, value in catalog.load("engine", name).items() if key != "_target_"}
    assert {key: getattr(engine, key) for key in options} == options


def test_a_batch_that_changes_in_a_video_is_refused():
    for name in ENGINES:
        model = toy.load()
        model.dit.set_kv_engines(lambda branch, name=name: build(catalog.load("engine", name)))
        api.generate(model, "a red circle", frames=3)
        module, engine = model.dit.blocks[0].self_attn, model.dit.kv_cache_engines["main"]
        k = torch.zeros(2, 48, 4, 12)
        with pytest.raises(kv.KVSpecMismatchError, match=r"batch_size 2 \(spec: 1\)"):
            engine.attend_view(module, k, k, cache_tag="pos", start_token=0)
