"""MotionCache against an oracle in float64, and its faults: frame 0's reference, whole-chunk selections, e0."""

import itertools

import numpy as np
import oracles
import pytest
import torch
import toy

from fastcache.errors import UserError
from fastcache.methods.motioncache import MotionCache
from fastcache.rescale import Rescale

F, S, L = toy.GRID.frames, toy.GRID.tokens_per_frame, toy.GRID.tokens
FIT = [0.5, 0.2, 0.1]


CASES = [
    {"weight_norm": norm, "temporal_consistency": vote, "min_update_ratio": ratio}
    for norm, vote, ratio in itertools.product(("mean", "max", "max_rescale"), (False, True), (0.0, 0.3))
] + [
    {"weight_norm": "max_rescale", "weight_floor": 0.6},
    {"temporal_consistency": True, "temporal_thresh": 0.2},
    {"rescale": Rescale(FIT)},
    {"distance": "chunk"},
    {"distance": "chunk", "indicator": "e0"},
    {"frame0": "same_step"},
    {"distance": "chunk", "frame0": "same_step", "weight_norm": "max_rescale", "weight_floor": 0.6},
]


@pytest.mark.parametrize("forced", [toy.FxxF, toy.FFxx, toy.Fxxx], ids=["FxxF", "FFxx", "Fxxx"])
@pytest.mark.parametrize(
    "options", CASES, ids=lambda o: " ".join(f"{k}={'fit' if isinstance(v, Rescale) else v}" for k, v in o.items())
)
def test_selections_match_an_oracle(options, forced):
    partly = 0
    for thresh in (0.4, 0.8):
        watch = oracles.Watch(MotionCache(thresh=thresh, **options))
        toy.rollout(watch, forced, chunks=2)
        tokens = [row["tokens"] for row in watch.seen]
        assert tokens == oracles.motioncache(watch.seen, watch.method, toy.GRID), thresh
        partly += sum(0 < len(row) < L for row in tokens)
    assert partly


# Fault (a): in a chunk's second full pass, frame 0 was compared with the chunk's own last frame.


def test_frame_0_never_looks_at_its_own_chunk():
    method, weights = MotionCache(thresh=1e9), []
    seen = []

    def on_step(step, run, result):
        seen.append(result.x.double().numpy()[0])
        weights.append(method.weights.double().numpy())

    toy.rollout(method, toy.FFxx, chunks=2, on_step=on_step)
    first = seen[1].reshape(F, S, -1)  # chunk 0, second full pass: no chunk before, frame 0 moves as frame 1 does
    np.testing.assert_allclose(weights[1][:S], weights[1][S : 2 * S], rtol=1e-5)
    second = seen[5].reshape(F, S, -1)  # chunk 1, second full pass: the last frame of chunk 0's last full pass
    change = np.abs(second[0] - first[-1]).mean(-1) / np.abs(first[-1]).mean(-1)
    np.testing.assert_allclose(weights[5][:S], change / change.mean(), rtol=1e-4)


def test_same_step_compares_equal_noise_levels():
    method, weights, seen = MotionCache(thresh=1e9, frame0="same_step"), [], []

    def on_step(step, run, result):
        seen.append(result.x.double().numpy()[0].reshape(F, S, -1))
        weights.append(method.weights.double().numpy())

    toy.rollout(method, toy.FxxF, chunks=2, on_step=on_step)
    former = seen[0][-1]  # step 0 of chunk 0, not its last full step
    change = np.abs(seen[4][0] - former).mean(-1) / np.abs(former).mean(-1)
    np.testing.assert_allclose(weights[4][:S], change / change.mean(), rtol=1e-4)


# G17: a selection of every token takes the full path.


def test_selecting_everything_never_takes_the_selective_path(monkeypatch):
    def refuse(self, tokens):
        raise AssertionError("selected() was called for the whole chunk")

    monkeypatch.setattr(toy.ToyRunner, "selected", refuse)
    _, fractions = toy.rollout(MotionCache(thresh=0.0), toy.Fxxx)
    assert toy.mean(fractions) == 1.0


# G2: e0 has no tokens; with one distance for the chunk it is welcome.


def test_e0_needs_the_chunk_distance():
    with pytest.raises(UserError, match="distance=chunk"):
        MotionCache(indicator="e0")
    assert MotionCache(indicator="e0", distance="chunk").config()["indicator"] == "e0"


def test_static_tokens_are_recomputed_last():
    """A chunk whose first row of tokens stands still while the rest moves: the still ones never cross first."""
    method = MotionCache(thresh=0.45)
    model = toy.ToyModel()
    still = torch.arange(L) % S < toy.GRID.width
    for k, sigma in enumerate(toy.SIGMAS[:2]):
        x = toy.noise(3, 0, k)
        x[:, still] = toy.noise(3, 0, k)[:, :3].repeat(1, F, 1)
        run = toy.ToyRunner(model, x, model.e0(sigma))
        result = method.step(toy.Step(x, run.e0, toy.GRID, 0, k, k == 0, sigma), run)
    assert 0 < result.fraction < 1
    assert not still[run.asked].any()


@pytest.mark.parametrize(
    "options",
    [
        {"weight_norm": "median"},
        {"weight_floor": -0.1},
        {"weight_floor": "low"},
        {"min_update_ratio": 1.5},
        {"temporal_thresh": float("nan")},
        {"temporal_consistency": "yes"},
        {"distance": "frame"},
        {"frame0": "last"},
    ],
    ids=str,
)
def test_bad_options_are_user_errors(options):
    with pytest.raises(UserError, match=next(iter(options))):
        MotionCache(**options)
