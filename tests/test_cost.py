"""Estimates: operations against the published figures and against counted ones, bytes against measured ones."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fastcache import api, cost, memory
from fastcache.forwards import allocate
from fastcache.kv_cache import CausalContext
from fastcache.methods.motioncache import MotionCache
from fastcache.methods.none import NoCache
from fastcache.models import toy
from fastcache.models.config import DiTConfig
from fastcache.step import Grid

LATENT = (16, 60, 104)  # of 480 x 832 pixels
WAN = DiTConfig()
WAN_14B = DiTConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
I2V_14B = replace(WAN_14B, in_dim=36, image_dim=1280, image_len=257)
VACE = replace(WAN, vace_layers=tuple(range(0, 30, 2)), vace_in_dim=96)


def sizes(config):
    return cost.Sizes.of(config, LATENT, 3)


@pytest.mark.parametrize(("config", "tera"), [
    (WAN, {0: 16.2, 1: 20.2, 2: 24.3, 3: 28.3, 4: 32.3, 5: 36.4, 6: 40.4}), (WAN_14B, {0: 131.8, 6: 239.4}),
], ids=["1.3B", "14B"])  # fmt: skip
def test_text_to_video_forwards_cost_what_is_published(config, tera):
    for chunk_idx, expected in tera.items():
        assert cost.forward_flops(sizes(config), chunk_idx) / 1e12 == pytest.approx(expected, abs=0.06)
    if config is WAN:
        assert sum(cost.forward_flops(sizes(config), c) for c in range(7)) / 1e12 == pytest.approx(198, abs=0.5)


def counted(config, chunk_idx, frames=3):
    """Operations of one forward's blocks on toy sizes, as torch counts them, less those of the context's K/V."""
    dit = toy.build(config)
    dit.set_kv_engines(lambda branch: api.VanillaKVCacheEngine())
    tokens = Grid(frames, 4, 4).tokens
    allocate(dit, "pos", 1, tokens * (chunk_idx + 1))
    text = torch.zeros(1, config.text_len, config.text_dim)
    image = torch.zeros(1, config.image_len, config.image_dim) if config.image_dim else None
    control = torch.zeros(1, frames, config.vace_in_dim, 8, 8) if config.vace_layers else None
    with torch.inference_mode():
        context = dit.encode_context(text, image)
        for c in range(chunk_idx + 1):
            for store in (False, True):
                ctx = CausalContext(
                    num_frames=frames, frame_seqlen=16, cache_engines=dit.kv_cache_engines, cur_start_frame=c * frames,
                    is_ar=True, store_kv=store, cross_fill="first_no_grad",
                )  # fmt: skip
                latent = torch.zeros(1, frames, config.in_dim, 8, 8)
                run = dit.prepare(latent, torch.zeros(1, frames), context, ctx, control)
                # of the kernels for CPUs the counter knows none but the plain one
                with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                    run.full()
    return counter.get_total_flops()


@pytest.mark.parametrize("layout", toy.LAYOUTS)
@pytest.mark.parametrize("layers", [1, 4])
def test_operations_are_those_that_torch_counts(layout, layers):
    config = toy.toy_config(layers, layout=layout)
    for chunk_idx in (0, 2):
        estimate = cost.forward_flops(cost.Sizes.of(config, toy.LATENT_SHAPE, 3), chunk_idx)
        assert estimate == counted(config, chunk_idx)


def test_a_control_costs_its_blocks_and_projections():
    own = 15 * cost.forward_flops(sizes(WAN), 2) / 30 + 2 * 16 * sizes(WAN).tokens * WAN.dim**2
    assert cost.forward_flops(sizes(VACE), 2) == pytest.approx(cost.forward_flops(sizes(WAN), 2) + own)
    more = cost.forward_flops(sizes(I2V_14B), 0) - cost.forward_flops(sizes(WAN_14B), 0)
    assert more == 2 * 40 * sizes(WAN).tokens * 2 * 5120 * 257


def test_kv_bytes_are_the_published_ones():
    """21 frames at two bytes: self K/V, and cross K/V of 512 text and of 257 image tokens."""
    mib, cross = 2**20, 90 * 2**20
    assert cost.kv_bytes(sizes(WAN), 7, 2) == 6_038_323_200 + cross
    vace = cost.branch_kv_bytes(sizes(VACE), 7, 2)
    assert vace == {"main": 6_038_323_200 + cross, "vace": (6_038_323_200 + cross) // 2}
    assert cost.kv_bytes(sizes(VACE), 7, 2) == sum(vace.values())
    image = cost.kv_bytes(sizes(I2V_14B), 7, 2) - cost.kv_bytes(sizes(WAN_14B), 7, 2)
    assert image / mib == pytest.approx(600.8 - 400, abs=0.1)
    assert cost.working_bytes(sizes(WAN), 2) / mib == pytest.approx(822.7, abs=0.1)
    assert cost.working_bytes(sizes(VACE), 2) / mib == pytest.approx(822.7 + 411.3, abs=0.1)


@pytest.mark.parametrize("layout", toy.LAYOUTS)
@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("bfloat16", 2)])
def test_kv_bytes_are_those_that_engines_hold(layout, dtype, item):
    node = {"_target_": "fastcache.models.toy.load", "layout": layout, "layers": 3}
    model = api.build_model(node, None, "cpu", dtype)
    made = api.generate(model, "a red circle stays", NoCache(), frames=9).rollout
    estimate = cost.Sizes.of(model.dit.config, model.latent_shape, 3)
    assert made.kv_bytes == cost.kv_bytes(estimate, 3, item)


@pytest.mark.parametrize("layout", toy.LAYOUTS)
def test_working_bytes_are_those_of_the_provisional_chunk(layout):
    node = {"_target_": "fastcache.models.toy.load", "layout": layout, "layers": 3}
    model, held = api.build_model(node, None, "cpu", "float32"), []

    def look(chunk_idx, trace):
        engines = model.dit.kv_cache_engines.values()
        held.append(sum(engine.memory_bytes() for engine in engines))

    api.generate(model, "a red circle stays", MotionCache(thresh=1.0), frames=3, on_step=look)
    estimate = cost.Sizes.of(model.dit.config, model.latent_shape, 3)
    assert held[0] == cost.working_bytes(estimate, 4) + cost.kv_bytes(estimate, 0, 4)


@pytest.mark.parametrize("layout", toy.LAYOUTS)
def test_guidance_keeps_everything_twice(layout):
    """K/V of both passes, as measured, and both passes' provisional K/V and method states."""
    node = {"_target_": "fastcache.models.toy.load", "layout": layout, "layers": 3}
    model = api.build_model(node, None, "cpu", "float32")
    made = api.generate(model, "a red circle stays", MotionCache(thresh=1.0), frames=6, guidance_scale=2.0).rollout
    s = cost.Sizes.of(model.dit.config, model.latent_shape, 3)
    one, two = (memory.estimate(s, 2, 4, MotionCache(thresh=1.0), memory.Around(), passes) for passes in (1, 2))
    assert made.kv_bytes == sum(two.kv.values()) == 2 * sum(one.kv.values())
    assert (two.working, two.method, two.weights) == (2 * one.working, 2 * one.method, one.weights)


def test_the_fraction_of_operations():
    s = sizes(VACE)
    assert cost.flops_fraction(s, [[1, 1, 1, 1]] * 3, [1] * 3) == 1
    assert cost.flops_fraction(s, [[1, 0, 0, 1]] * 3, [1] * 3) == pytest.approx(3 / 5)
    assert cost.flops_fraction(s, [[1, 0.5, 0, 0]] * 3, [0] * 3) == pytest.approx(1.5 / 4)
    late, early = ([[1, 0, 0, 0], [1, 1, 1, 1]], [[1, 1, 1, 1], [1, 0, 0, 0]])
    assert cost.flops_fraction(s, late, [1, 1]) > cost.flops_fraction(s, early, [1, 1])  # later chunks cost more
