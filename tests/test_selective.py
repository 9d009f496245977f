"""The token-selective forward: what it computes, what it leaves alone, and how it fits the methods that use it."""

import random

import pytest
import torch
from layouts import LAYOUTS
from selective_toys import FRAMES, FULL, PARTLY, Chunk, L, ListPlan, S, by_list, oracle_block
from torch.utils.flop_counter import FlopCounterMode

from fastcache.kv_cache import CacheNotFilledError, KVCacheEngine
from fastcache.methods.motioncache import MotionCache
from fastcache.methods.none import NoCache
from fastcache.models import toy
from fastcache.noise import Noise
from fastcache.sample import rollout
from fastcache.sampler import FewStep
from fastcache.step import Step

SEL = torch.tensor([3, 4, 7, 15, 16, 30, 31, 32, 40, 47])
DTYPES = [torch.float32, torch.bfloat16]
on_all_layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.inference_mode():
        yield


def pair(**kwargs):
    """Two equal chunks after the same full step."""
    chunks = Chunk(**kwargs), Chunk(**kwargs)
    for chunk in chunks:
        chunk.run(1, FULL).full()
    assert torch.equal(chunks[0].rows(), chunks[1].rows())
    return chunks


def tolerance(dtype):
    # Matrix products of M and of L rows are blocked differently.
    return {"atol": 0.0, "rtol": 0.0} if dtype == torch.bfloat16 else {"atol": 2e-6, "rtol": 1e-5}


@on_all_layouts
@pytest.mark.parametrize("dtype", DTYPES)
def test_p1_all_tokens_equal_the_full_forward(dtype, layout):
    a, b = pair(dtype=dtype, layout=layout)
    old = a.rows()
    full, selected = a.run(2, PARTLY).full(), b.run(2, PARTLY).selected(torch.arange(L))
    assert torch.equal(full, selected)
    assert torch.equal(a.rows(), b.rows())
    assert (a.rows().float() - old.float()).abs().max() > 0.1  # the step did change the rows


@on_all_layouts
def test_p2_no_token_touches_nothing(layout):
    chunk = Chunk(layout=layout)
    chunk.run(1, FULL).full()
    rows, prefix = chunk.rows(), chunk.prefix()
    out = chunk.run(2, PARTLY).selected(torch.empty(0, dtype=torch.int64))
    assert out.shape == (1, 0, 48)
    assert torch.equal(chunk.rows(), rows) and torch.equal(chunk.prefix(), prefix)


def step_of(run, i, forced=False):
    return Step(run.x, run.e0, run.grid, chunk_idx=1, step_idx=i, forced_full=forced, sigma=0.9)


def test_p2_a_step_without_tokens_is_input_plus_residual():
    chunk, method = Chunk(), MotionCache(thresh=1e9)
    first, second = chunk.run(1, FULL), chunk.run(2, PARTLY)
    method.begin_video()
    method.begin_chunk(1)
    residual = method.step(step_of(first, 0, forced=True), first).x - first.x
    result = method.step(step_of(second, 1), second)
    assert result.fraction == 0 and torch.equal(result.x, second.x + residual)


@on_all_layouts
def test_p3_the_order_of_tokens_does_not_matter(layout):
    a, b = pair(layout=layout)
    order = torch.tensor(random.Random(0).sample(range(len(SEL)), len(SEL)))
    one, two = a.run(2, PARTLY).selected(SEL), b.run(2, PARTLY).selected(SEL[order])
    assert torch.equal(one[:, order], two)
    assert torch.equal(a.rows(), b.rows())


@on_all_layouts
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sel", [SEL, torch.tensor([5]), torch.arange(S, 2 * S)], ids=["some", "one", "a frame"])
def test_p4_recomputing_the_same_step_changes_nothing(dtype, sel, layout):
    chunk = Chunk(dtype=dtype, layout=layout)
    full = chunk.run(1, FULL).full()
    rows = chunk.rows()
    torch.testing.assert_close(chunk.run(1, FULL).selected(sel), full[:, sel], **tolerance(dtype))
    torch.testing.assert_close(chunk.rows(), rows, **tolerance(dtype))


@on_all_layouts
@pytest.mark.parametrize("dtype", DTYPES)
def test_p5_only_the_selected_rows_change(dtype, layout):
    a, b = pair(dtype=dtype, layout=layout)
    rows, prefix = a.rows(), a.prefix()
    a.run(2, PARTLY).selected(SEL)
    b.run(2, PARTLY).full()
    others = torch.tensor([j for j in range(L) if j not in SEL])
    new, full = a.rows(), b.rows()
    assert torch.equal(new[:, :, :, others], rows[:, :, :, others])
    assert torch.equal(a.prefix(), prefix)
    assert a.lengths() == {L}
    torch.testing.assert_close(new[0][:, :, SEL], full[0][:, :, SEL], **tolerance(dtype))
    assert not torch.equal(new[2][:, :, SEL], full[2][:, :, SEL])  # deeper rows saw stale neighbours


@on_all_layouts
def test_p6_the_committed_cache_forgets_what_was_skipped(layout):
    a, b = pair(layout=layout)
    a.run(2, PARTLY).selected(SEL)
    b.run(2, PARTLY).full()
    b.run(3, PARTLY).selected(SEL[:2])
    for chunk in (a, b):
        chunk.commit(chunk.latents[4])
    assert torch.equal(a.prefix(), b.prefix())


def parts(cross, context):
    """K and V of a context's text and, where there is one, of its image, by the equations."""
    n = cross.image_len
    kv = [(cross.norm_k(cross.k(context[:, n:])), cross.v(context[:, n:]))]
    if n:
        kv.append((cross.norm_k_img(cross.k_img(context[:, :n])), cross.v_img(context[:, :n])))
    return [[w.unflatten(-1, (4, -1)) for w in pair] for pair in kv]


@on_all_layouts
def test_p7_one_block_a_branch_equals_a_hand_written_oracle(layout):
    chunk = Chunk(layers=1, layout=layout)
    chunk.run(1, FULL).full()
    kv_full, prefix, dit = chunk.rows(), chunk.prefix(), chunk.dit
    run = chunk.run(2, PARTLY)

    def oracle(place, block, x):
        m = (block.modulation[:, None] + run.e0).unbind(2)
        kv = parts(block.cross_attn, chunk.text)
        at = lambda value, tokens: value[:, tokens // S]  # noqa: E731
        return oracle_block(block, at, x, m, run.rope, SEL, kv_full[place], prefix[place], kv)

    expected = oracle(0, dit.blocks[0], run.x)
    if layout == "vace":
        (block,) = dit.vace_blocks
        hint = block.after_proj(oracle(1, block, block.before_proj(run.control) + run.x))
        assert hint.abs().max() > 0.1
        expected = expected + 0.7 * hint
    torch.testing.assert_close(run.selected(SEL), expected, atol=3e-6, rtol=1e-5)


@on_all_layouts
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_p8_the_engine_equals_lists_of_tensors(dtype, seed, layout):
    choose = random.Random(seed)
    chunk, plan = Chunk(dtype=dtype, layout=layout), ListPlan()
    chunk.restart()
    for _ in range(4):
        steps = [None] + [choose.sample(range(L), choose.randint(1, L)) for _ in range(choose.randint(0, 3))]
        steps += [None] * choose.randint(0, 1)
        for sel in steps:
            run = chunk.run(torch.randn_like(chunk.latents[0]), choose.uniform(100, 1000))
            tokens = None if sel is None else torch.tensor(sel)
            got = run.full() if tokens is None else run.selected(tokens)
            assert torch.equal(got, by_list(run, plan, tokens))
            rows = torch.stack([torch.stack(plan.current[module]) for _, module in chunk.attention()])
            assert torch.equal(chunk.rows(), rows)
        run = chunk.run(torch.randn_like(chunk.latents[0]), 0.0, store=True)
        assert torch.equal(run.full(), by_list(run, plan, store=True))
        chunk.start_frame += FRAMES


def test_p9_frame_groups_one_after_the_other_are_not_the_joint_forward():
    a, b = pair()
    groups = torch.arange(2 * S).split(S)
    joint = a.run(2, PARTLY).selected(torch.cat(groups))
    run = b.run(2, PARTLY)
    apart = torch.cat([run.selected(group) for group in groups], dim=1)
    assert (joint - apart)[:, :S].abs().max() > 1e-3  # the first group cannot see the second one's fresh rows


def test_p10_a_second_call_sees_the_rows_of_the_calls_between():
    chunk = Chunk()
    chunk.run(1, FULL).full()
    run = chunk.run(2, PARTLY)
    first = run.selected(SEL[:5])
    run.selected(SEL[5:])
    assert (run.selected(SEL[:5]) - first).abs().max() > 1e-3


@on_all_layouts
@pytest.mark.parametrize("dtype", DTYPES)
def test_p11_a_batch_is_its_videos_apart(dtype, layout):
    # Of I2V's few image tokens even a full product is blocked otherwise in a batch.
    both = Chunk(dtype=dtype, batch=2, layout=layout)
    both.run(1, FULL).full()
    expected = both.run(2, PARTLY).selected(SEL)
    for i in range(2):
        alone = Chunk(dtype=dtype, batch=2, layout=layout, only=i)
        alone.run(1, FULL).full()
        close = {"atol": 0.1, "rtol": 0.02} if (dtype, layout) == (torch.bfloat16, "i2v") else tolerance(dtype)
        torch.testing.assert_close(alone.run(2, PARTLY).selected(SEL), expected[i : i + 1], **close)


def video(method, layout="t2v", dtype=torch.float32, schedule=(True, False, False, True)):
    model = toy.load(dtype=dtype, layout=layout)
    model.dit.set_kv_engines(lambda branch: KVCacheEngine())
    condition = model.condition("a red circle", 0, 9)
    return rollout(model, {"pos": method}, FewStep(), schedule, condition, 9, Noise(0).of(0))


@on_all_layouts
@pytest.mark.parametrize("dtype", DTYPES)
def test_p12_threshold_zero_is_the_video_without_cache(dtype, layout):
    cached, plain = video(MotionCache(thresh=0.0), layout, dtype), video(NoCache(), layout, dtype, (True,) * 4)
    assert torch.equal(cached.latents, plain.latents)
    assert cached.compute_fraction == 1


def test_p13_the_fraction_is_the_share_of_the_blocks_work():
    chunk, method = Chunk(), MotionCache(thresh=1.4)
    first, second = chunk.run(1, FULL), chunk.run(2, PARTLY)
    method.begin_video()
    method.begin_chunk(1)
    work = []
    for i, run in enumerate((first, second)):
        with FlopCounterMode(display=False) as counter:
            result = method.step(step_of(run, i, forced=i == 0), run)
        work.append(counter.get_total_flops())
    assert 0 < result.fraction < 1
    assert work[1] / work[0] == result.fraction


class Aged(MotionCache):
    """MotionCache that looks, after every step, where residual and K/V rows of each token come from."""

    def begin_video(self):
        super().begin_video()
        self.partial = 0

    def step(self, step, run):
        asked = []
        select = run.selected
        run.selected = lambda tokens: asked.append(tokens) or select(tokens)
        result = super().step(step, run)
        kv = [
            run.ctx.cache_engines[branch].get_current_kv(block.self_attn, cache_tag="pos")
            for branch, blocks in run.dit.branch_blocks.items()
            for block in blocks
        ]
        state = torch.cat(
            [torch.stack([torch.cat(pair, -1) for pair in kv]).flatten(3).movedim(0, 2).flatten(2), self.residual], -1
        )
        if step.step_idx == 0:
            self.history, self.age = [], torch.zeros(L, dtype=torch.int64)
        self.history.append(state.clone())
        if result.fraction == 1:
            self.age[:] = step.step_idx
        elif asked:
            self.age[asked[0]] = step.step_idx
            self.partial += 1
        for token in range(L):
            assert torch.equal(state[:, token], self.history[self.age[token]][:, token])
        return result


@on_all_layouts
def test_residual_and_rows_of_a_token_are_of_one_age(layout):
    method = Aged(thresh=1.2)
    video(method, layout, schedule=(True, False, False, False))
    assert method.partial >= 3


@on_all_layouts
def test_a_selective_step_needs_a_full_one_of_its_chunk(layout):
    chunk = Chunk(layout=layout)
    with pytest.raises(CacheNotFilledError):
        chunk.run(2, PARTLY).selected(SEL)
    chunk.run(1, FULL).full()
    chunk.commit(chunk.latents[2])
    with pytest.raises(CacheNotFilledError):
        chunk.run(3, PARTLY).selected(SEL)
