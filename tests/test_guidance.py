"""Classifier-free guidance: two passes a step, each with its own K/V, method and decisions."""

import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from layouts import LAYOUTS

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


@pytest.fixture(params=LAYOUTS)
def model(request):
    return load(request.param)


def guided(model, method, schedule="FxxF", scale=SCALE, **options):
    return api.generate(
        model, PROMPT, method, schedule=schedule, frames=FRAMES, guidance_scale=scale, negative_prompt=OTHER, **options
    ).rollout


def by_hand(layout: str, make_method, sampler, schedule: str, known=()) -> torch.Tensor:
    """Two models that know nothing of each other, one told the prompt, one the negative prompt; ``known`` chunks are
    stored instead of denoised."""
    forced, pair = parse_schedule(schedule, 4), []
    for prompt in (PROMPT, OTHER):
        own, method = load(layout), make_method()
        condition = own.condition(PROMPT, 0, FRAMES)
        condition = condition if prompt == PROMPT else replace(condition, prompt_embeds=own.encode_prompt(OTHER, 0))
        pair.append((Forwards(own.dit, sampler, "pos", condition, FRAMES, method.selective), method))
    draw, latents, shape = Noise(0).of(0), list(known), (1, 3, *own.latent_shape)
    with torch.inference_mode():
        for chunk_idx, x in enumerate(known):
            for forwards, _ in pair:
                forwards.store(x, chunk_idx)
        for chunk_idx in range(len(known), FRAMES // 3):
            x = draw(chunk_idx, 0, shape)
            for _, method in pair:
                method.begin_chunk(chunk_idx)
            for i in range(4):
                pos, neg = (forwards.denoise(x, chunk_idx, i, forced[i], method)[0] for forwards, method in pair)
                x = sampler.next(x, neg + SCALE * (pos - neg), i, partial(draw, chunk_idx, i + 1, shape))
            for forwards, _ in pair:
                forwards.commit(x, chunk_idx)
            latents.append(x)
    return torch.cat(latents, 1)


@pytest.mark.parametrize("name", METHODS)
def test_guidance_is_two_single_passes_combined_by_hand(model, name: str) -> None:
    expected = by_hand(model.dit.config.layout, METHODS[name], FewStep(), "FxxF")
    assert torch.equal(guided(model, METHODS[name]()).latents, expected)


@pytest.mark.parametrize("store", ["clean", "reuse_last"])
def test_given_chunks_and_every_way_to_store_enter_both_passes(model, store: str) -> None:
    sampler = FewStep(store=store)
    given = torch.randn(1, 3, *model.latent_shape, generator=torch.Generator().manual_seed(1))
    condition = model.condition(PROMPT, 0, FRAMES)
    made = rollout(
        model, for_guidance(METHODS["motioncache"](), False), sampler, parse_schedule("FxxF", 4), condition, FRAMES,
        Noise(0).of(0), given=given, negative=model.negative(condition, OTHER, 0), guidance=SCALE,
    )  # fmt: skip
    expected = by_hand(model.dit.config.layout, METHODS["motioncache"], sampler, "FxxF", known=[given])
    assert torch.equal(made.latents, expected)
    assert made.forwards == 2 * (1 + 4 + (store == "clean"))


def test_scale_one_is_no_guidance(model) -> None:
    plain = api.generate(model, PROMPT, schedule="FFFF", frames=FRAMES).rollout
    same = api.generate(model, PROMPT, schedule="FFFF", frames=FRAMES, guidance_scale=1.0).rollout
    assert torch.equal(plain.latents, same.latents) and same.passes == 1
    assert not torch.equal(plain.latents, guided(model, NoCache(), "FFFF").latents)


@pytest.mark.parametrize("decisions", ["separate", "shared"])
@pytest.mark.parametrize("name", ["teacache", "flowcache", "motioncache"])
def test_dial_at_zero_is_the_guided_reference(model, name: str, decisions: str) -> None:
    method = METHODS[name]()
    method.thresh = 0.0
    reference = guided(model, NoCache(), "FFFF")
    made = guided(model, method, "Fxxx", guidance_decisions=decisions)
    assert torch.equal(made.latents, reference.latents) and [c.letters for c in made.chunks] == ["FFFF"] * 2


def test_interval_one_is_the_guided_reference(model) -> None:
    made = guided(model, TaylorSeer(interval=1.0), "Fxxx")
    assert torch.equal(made.latents, guided(model, NoCache(), "FFFF").latents)


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


@pytest.mark.parametrize("name", ["none", "reuse", "taylorseer"])
def test_methods_that_compare_nothing_decide_alike_in_either_case(name: str) -> None:
    runs = [guided(load("t2v"), METHODS[name](), "Fxxx", guidance_decisions=d) for d in ("separate", "shared")]
    assert torch.equal(runs[0].latents, runs[1].latents)
    assert "P" not in "".join(c.letters for c in runs[0].chunks)


@pytest.mark.parametrize("decisions", ["separate", "shared"])
def test_what_is_kept_of_a_token_is_of_one_age_in_both_passes(model, decisions: str) -> None:
    model.dit.set_kv_engines(lambda branch: VanillaKVCacheEngine(debug=True))
    made = guided(model, METHODS["motioncache"](), "Fxxx", guidance_decisions=decisions)
    assert "P" in "".join(c.letters for c in made.chunks)


def test_both_passes_are_counted(model) -> None:
    alone = api.generate(model, PROMPT, schedule="FFFF", frames=FRAMES).rollout
    both = guided(model, NoCache(), "FFFF")
    assert (alone.forwards, both.forwards) == (2 * 5, 2 * 2 * 5)
    assert both.kv_bytes == 2 * alone.kv_bytes
    reused, single = guided(model, DirectReuse()), api.generate(model, PROMPT, DirectReuse(), frames=FRAMES).rollout
    assert reused.method_bytes == 2 * single.method_bytes
    assert reused.forward_fraction == single.forward_fraction == 0.6
    assert [c.letters for c in reused.chunks] == ["FRRF"] * 2


def test_a_whole_video_takes_twice_its_forwards() -> None:
    model, seen = load("t2v"), []
    prepare = model.dit.prepare

    def watched(latent, t, context, ctx, control):
        seen.append((ctx.cache_tag, ctx.store_kv))
        return prepare(latent, t, context, ctx, control)

    model.dit.prepare = watched
    api.generate(model, PROMPT, schedule="FFFF", frames=21, guidance_scale=SCALE)
    counts = {(tag, store): seen.count((tag, store)) for tag in ("pos", "neg") for store in (False, True)}
    assert counts == {("pos", False): 28, ("pos", True): 7, ("neg", False): 28, ("neg", True): 7}


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


def test_a_guidable_model_is_led_away_from_the_empty_prompt() -> None:
    model, asked = load("vace"), []
    model.guidable = True
    encode = model.encode_prompt
    model.encode_prompt = lambda prompt, seed: (asked.append(prompt), encode(prompt, seed))[1]
    condition = model.condition(PROMPT, 0, FRAMES)
    assert model.negative(condition, None, 0).control is condition.control
    assert asked == [""]


@pytest.mark.parametrize(("decisions", "events"), [("separate", 2), ("shared", 1)])
def test_events_of_both_passes_are_counted_once(decisions: str, events: int) -> None:
    class Eventful(TeaCache):
        """Meets something not finite at the first step of every video."""

        def step(self, step, run):
            if (step.chunk_idx, step.step_idx) == (0, 0):
                self.nonfinite("something")
            return super().step(step, run)

    model, method = load("t2v"), Eventful(thresh=1.0)
    for videos in (1, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            guided(model, method, "Fxxx", guidance_decisions=decisions)
        assert method.nonfinite_events == videos * events


def test_one_instance_cannot_serve_two_tags() -> None:
    model, method = load("t2v"), NoCache()
    model.dit.set_kv_engines(lambda branch: VanillaKVCacheEngine())
    condition = model.condition(PROMPT, 0, 3)
    with pytest.raises(UserError, match="its own"):
        rollout(
            model, {"pos": method, "neg": method}, FewStep(), (True,) * 4, condition, 3, Noise(0).of(0),
            negative=condition, guidance=2.0,
        )  # fmt: skip
    with pytest.raises(UserError, match="pos and neg"):
        rollout(
            model, {"pos": method}, FewStep(), (True,) * 4, condition, 3, Noise(0).of(0), negative=condition,
            guidance=2.0,
        )  # fmt: skip


def test_separate_methods_share_nothing_but_the_fit() -> None:
    method = TeaCache(thresh=0.2)
    pair = for_guidance(method, shared=False)
    assert pair["pos"] is method and pair["neg"] is not method
    assert pair["neg"].config() == method.config()
