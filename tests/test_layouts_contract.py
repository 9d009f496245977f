"""Every layout of the DiT under every cache method and every K/V engine, on toys with real blocks."""

import copy
from functools import cache

import pytest
import torch
from layouts import LAYOUTS
from test_contract import DIALLED, NAMES, class_of
from test_contract import build as build_method

from fastcache import api, catalog
from fastcache.build import build
from fastcache.kv_cache import UnregisteredModuleError, VanillaKVCacheEngine
from fastcache.methods.taylorseer import TaylorSeer
from fastcache.models import toy

ENGINES = catalog.options("engine")
FRAMES = 6
FEW = ("motioncache", "taylorseer")  # one that selects tokens, one that replays features
MIDDLE = {"thresh": 1.0, "interval": 2, "skip": 1}  # some steps partly, or every second one
layouts = pytest.mark.parametrize("layout", LAYOUTS)
engines = pytest.mark.parametrize("engine", ENGINES)


def load(layout, engine="vanilla", **options):
    """A toy of three blocks, two of VACE, whose hints count differently."""
    node = {"_target_": "fastcache.models.toy.load", "layout": layout, "layers": 3}
    model = api.build_model(node, None, "cpu", "float32")
    model.dit.vace_scale = (0.7, 1.3)[: len(model.dit.vace_scale)]
    model.dit.set_kv_engines(lambda branch: build(catalog.load("engine", engine), **options))
    return model


def roll(model, method=None, schedule="FxxF"):
    return api.generate(model, "a red circle stays", method, schedule=schedule, frames=FRAMES).rollout


@cache
def reference(layout, engine):
    return roll(load(layout, engine), schedule="FFFF").latents


def methods(engine, names=DIALLED):
    """Every method under the default engine; under the others one of each kind."""
    return names if engine == "vanilla" else [name for name in names if name in FEW]


@layouts
@engines
def test_a_dial_at_off_is_the_reference_bit_for_bit(layout, engine):
    model = load(layout, engine)
    for name in methods(engine):
        off = class_of(name)
        result = roll(model, build_method(name, **{off.dial: off.off}), "Fxxx")
        assert torch.equal(result.latents, reference(layout, engine)), name
        assert result.compute_fraction == 1


@layouts
@engines
def test_a_dial_at_most_leaves_the_forced_steps(layout, engine):
    model = load(layout, engine)
    for name in methods(engine):
        most = class_of(name)
        result = roll(model, build_method(name, **{most.dial: most.most}))
        assert [c.letters for c in result.chunks] == ["FRRF"] * 2, name
        assert not torch.equal(result.latents, reference(layout, engine)), name


@layouts
@engines
def test_without_a_dial_ffff_is_the_reference_and_ages_are_right_in_between(layout, engine):
    """Every method of conf/method; in between under the debug mode, which asserts after each step."""
    model = load(layout, engine, debug=True)
    letters = set()
    for name in methods(engine, NAMES):
        dial = class_of(name).dial
        method = build_method(name, **({dial: MIDDLE[dial]} if dial else {}))
        if dial is None:
            assert torch.equal(roll(model, method, "FFFF").latents, reference(layout, engine)), name
        result = roll(model, method, "Fxxx")
        assert result.latents.isfinite().all()
        letters |= set("".join(c.letters for c in result.chunks))
    assert letters == {"F", "P", "R"}


@layouts
def test_each_branch_registers_its_own_modules(layout):
    dit = load(layout).dit
    owned = {branch: engine.registered_modules() for branch, engine in dit.kv_cache_engines.items()}
    assert set(owned) == ({"main", "vace"} if layout == "vace" else {"main"})
    for branch, blocks in dit.branch_blocks.items():
        attention = [module for block in blocks for module in (block.self_attn, block.cross_attn)]
        assert {id(m) for m in owned[branch]} == {id(m) for m in attention}
        assert dit.kv_cache_engines[branch].block_indices == list(range(len(blocks)))
    everything = [id(m) for modules in owned.values() for m in modules]
    assert len(everything) == len(set(everything)) == 2 * (3 + (2 if layout == "vace" else 0))


def watched(model, seen):
    """Notes copies of every engine's committed K and cross K after each store pass."""
    prepare = model.dit.prepare

    def looked(latent, t, context, ctx, control):
        run = prepare(latent, t, context, ctx, control)
        full = run.full

        def then():
            out = full()
            if ctx.store_kv:
                for branch, engine in model.dit.kv_cache_engines.items():
                    for place, block in enumerate(model.dit.branch_blocks[branch]):
                        own = engine.get_self_prefix(block.self_attn, cache_tag="pos")[0]
                        cross = engine.get_cross_kv(block.cross_attn, cache_tag="pos")[0]
                        seen[branch, place] = own.clone(), cross.clone()
            return out

        run.full = then
        return run

    model.dit.prepare = looked


def test_the_control_streams_kv_are_its_own():
    model, seen = load("vace"), {}
    watched(model, seen)
    roll(model)
    assert set(seen) == {("main", 0), ("main", 1), ("main", 2), ("vace", 0), ("vace", 1)}
    for own, cross in seen.values():
        assert own.shape[1] == 16 * FRAMES and cross.shape[1] == toy.TEXT_LEN
    values = list(seen.values())
    for a in range(5):
        for b in range(a):
            assert all((x - y).abs().max() > 0.1 for x, y in zip(values[a], values[b], strict=True))


def test_image_tokens_are_in_the_cross_kv_before_the_text():
    model, seen = load("i2v"), {}
    watched(model, seen)
    roll(model)
    condition = model.condition("a red circle stays", 0, FRAMES)
    with torch.inference_mode():
        context = model.dit.encode_context(condition.prompt_embeds, condition.image_embeds)
        for place, block in enumerate(model.dit.blocks):
            cross = block.cross_attn
            image = cross.norm_k_img(cross.k_img(context[:, : toy.IMAGE_LEN]))
            text = cross.norm_k(cross.k(context[:, toy.IMAGE_LEN :]))
            kept = seen["main", place][1].flatten(2)
            assert torch.equal(kept, torch.cat((image, text), 1))


@layouts
def test_a_copy_registers_its_own_modules_and_leaves_the_original_alone(layout):
    model = load(layout)
    expected = roll(model).latents
    twin = copy.copy(model)
    twin.dit = copy.deepcopy(model.dit)
    with pytest.raises(UnregisteredModuleError):
        roll(twin)
    twin.dit.rebuild_kv_engines()
    ours, theirs = ({id(m) for e in x.dit.kv_cache_engines.values() for m in e.registered_modules()}
                    for x in (model, twin))  # fmt: skip
    assert ours and not ours & theirs
    assert torch.equal(roll(twin).latents, expected)
    with torch.no_grad():
        twin.dit.blocks[0].self_attn.k.weight.add_(1.0)
    assert not torch.equal(roll(twin).latents, expected)
    assert torch.equal(roll(model).latents, expected)


@layouts
def test_features_replayed_at_their_own_step_give_the_same_tokens(layout):
    model, seen = load(layout), []

    class Recorded(TaylorSeer):
        def step(self, step, run):
            out, features = run.record()
            assert set(features) == {
                f"{branch}.{i}.{module}"
                for branch, blocks in model.dit.branch_blocks.items()
                for i in range(len(blocks))
                for module in ("self_attn", "cross_attn", "ffn")
            }
            assert torch.equal(run.replay(features), out)
            nothing = {key: torch.zeros_like(value) for key, value in features.items()}
            seen.append((run.replay(nothing) - out).abs().max() > 0.1)
            self.note(None)
            return out, 1.0

    assert torch.equal(roll(model, Recorded(), "FFFF").latents, reference(layout, "vanilla"))
    assert len(seen) == 8 and all(seen)


def test_without_scale_there_is_no_control():
    """Hints at scale 0 leave the text-to-video model of the main blocks; each scale counts."""
    model, plain = load("vace"), load("t2v")
    plain.dit.load_state_dict(model.dit.state_dict(), strict=False)
    model.dit.vace_scale = (0.0, 0.0)
    assert torch.equal(roll(model).latents, roll(plain).latents)
    results = []
    for scale in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (2.0, 1.0)):
        model.dit.vace_scale = scale
        results.append(roll(model).latents)
    for a in range(4):
        for b in range(a):
            assert (results[a] - results[b]).abs().max() > 1e-3


def test_vanilla_is_the_default_engine_of_every_branch():
    model = api.load_model("toy")
    assert all(isinstance(engine, VanillaKVCacheEngine) for engine in model.dit.kv_cache_engines.values())
