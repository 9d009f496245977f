"""Classifier-free guidance: two passes a step, each with its own K/V, method and decisions."""

from functools import partial

import pytest
import torch

from fastcache import api
from fastcache.errors import UserError
from fastcache.forwards import Forwards
from fastcache.kv_cache import VanillaKVCacheEngine
from fastcache.methods.flowcache import FlowCache
from fastcache.methods.follow import for_guidance
from fastcache.methods.motioncache import MotionCache
from fastcache.methods.none import NoCache
from fastcache.methods.reuse import DirectReuse
from fastcache.methods.taylorseer import TaylorSeer
from fastcache.methods.teacache import TeaCache
from fastcache.noise import Noise
from fastcache.sample import rollout
from fastcache.sampler import FewStep
from fastcache.schedule import parse_schedule

PROMPT, OTHER, SCALE, FRAMES = "a red circle moves left", "a blue square stays", 3.0, 6
METHODS = {
    "none": NoCache,
    "reuse": DirectReuse,
    "teacache": partial(TeaCache, thresh=1.25),
    "flowcache": partial(FlowCache, thresh=1.25),
    "motioncache": partial(MotionCache, thresh=1.25),
    "taylorseer": partial(TaylorSeer, interval=2.0),
}


def load(layout: str):
    model = api.build_model({"_target_": "fastcache.models.toy.load", "layout": layout}, None, "cpu", "float32")
    return model


@pytest.fixture(params=["t2v", "i2v", "vace"])
def model(request):
    return load(request.param)


def guided(model, method, schedule="FxxF", scale=SCALE, **options):
    return api.generate(
        model, PROMPT, method, schedule=schedule, frames=FRAMES, guidance_scale=scale, negative_prompt=OTHER, **options
    ).rollout


@pytest.mark.parametrize("name", METHODS)
def test_guidance_is_two_single_passes_combined_by_hand(model, name: str) -> None:
    """Two models that know nothing of each other, one told the prompt, one the negative prompt."""
    sampler, forced = FewStep(), parse_schedule("FxxF", 4)
    pair = []
    for prompt in (PROMPT, OTHER):
        own = load(model.dit.config.layout)
        condition = model.condition(PROMPT, 0, FRAMES)
        if prompt == OTHER:
            condition = model.negative(condition, OTHER, 0)
        method = METHODS[name]()
        pair.append((Forwards(own.dit, sampler, "pos", condition, FRAMES, method.selective), method))
    draw, latents = Noise(0).of(0), []
    with torch.inference_mode():
        for chunk_idx in range(FRAMES // 3):
            x = draw(chunk_idx, 0, (1, 3, *model.latent_shape))
            for _, method in pair:
                method.begin_chunk(chunk_idx)
            for i in range(4):
                pos, neg = (forwards.denoise(x, chunk_idx, i, forced[i], method)[0] for forwards, method in pair)
                noise = lambda c=chunk_idx, k=i + 1: draw(c, k, (1, 3, *model.latent_shape))  # noqa: E731
                x = sampler.next(x, neg + SCALE * (pos - neg), i, noise)
            for forwards, _ in pair:
                forwards.commit(x, chunk_idx)
            latents.append(x)
    made = guided(model, METHODS[name]())
    assert torch.equal(made.latents, torch.cat(latents, 1))


def test_scale_one_is_no_guidance(model) -> None:
    plain = api.generate(model, PROMPT, schedule="FFFF", frames=FRAMES).rollout
    same = api.generate(model, PROMPT, NoCache(), schedule="FFFF", frames=FRAMES, guidance_scale=1.0).rollout
    assert torch.equal(plain.latents, same.latents) and same.passes == 1
    assert not torch.equal(plain.latents, guided(model, NoCache(), "FFFF").latents)


@pytest.mark.parametrize("decisions", ["separate", "shared"])
@pytest.mark.parametrize("name", ["teacache", "flowcache", "motioncache"])
def test_dial_at_zero_is_the_guided_reference(model, name: str, decisions: str) -> None:
    method = METHODS[name]()
    method.thresh = 0.0
    reference = guided(model, NoCache(), "FFFF")
    assert torch.equal(guided(model, method, "Fxxx", guidance_decisions=decisions).latents, reference.latents)


@pytest.mark.parametrize("name", ["teacache", "flowcache", "motioncache"])
def test_shared_decisions_compute_the_same_tokens(model, name: str, monkeypatch) -> None:
    """What each pass asks of its runner, step by step."""
    asked: dict[str, list] = {"pos": [], "neg": []}
    prepare = model.dit.prepare

    def watched(latent, t, context, ctx, control):
        run = prepare(latent, t, context, ctx, control)
        full, selected = run.full, run.selected
        if not ctx.store_kv:
            monkeypatch.setattr(run, "full", lambda: (asked[ctx.cache_tag].append((ctx.step_idx, "all")), full())[1])
            told = lambda sel: (asked[ctx.cache_tag].append((ctx.step_idx, sel.tolist())), selected(sel))[1]  # noqa: E731
            monkeypatch.setattr(run, "selected", told)
        return run

    model.dit.prepare = watched
    made = guided(model, METHODS[name](), "Fxxx", guidance_decisions="shared")
    assert asked["pos"] == asked["neg"]
    assert 0.25 < made.compute_fraction < 1


def test_both_passes_are_counted(model) -> None:
    alone = api.generate(model, PROMPT, schedule="FFFF", frames=FRAMES).rollout
    both = guided(model, NoCache(), "FFFF")
    assert (alone.forwards, both.forwards) == (2 * 5, 2 * 2 * 5)
    assert both.kv_bytes == 2 * alone.kv_bytes
    reused, single = guided(model, DirectReuse()), api.generate(model, PROMPT, DirectReuse(), frames=FRAMES).rollout
    assert reused.method_bytes == 2 * single.method_bytes
    assert reused.forward_fraction == single.forward_fraction == 0.6
    assert [c.letters for c in reused.chunks] == ["FRRF"] * 2


def test_letters_tell_passes_that_decide_apart() -> None:
    class Alternate(DirectReuse):
        """Computes every step in one of the two passes only."""

        turn = 0

        def step(self, step, run):
            self.note(None)
            return self.full(step, run) if step.forced_full or self.turn else self.reuse(step)

    model, pos, neg = load("t2v"), Alternate(), Alternate()
    neg.turn = 1
    condition = model.condition(PROMPT, 0, 3)
    made = rollout(
        model, {"pos": pos, "neg": neg}, FewStep(), (True, False, False, True), condition, 3, Noise(0).of(0),
        negative=model.negative(condition, OTHER, 0), guidance=SCALE,
    )  # fmt: skip
    assert made.chunks[0].letters == "FPPF" and made.chunks[0].fractions == [1, 0.5, 0.5, 1]


def test_a_store_pass_that_fails_leaves_both_tags_at_the_chunk_start() -> None:
    model = load("vace")
    prepare = model.dit.prepare

    def failing(latent, t, context, ctx, control):
        run = prepare(latent, t, context, ctx, control)
        if ctx.store_kv and ctx.chunk_idx == 1 and ctx.cache_tag == "neg":
            last = model.dit.blocks[-1].ffn

            def stop(*_):
                handle.remove()
                raise RuntimeError("out of memory")

            handle = last.register_forward_pre_hook(stop)
        return run

    model.dit.prepare = failing
    with pytest.raises(RuntimeError, match="out of memory"):
        guided(model, NoCache(), "FFFF")
    for branch, blocks in model.dit.branch_blocks.items():
        for block in blocks:
            for tag in ("pos", "neg"):
                assert model.dit.kv_cache_engines[branch].self_len(block.self_attn, cache_tag=tag) == 3 * 16


def test_without_words_the_negative_pass_sees_zero_rows() -> None:
    model = load("i2v")
    condition = model.condition(PROMPT, 0, FRAMES)
    silent = model.negative(condition, None, 0)
    assert not silent.prompt_embeds.any() and silent.channels is condition.channels
    assert torch.equal(model.negative(condition, OTHER, 0).prompt_embeds, model.encode_prompt(OTHER, 0))


def test_one_instance_cannot_serve_two_tags() -> None:
    model, method = load("t2v"), NoCache()
    model.dit.set_kv_engines(lambda branch: VanillaKVCacheEngine())
    condition = model.condition(PROMPT, 0, 3)
    with pytest.raises(UserError, match="its own"):
        rollout(
            model, {"pos": method, "neg": method}, FewStep(), (True,) * 4, condition, 3, Noise(0).of(0),
            negative=condition, guidance=2.0,
        )  # fmt: skip
    with pytest.raises(UserError, match="guide with both"):
        rollout(model, {"pos": method}, FewStep(), (True,) * 4, condition, 3, Noise(0).of(0), negative=condition)


def test_separate_methods_share_nothing_but_the_fit() -> None:
    method = TeaCache(thresh=0.2)
    pair = for_guidance(method, shared=False)
    assert pair["pos"] is method and pair["neg"] is not method
    assert pair["neg"].config() == method.config()
