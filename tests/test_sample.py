"""The rollout: roles of forwards, bookkeeping, randomness, and what it refuses."""

import pytest
import torch

from fastcache.errors import UserError
from fastcache.kv_cache import KVCacheEngine
from fastcache.methods.motioncache import MotionCache
from fastcache.methods.none import NoCache
from fastcache.methods.reuse import DirectReuse
from fastcache.methods.teacache import TeaCache
from fastcache.models import toy
from fastcache.noise import Noise
from fastcache.sample import rollout
from fastcache.sampler import Euler, FewStep
from fastcache.schedule import ceiling, parse_schedule
from fastcache.step import StepResult

FRAMES = 9


def make(
    method=None, schedule="FFFF", sampler=None, frames=FRAMES, model=None, prompt="a red circle", seed=0, **options
):
    model = model or toy_model()
    sampler = sampler or FewStep()
    forced = parse_schedule(schedule, sampler.num_steps)
    embeds = model.encode_prompt(prompt, 0)
    options = {"draw": Noise(seed).of(0)} | options
    return rollout(model, {"pos": method or NoCache()}, sampler, forced, embeds, frames, **options)


def toy_model(**options):
    model = toy.load(**options)
    model.dit.set_kv_engines(lambda branch: KVCacheEngine())
    return model


class Spy(NoCache):
    """Notes what the rollout tells a method."""

    def __post_init__(self):
        self.told = []
        super().__post_init__()

    def begin_video(self):
        self.told = ["video"]
        super().begin_video()

    def begin_chunk(self, chunk_idx):
        self.told.append(("chunk", chunk_idx))
        super().begin_chunk(chunk_idx)

    def step(self, step, run):
        assert not run.ctx.store_kv
        self.told.append(("step", step.chunk_idx, step.step_idx, step.forced_full, round(step.sigma, 4)))
        return super().step(step, run)


def count_forwards(model, seen):
    """Record (timestep, stores, provisional rows kept) of every forward the DiT is prepared for."""
    prepare = model.dit.prepare

    def counted(latent, t, context, ctx, control):
        seen.append((round(float(t[0, 0]), 1), ctx.store_kv, ctx.keep_current))
        assert float(t.min()) == float(t.max()) and t.dtype == torch.float32
        return prepare(latent, t, context, ctx, control)

    model.dit.prepare = counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_twice_the_same_is_bit_identical(dtype):
    model = toy_model(dtype=dtype)
    first, again, elsewhere = make(model=model), make(model=model), make(model=toy_model(dtype=dtype))
    assert torch.equal(first.latents, again.latents) and torch.equal(first.latents, elsewhere.latents)
    assert first.latents.dtype == dtype and first.latents.shape == (1, FRAMES, *toy.LATENT_SHAPE)
    frames = toy.decode(first.latents)
    assert frames.shape == (FRAMES, 16, 16, 3) and frames.std() > 20 and frames[0].tolist() != frames[-1].tolist()


def test_prompt_seed_and_video_change_the_result():
    base = make().latents
    for other in ({"prompt": "a blue square"}, {"seed": 1}, {"draw": Noise(0).of(1)}):
        assert (make(**other).latents - base).abs().max() > 0.1


def test_nothing_of_a_former_video_remains():
    model, method = toy_model(), TeaCache(thresh=0.9)
    alone = make(method, "FxxF", model=model)
    make(method, "FxxF", model=model, prompt="a blue square", seed=3)
    after = make(method, "FxxF", model=model)
    assert torch.equal(alone.latents, after.latents)
    assert [c.letters for c in alone.chunks] == [c.letters for c in after.chunks]


def test_the_first_chunks_do_not_depend_on_the_length():
    assert torch.equal(make(frames=3).latents, make(frames=FRAMES).latents[:, :3])


def test_the_method_is_told_of_denoising_steps_only():
    method, model, seen = Spy(), toy_model(), []
    count_forwards(model, seen)
    make(method, "FxxF", model=model, frames=6)
    sigmas = [1.0, 0.9375, 0.8333, 0.625]
    steps = [[("step", c, i, i in (0, 3), s) for i, s in enumerate(sigmas)] for c in range(2)]
    assert method.told == ["video", ("chunk", -1), ("chunk", 0), *steps[0], ("chunk", 1), *steps[1]]
    assert seen == [*((t, False, False) for t in (1000.0, 937.5, 833.3, 625.0)), (0.0, True, False)] * 2


@pytest.mark.parametrize(
    ("schedule", "letters", "compute", "forward"),
    [("FFFF", "FFFF", 1.0, 1.0), ("FxxF", "FRRF", 0.5, 0.6), ("FFxx", "FFRR", 0.5, 0.6), ("Fxxx", "FRRR", 0.25, 0.4)],
)
def test_fractions_count_the_store_pass_once_a_chunk(schedule, letters, compute, forward):
    result = make(DirectReuse(), schedule)
    assert [c.letters for c in result.chunks] == [letters] * 3
    assert result.compute_fraction == pytest.approx(compute) and result.forward_fraction == pytest.approx(forward)
    assert result.forwards == 15 and [c.full_forwards for c in result.chunks] == [1, 1, 1]
    assert 1 / result.forward_fraction == pytest.approx(ceiling(parse_schedule(schedule, 4)))


def test_partial_steps_and_decisions_are_traced():
    result = make(MotionCache(thresh=1.2), "FxxF")
    fractions = [f for c in result.chunks for f in c.fractions]
    assert any(0 < f < 1 for f in fractions)
    for chunk in result.chunks:
        assert chunk.letters == "".join("F" if f == 1 else "P" if f else "R" for f in chunk.fractions)
        assert chunk.indicator[0] is None and all(isinstance(v, float) for v in chunk.indicator[1:3])
        assert chunk.compute_fraction == pytest.approx(sum(chunk.fractions) / 4)
    assert result.compute_fraction == pytest.approx(sum(fractions) / 12)
    assert result.forward_fraction == pytest.approx((sum(fractions) + 3) / 15)


def test_only_selective_methods_keep_the_rows_of_the_current_chunk():
    for method, keeps in ((NoCache(), False), (MotionCache(thresh=0.5), True)):
        model, seen = toy_model(), []
        count_forwards(model, seen)
        make(method, "FFFF", model=model, frames=3)
        assert {kept for _, store, kept in seen if not store} == {keeps}


def test_progress_is_told_after_every_step():
    told = []
    make(DirectReuse(), "FxxF", frames=6, on_step=lambda chunk_idx, trace: told.append((chunk_idx, trace.letters)))
    assert told == [(c, "FRRF"[: i + 1]) for c in range(2) for i in range(4)]


def recorded(**options):
    """Addresses drawn for one chunk."""
    seen = []
    noise = Noise(0).of(0)
    make(frames=3, draw=lambda c, i, shape: seen.append((c, i)) or noise(c, i, shape), **options)
    return seen


def test_fresh_and_shared_noise():
    assert recorded(sampler=FewStep(renoise="fresh")) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert recorded(sampler=FewStep(renoise="shared")) == [(0, 0)] * 4
    assert recorded(sampler=Euler()) == [(0, 0)]
    fresh, shared = (make(sampler=FewStep(renoise=kind)).latents for kind in ("fresh", "shared"))
    assert (fresh - shared).abs().max() > 0.1


def test_a_batch_is_its_videos_apart():
    model = toy_model()
    embeds = torch.cat([model.encode_prompt(p, 0) for p in ("a red circle", "a blue square")])
    both = rollout(model, {"pos": NoCache()}, FewStep(), (True,) * 4, embeds, 6, Noise(0).of(0, 1)).latents
    first = make(model=model, frames=6).latents
    second = make(model=model, frames=6, prompt="a blue square", draw=Noise(0).of(1)).latents
    torch.testing.assert_close(both, torch.cat([first, second]), atol=1e-5, rtol=1e-5)


def test_given_frames_are_stored_not_generated():
    whole = make()
    rest = make(given=whole.latents[:, :3])
    assert torch.equal(rest.latents, whole.latents)
    assert [c.letters for c in rest.chunks] == ["", "FFFF", "FFFF"] and rest.forwards == 11
    assert rest.compute_fraction == rest.forward_fraction == rest.chunks[0].compute_fraction == 1.0


def test_reuse_last_commits_without_a_store_pass():
    model, seen = toy_model(), []
    count_forwards(model, seen)
    result = make(model=model, sampler=FewStep(store="reuse_last"))
    assert len(seen) == result.forwards == 12 and not any(store for _, store, _ in seen)
    clean = make()
    assert torch.equal(result.latents[:, :3], clean.latents[:, :3])  # the first chunk has no past
    assert (result.latents - clean.latents)[:, 3:].abs().max() > 1e-3
    lean = make(MotionCache(thresh=0.0), "FxxF", sampler=FewStep(store="reuse_last"))
    assert torch.equal(lean.latents, result.latents)


def test_caches_are_counted_and_then_emptied():
    model = toy_model()
    result = make(DirectReuse(), "FxxF", model=model)
    block, cross = 2 * FRAMES * 16 * 48 * 4, 2 * toy.TEXT_LEN * 48 * 4
    assert result.kv_bytes == 2 * (block + cross)
    assert result.method_bytes == 3 * 16 * 48 * 4
    assert model.dit.kv_cache_engines["main"].block_lens("pos") == {0: 0, 1: 0}
    assert 0 < result.dit_seconds < result.seconds


def fail_in(model, chunk_idx, store):
    """Make the last block of one forward raise."""
    last = model.dit.blocks[-1].ffn

    def hook(module, args):
        if hook.armed:
            raise RuntimeError("out of memory")

    hook.armed = False
    last.register_forward_pre_hook(hook)
    prepare = model.dit.prepare

    def armed(latent, t, context, ctx, control):
        hook.armed = ctx.store_kv is store and ctx.chunk_idx == chunk_idx
        return prepare(latent, t, context, ctx, control)

    model.dit.prepare = armed
    return hook


def test_a_failed_store_pass_leaves_the_engine_at_the_chunk_start():
    model = toy_model()
    expected = make(model=model)
    hook = fail_in(model, chunk_idx=1, store=True)
    with pytest.raises(RuntimeError, match="out of memory"):
        make(model=model)
    assert model.dit.kv_cache_engines["main"].block_lens("pos") == {0: 48, 1: 48}
    model.dit.prepare = type(model.dit).prepare.__get__(model.dit)
    hook.armed = False
    assert torch.equal(make(model=model).latents, expected.latents)


def test_nothing_is_left_for_autograd():
    assert make(frames=3).latents.is_inference()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 20}, "18 or 21"),
        ({"frames": 0}, "at least 1"),
        ({"frames": 1026}, "1024 time positions"),
        ({"sampler": FewStep(frames_per_chunk=1)}, "3 frames a chunk"),
        ({"given": torch.zeros(1, 4, *toy.LATENT_SHAPE)}, "whole chunks of 3"),
        ({"given": torch.zeros(1, 12, *toy.LATENT_SHAPE)}, "at most frames=9"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        make(**options)


@pytest.mark.parametrize("forced", [(True,) * 3, (False, True, True, True)])
def test_a_schedule_that_does_not_fit_is_refused(forced):
    model = toy_model()
    embeds = model.encode_prompt("a red circle", 0)
    with pytest.raises(UserError, match="must start with F"):
        rollout(model, {"pos": NoCache()}, FewStep(), forced, embeds, 9, Noise(0).of(0))
    with pytest.raises(UserError, match="expected one"):
        rollout(model, {}, FewStep(), (True,) * 4, embeds, 9, Noise(0).of(0))


def test_toy_weights_are_named_by_their_hash():
    assert toy.load().weights_hash == toy.load(dtype=torch.bfloat16).weights_hash
    assert len({toy.load().weights_hash, toy.load(seed=1).weights_hash, toy.load(layers=3).weights_hash}) == 3
    with pytest.raises(UserError, match="leave the option out"):
        toy.load(weights="model.safetensors")


class Half(NoCache):
    """A method written without notes of its decisions."""

    def step(self, step, run):
        return StepResult(run.full(), 1.0)


def test_a_method_may_decide_without_an_indicator():
    assert make(Half(), frames=3).chunks[0].indicator == [None] * 4
