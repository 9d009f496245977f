"""Any history of steps, store passes and truncations, against plain lists of frames."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_toys import at, build, rand

FRAME = 2  # tokens


class Oracle:
    """The same rollout kept as one (k, v) pair per frame, and chunk boundaries in frames."""

    def __init__(self):
        self.frames, self.bounds, self.draft = [], [0], None

    def rows(self, frames, part):
        return torch.cat([f[part] for f in frames], 1) if frames else rand(0)


OPERATIONS = st.sampled_from(["full", "part", "store", "cut", "clear"])
HISTORY = st.lists(st.tuples(OPERATIONS, st.sampled_from(["pos", "neg"]), st.integers(0, 99)), max_size=20)


@settings(max_examples=60, deadline=None)
@given(HISTORY)
def test_any_history_matches_lists_of_frames(history):
    engine, blocks = build()
    oracles = {(i, tag): Oracle() for i in range(len(blocks)) for tag in ("pos", "neg")}
    for number, (op, tag, seed) in enumerate(history):
        torch.manual_seed(number)
        for i, block in enumerate(blocks):
            play(engine, block.self_attn, oracles[i, tag], op, tag, seed)
        if op == "cut":
            engine.truncate(tag, len(oracles[0, tag].frames) * FRAME)
        if op == "clear":
            engine.clear(tag)
        for (i, t), oracle in oracles.items():
            agree(engine, blocks[i].self_attn, oracle, t)


def play(engine, module, oracle, op, tag, seed):
    """One operation on one block and its oracle; cut and clear act on the engine once for all blocks, later."""
    here = at(len(oracle.frames) * FRAME, tag)
    chunk = [(rand(FRAME), rand(FRAME)) for _ in range(1 + seed % 3)]
    if op == "full":
        engine.put_current_kv(module, oracle.rows(chunk, 0), oracle.rows(chunk, 1), **here)
        oracle.draft = (oracle.rows(chunk, 0), oracle.rows(chunk, 1))
    elif op == "part" and oracle.draft is not None:
        index = torch.randperm(oracle.draft[0].shape[1])[: seed % 5]
        k, v = rand(len(index)), rand(len(index))
        engine.scatter_current_kv(module, index, k, v, **here)
        for row, token in enumerate(index.tolist()):
            oracle.draft[0][:, token], oracle.draft[1][:, token] = k[:, row], v[:, row]
    elif op == "store":
        engine.append_self_kv(module, oracle.rows(chunk, 0), oracle.rows(chunk, 1), **here)
        oracle.frames += chunk
        oracle.bounds.append(len(oracle.frames))
        oracle.draft = None
    elif op in ("cut", "clear"):
        keep = oracle.bounds[: 1 + seed % len(oracle.bounds)] if op == "cut" else [0]
        oracle.bounds, oracle.frames, oracle.draft = keep, oracle.frames[: keep[-1]], None


def agree(engine, module, oracle, tag):
    assert engine.self_len(module, cache_tag=tag) == len(oracle.frames) * FRAME
    k, v = rand(FRAME), rand(FRAME)
    for bound in oracle.bounds:
        keys, values = engine.attend_view(module, k, v, **at(bound * FRAME, tag))
        assert torch.equal(keys, oracle.rows([*oracle.frames[:bound], (k, v)], 0))
        assert torch.equal(values, oracle.rows([*oracle.frames[:bound], (k, v)], 1))
    prefix = engine.get_self_prefix(module, cache_tag=tag)
    assert (prefix is None) == (not oracle.frames)
    if oracle.draft is not None:
        draft = engine.get_current_kv(module, cache_tag=tag)
        assert torch.equal(draft[0], oracle.draft[0]) and torch.equal(draft[1], oracle.draft[1])
