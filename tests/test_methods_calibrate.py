"""The probe records exactly what a skipping method would have reused."""

import json

import numpy as np
import pytest
import toy
from scipy.stats import spearmanr

from fastcache.methods.calibrate import QUANTILES, Probe

S = toy.GRID.tokens_per_frame


def relative(a, b):
    return float(np.abs(a - b).mean() / np.abs(b).mean())


@pytest.mark.parametrize("indicator", ["modulated_input", "e0"])
def test_samples_are_the_distances_of_consecutive_steps(indicator):
    probe, seen = Probe(indicator=indicator), []

    def on_step(step, run, result):
        value = run.modulated_input() if indicator == "modulated_input" else step.e0
        seen.append((step, value.double().numpy(), (result.x - step.x).double().numpy()))

    toy.rollout(probe, toy.FFFF, on_step=on_step)
    expected = [
        (relative(i1, i0), relative(r1, r0), s1.chunk_idx, s1.step_idx, s1.sigma)
        for (s0, i0, r0), (s1, i1, r1) in zip(seen, seen[1:], strict=False)
        if s0.chunk_idx == s1.chunk_idx
    ]
    assert len(expected) == 9
    for sample, (x, y, chunk, step, sigma) in zip(probe.samples, expected, strict=True):
        place = {key: sample[key] for key in ("x", "y", "chunk", "step", "sigma")}
        assert place == pytest.approx({"x": x, "y": y, "chunk": chunk, "step": step, "sigma": sigma}, rel=1e-4)


@pytest.mark.parametrize("indicator", ["modulated_input", "e0"])
def test_samples_look_closer_at_frames_tokens_norms_and_angles(indicator):
    probe, seen = Probe(indicator=indicator), []

    def on_step(step, run, result):
        value = run.modulated_input()[0] if indicator == "modulated_input" else step.e0[0].flatten(1)
        value = value if indicator == "modulated_input" else value.repeat_interleave(S, dim=0)
        seen.append((value.double().numpy(), (result.x - step.x)[0].double().numpy()))

    toy.rollout(probe, toy.FFFF, chunks=1, on_step=on_step)
    for sample, (i0, r0), (i1, r1) in zip(probe.samples, seen, seen[1:], strict=False):
        for key, now, then in (("x", i1, i0), ("y", r1, r0)):
            frames = [relative(now[f * S : (f + 1) * S], then[f * S : (f + 1) * S]) for f in range(toy.GRID.frames)]
            assert sample["frames"][key] == pytest.approx(frames, rel=1e-4)
            tokens = np.abs(now - then).mean(1) / np.abs(then).mean(1)
            assert sample["tokens"][key] == pytest.approx(list(np.quantile(tokens, QUANTILES)), rel=1e-4)
        lengths = [np.linalg.norm(r, axis=1) for r in (r1, r0)]
        assert sample["norm_ratio"] == pytest.approx((lengths[0] / lengths[1]).mean(), rel=1e-4)
        angle = (r1 * r0).sum(1) / (lengths[0] * lengths[1])
        assert sample["cosine"] == pytest.approx(angle.mean(), abs=1e-4)
        x, y = (np.abs(a - b).mean(1) / np.abs(b).mean(1) for a, b in ((i1, i0), (r1, r0)))
        if indicator == "e0":
            assert sample["tokens"]["rank"] is None
        else:
            assert sample["tokens"]["rank"] == pytest.approx(spearmanr(x, y).statistic, abs=1e-4)
    json.dumps(probe.samples, allow_nan=False)


def test_samples_do_not_pile_up_over_videos():
    probe = Probe()
    toy.rollout(probe, toy.FFFF, video=0)
    first = probe.samples
    toy.rollout(probe, toy.FFFF, video=1)
    assert len(first) == len(probe.samples) == 9
    assert first != probe.samples


def test_it_computes_in_full_whatever_the_schedule():
    _, fractions = toy.rollout(Probe(), toy.Fxxx)
    assert toy.mean(fractions) == 1.0
