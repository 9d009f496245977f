"""Any history of legal and illegal operations, on every engine, against plain lists of frames."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_oracle import CAPACITY, FRAME, Oracle, chunk, rows
from kv_toys import CROSS, DIM, HEADS, at, build, rand, refused
from torch import nn

import fastcache.kv_cache as kv

ENGINES = {  # constructor, its options, the oracle's, how far a committed value may be off
    "vanilla": (kv.VanillaKVCacheEngine, {}, {}, 0),
    "static": (kv.StaticKVCacheEngine, {}, {}, 0),
    "window-7-2": (kv.WindowKVCacheEngine, {"window_frames": 7, "sink_frames": 2}, {"window": 7, "sink": 2}, 0),
    "window-4-1": (kv.WindowKVCacheEngine, {"window_frames": 4, "sink_frames": 1}, {"window": 4, "sink": 1}, 0),
    "int8": (kv.QuantizedKVCacheEngine, {"bits": 8}, {}, 0.03),
    "int8-channel": (kv.QuantizedKVCacheEngine, {"bits": 8, "keys": "channel"}, {}, 0.03),
    "int4": (kv.QuantizedKVCacheEngine, {"bits": 4}, {}, 0.4),
    "offload": (kv.OffloadKVCacheEngine, {}, {}, 0),
}
SPEC = kv.KVSpec(1, HEADS, DIM, torch.float32, "cpu", CAPACITY * FRAME, CROSS, FRAME)
LEGAL = ("full", "part", "store", "attend", "cut", "clear")
ILLEGAL = ("gap", "double", "inside", "spec", "batch", "tag", "module", "nan", "select", "no draft", "graph", "beyond")
HISTORY = st.lists(
    st.tuples(st.sampled_from(LEGAL * 3 + ILLEGAL), st.sampled_from(["pos", "neg"]), st.integers(0, 99)), max_size=14
)


def drawn(examples):
    """Run a test on so many histories."""
    patient = settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    return lambda test: patient(given(history=HISTORY, grad=st.booleans())(test))


@pytest.mark.parametrize("name", ENGINES)
@drawn(60)
def test_any_history_matches_lists_of_frames(name, history, grad):
    follow(name, history, grad)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
@drawn(1000)
def test_a_thousand_histories_match_lists_of_frames(name, history, grad):
    follow(name, history, grad)


def follow(name, history, grad):
    """Every legal operation gives what lists of frames give, every illegal one its error and nothing else."""
    make, options, bound, off = ENGINES[name]
    engine, blocks = build(spec=SPEC, make=make, **options)
    oracles = {(i, tag): Oracle(**bound) for i in range(len(blocks)) for tag in ("pos", "neg")}
    with nullcontext() if grad else torch.no_grad():
        for number, (op, tag, seed) in enumerate(history):
            torch.manual_seed(number)
            mine = [oracles[i, tag] for i in range(len(blocks))]
            if op in ILLEGAL:
                refuse(engine, blocks[seed % 2].self_attn, mine[seed % 2], op, tag)
            elif op in ("cut", "clear"):
                cut(engine, mine, op, tag, seed)
            else:
                for block, oracle in zip(blocks, mine, strict=True):
                    play(engine, block.self_attn, oracle, op, tag, seed, off)
        for (i, tag), oracle in oracles.items():
            agree(engine, blocks[i].self_attn, oracle, tag, off)


def play(engine, module, oracle, op, tag, seed, off):
    count, start = 1 + seed % 3, len(oracle.frames)
    if op == "part":
        return part(engine, module, oracle, tag, seed)
    new = chunk(count)
    call = {"full": engine.put_current_kv, "store": engine.append_self_kv, "attend": engine.attend_view}[op]
    seen = oracle.sees(start, count)
    writes = op != "attend" or (not torch.is_grad_enabled() and isinstance(engine, kv.StaticKVCacheEngine))
    if oracle.window is None and start + count > CAPACITY and writes:
        with refused(engine, kv.CapacityExceededError):
            call(module, rows(new, 0), rows(new, 1), **at(start * FRAME, tag))
        return
    if seen is None:
        with refused(engine, kv.EvictedError):
            call(module, rows(new, 0), rows(new, 1), **at(start * FRAME, tag))
        return
    got = call(module, rows(new, 0), rows(new, 1), **at(start * FRAME, tag))
    if writes:
        oracle.evict(count)
    if op == "full":
        oracle.draft = [rows(new, 0), rows(new, 1)]
    elif op == "store":
        oracle.frames += new
        oracle.bounds.append(len(oracle.frames))
        oracle.draft = None
    else:
        near(got, [oracle.frames[i] for i in seen], off, new)


def part(engine, module, oracle, tag, seed):
    if oracle.draft is None:
        return
    index = torch.randperm(oracle.draft[0].shape[1])[: seed % 5]
    k, v = rand(len(index)), rand(len(index))
    got = engine.scatter_current_kv(module, index, k, v, **at(len(oracle.frames) * FRAME, tag))
    oracle.draft = [oracle.draft[0].index_copy(1, index, k), oracle.draft[1].index_copy(1, index, v)]
    assert torch.equal(got[0], oracle.draft[0]) and torch.equal(got[1], oracle.draft[1])


def cut(engine, oracles, op, tag, seed):
    """Truncation to a boundary that all blocks have, or clear()."""
    bound = 0 if op == "clear" else oracles[0].bounds[seed % len(oracles[0].bounds)]
    if any(o.sink < bound < o.sink + o.gone for o in oracles):
        with refused(engine, kv.EvictedError):
            engine.truncate(tag, bound * FRAME)
        return
    engine.clear(tag) if op == "clear" else engine.truncate(tag, bound * FRAME)
    for oracle in oracles:
        oracle.cut(bound)


def refuse(engine, module, oracle, op, tag):
    """One illegal use: the documented class, and nothing changed."""
    end, k, good = len(oracle.frames) * FRAME, rand(FRAME), at(len(oracle.frames) * FRAME, tag)
    append, attend, scatter = engine.append_self_kv, engine.attend_view, engine.scatter_current_kv
    room = oracle.sees(len(oracle.frames), 1) is not None and (oracle.window or len(oracle.frames) < CAPACITY)
    uses = {
        "gap": (kv.ChunkOrderError, lambda: append(module, k, k, **at(end + 2, tag))),
        "double": (kv.ChunkOrderError, lambda: append(module, k, k, **at(end - 1, tag))),
        "inside": (kv.ChunkBoundaryError, lambda: attend(module, k, k, **at(end - 1, tag)) if end else None),
        "beyond": (kv.ChunkBoundaryError, lambda: engine.truncate(tag, end + 1)),
        "spec": (kv.KVSpecMismatchError, lambda: attend(module, k.double(), k.double(), **good)),
        "batch": (kv.KVSpecMismatchError, lambda: append(module, rand(2, batch=2), rand(2, batch=2), **good)),
        "tag": (kv.UnknownTagError, lambda: attend(module, k, k, **at(end, "other"))),
        "module": (kv.UnregisteredModuleError, lambda: attend(nn.Identity(), k, k, **good)),
        "nan": (kv.NonFiniteError, lambda: append(module, k, k * float("nan"), **good) if room else None),
        "select": (kv.SelectionError, lambda: scatter(module, torch.tensor([99]), k, k, **good)),
        "no draft": (kv.CacheNotFilledError, lambda: scatter(module, torch.tensor([0]), k, k, **at(end + 2, tag))),
        "graph": (kv.GradientStoreError, lambda: append(module, k.requires_grad_(), k, **good)),
    }
    error, use = uses[op]
    needless = {
        "inside": not end,
        "nan": not room,
        "select": oracle.draft is None,
        "graph": not torch.is_grad_enabled(),
    }
    if not needless.get(op, False):
        with refused(engine, error):
            use()


def near(got, past, off, new=()):
    """Committed frames to within ``off``, the current chunk exactly."""
    for part in (0, 1):
        count = FRAME * len(past)
        assert got[part].shape[1] == count + FRAME * len(new)
        assert count == 0 or (got[part][:, :count] - rows(past, part)).abs().max() <= off
        assert torch.equal(got[part][:, count:], rows(new, part))


def agree(engine, module, oracle, tag, off):
    """Every position of the past shows what it should, in one view and in pieces; the draft is whole."""
    assert engine.self_len(module, cache_tag=tag) == len(oracle.frames) * FRAME
    prefix = engine.get_self_prefix(module, cache_tag=tag)
    assert (prefix is None) == (not oracle.frames)
    if prefix is not None:
        near(prefix, oracle.held(), off)
    if oracle.draft is not None:
        draft = engine.get_current_kv(module, cache_tag=tag)
        assert torch.equal(draft[0], oracle.draft[0]) and torch.equal(draft[1], oracle.draft[1])
    new = chunk(1)
    k, v = rows(new, 0), rows(new, 1)
    for bound in oracle.bounds[:-1]:
        seen = oracle.sees(bound, 1)
        if seen is None:
            with refused(engine, kv.EvictedError):
                engine.attend_view(module, k, v, **at(bound * FRAME, tag))
            continue
        past = [oracle.frames[i] for i in seen]
        near(engine.attend_view(module, k, v, **at(bound * FRAME, tag)), past, off, new)
        pieces = list(engine.attend_pieces(module, k, v, **at(bound * FRAME, tag)))
        near([torch.cat([piece[part] for piece in pieces], 1) for part in (0, 1)], past, off, new)
