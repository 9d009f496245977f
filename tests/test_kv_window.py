"""The window engine: who sees whom, what is evicted when, and rotary positions inside the window."""

import pytest
import torch
from kv_toys import CROSS, DIM, HEADS, at, build, rand, refused

import fastcache.kv_cache as kv
from fastcache import api
from fastcache.errors import UserError
from fastcache.models import toy

FRAME = 2
SPEC = kv.KVSpec(1, HEADS, DIM, torch.float32, "cpu", None, CROSS, FRAME)
VISIBLE = {  # (window, sink): frames after chunk 0, 1, 2, ... of three frames; Self-Forcing's rolling buffer
    (6, 0): ("0-2", "0-5", "3-8", "6-11", "9-14"),
    (6, 3): ("0-2", "0-5", "0-2 6-8", "0-2 9-11"),
    (9, 3): ("0-2", "0-5", "0-8", "0-2 6-11", "0-2 9-14"),
    (7, 0): ("0-2", "0-5", "2-8", "5-11"),
    (7, 1): ("0-2", "0-5", "0-0 3-8", "0-0 6-11"),
}


def window(window_frames, sink_frames, **options):
    make = kv.WindowKVCacheEngine
    return build(1, ("pos",), SPEC, make, window_frames=window_frames, sink_frames=sink_frames, **options)


def numbered(first, count):
    """K of frames that carry their own number."""
    frames = torch.arange(first, first + count).repeat_interleave(FRAME).float()
    return frames[None, :, None, None].expand(1, -1, HEADS, DIM).clone()


def frames_of(spans):
    return [f for span in spans.split() for f in range(int(span.split("-")[0]), int(span.split("-")[1]) + 1)]


@pytest.mark.parametrize("sizes", VISIBLE)
@pytest.mark.parametrize("grad", [False, True])
def test_the_frames_that_each_chunk_sees(sizes, grad):
    engine, blocks = window(*sizes)
    module = blocks[0].self_attn
    for chunk, spans in enumerate(VISIBLE[sizes]):
        k = numbered(3 * chunk, 3)
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                seen, _ = engine.attend_view(module, k, k, **at(3 * chunk * FRAME))
                assert seen[0, ::FRAME, 0, 0].tolist() == frames_of(spans)
            engine.append_self_kv(module, k, k, **at(3 * chunk * FRAME))


@torch.no_grad()
def test_only_the_first_forward_of_a_chunk_evicts():
    engine, blocks = window(6, 3)
    module, entry = blocks[0].self_attn, engine._self_kv[0]["pos"]
    gone = []
    for chunk in range(4):
        k = numbered(3 * chunk, 3)
        for use in (engine.attend_view, engine.put_current_kv, engine.attend_view, engine.append_self_kv):
            use(module, k, k, **at(3 * chunk * FRAME))
            gone.append(entry.evicted // FRAME)
    assert gone == [0] * 8 + [3] * 4 + [6] * 4


@torch.no_grad()
def test_what_has_left_is_not_made_up():
    engine, blocks = window(6, 3)
    module = blocks[0].self_attn
    for chunk in range(4):
        k = numbered(3 * chunk, 3)
        engine.append_self_kv(module, k, k, **at(3 * chunk * FRAME))
    k = numbered(0, 3)
    seen, _ = engine.attend_view(module, k, k, **at(9 * FRAME))
    assert seen[0, ::FRAME, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]  # chunk 3 again: the sink and itself
    with refused(engine, kv.EvictedError, "have left the window"):
        engine.truncate("pos", 6 * FRAME)
    engine.truncate("pos", 3 * FRAME)
    assert engine.attend_view(module, k, k, **at(3 * FRAME))[0].shape[1] == 6 * FRAME


def test_memory_is_that_of_the_window():
    engine, blocks = window(6, 3)
    size = engine.memory_bytes()
    assert size == 2 * (6 * FRAME + CROSS) * HEADS * DIM * 4
    for chunk in range(40):
        k = rand(3 * FRAME)
        engine.append_self_kv(blocks[0].self_attn, k, k, **at(3 * chunk * FRAME))
        assert engine.memory_bytes() == size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_frames": 4, "sink_frames": 4}, "window_frames=4 is too small"),
        ({"window_frames": 0}, "1 or more"),
        ({"window_frames": 2.5}, "whole number"),
        ({"sink_frames": -1}, "0 or more"),
        ({"rope": "sideways"}, "absolute, relative"),
    ],
)
def test_refuses_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        kv.WindowKVCacheEngine(**options)


def test_refuses_a_chunk_that_does_not_fit_beside_the_sink():
    engine, blocks = window(6, 4)
    for use in (engine.append_self_kv, engine.put_current_kv, engine.attend_view):
        with refused(engine, kv.CapacityExceededError, "chunk of 6 tokens and a sink of 8 exceed the window of 12"):
            use(blocks[0].self_attn, rand(3 * FRAME), rand(3 * FRAME), **at(0))
    with pytest.raises(UserError, match="sink_frames=4 and a chunk of 3 frames"):
        engine.check_frames(3, 21)
    with pytest.raises(kv.KVSpecMismatchError, match="frame_tokens"):
        build(1, ("pos",), kv.KVSpec(1, HEADS, DIM, torch.float32, "cpu"), kv.WindowKVCacheEngine)


def latents(frames, **options):
    model = toy.load()
    model.dit.set_kv_engines(lambda branch: kv.WindowKVCacheEngine(**options))
    return api.generate(model, "a red circle", schedule="FFFF", frames=frames).rollout.latents


def test_relative_positions_begin_as_absolute_ones_and_go_on_beyond_the_table(monkeypatch):
    absolute = latents(12, window_frames=6, sink_frames=3)
    relative = latents(12, window_frames=6, sink_frames=3, rope="relative")
    assert torch.equal(absolute[:, :6], relative[:, :6])
    assert not torch.allclose(absolute[:, 6:], relative[:, 6:])
    monkeypatch.setattr("fastcache.models.rope.MAX_POSITIONS", 8)  # rows and columns need four
    monkeypatch.setattr("fastcache.models.dit.CausalWanDiT.max_frames", 8)
    assert torch.equal(latents(12, window_frames=6, sink_frames=3, rope="relative"), relative)
    with pytest.raises(UserError, match="engine=window engine.rope=relative"):
        latents(12, window_frames=6, sink_frames=3)


def test_without_a_sink_only_differences_of_positions_count():
    """No sink: the visible frames keep their distances, so both ways of counting agree up to rounding."""
    absolute = latents(12, window_frames=6, sink_frames=0)
    relative = latents(12, window_frames=6, sink_frames=0, rope="relative")
    assert torch.allclose(absolute, relative, atol=1e-4)
