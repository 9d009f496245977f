"""The probe records exactly what a skipping method would have reused."""

import numpy as np
import pytest
import toy

from fastcache.methods.calibrate import Probe


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
        assert sample == pytest.approx({"x": x, "y": y, "chunk": chunk, "step": step, "sigma": sigma}, rel=1e-4)


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
