"""Fixture D: whole rollouts of every cache method, decision by decision (test_golden.py collects these).

Decisions are equal and latents within a tolerance, save where a fault of the recorded code had a say. Those entries
are named by their fault in ``fault`` and checked against an oracle; with the fault put back they match as well.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import oracles
import pytest
import torch
from golden_files import close, recorded_draws

from fastcache.errors import UserError
from fastcache.fits import make_fit
from fastcache.methods.base import AdaptiveMethod, rel_l1_per_token
from fastcache.methods.calibrate import Probe
from fastcache.methods.flowcache import FlowCache
from fastcache.methods.motioncache import MotionCache
from fastcache.methods.none import NoCache
from fastcache.methods.reuse import DirectReuse
from fastcache.methods.taylorseer import TaylorSeer
from fastcache.methods.teacache import TeaCache
from fastcache.rescale import Rescale
from fastcache.sample import rollout
from fastcache.sampler import FewStep
from fastcache.step import Grid, StepResult

NUMBERS, TENSORS = "d_methods.json", "d_methods.safetensors"
LATENT, SCORE = 1e-4, 1e-4
KINDS = {kind.name: kind for kind in (NoCache, DirectReuse, TeaCache, FlowCache, TaylorSeer, MotionCache)}


def pytest_generate_tests(metafunc):
    """One test for each method and schedule that the folder's entries hold: of all of them where --golden names a
    folder (tests/golden, say), of a few by default."""
    if "entries" not in metafunc.fixturenames:
        return
    folder, cases = metafunc.config.getoption("--golden"), {}
    if (folder / NUMBERS).is_file():
        for entry in json.loads((folder / NUMBERS).read_text())["entries"]:
            cases.setdefault(f"{entry['method']}-{entry['schedule']}", []).append(entry)
    if folder == Path(__file__).parent / "golden":
        cases = {name: [e for i, e in enumerate(es) if "tensor" in e or i % 12 == 0] for name, es in cases.items()}
    metafunc.parametrize("entries", list(cases.values()), ids=list(cases))


@dataclass
class Result:
    latents: torch.Tensor
    seen: list  # what oracles.Watch saw
    grid: Grid
    traces: list


def run(golden, method, schedule="", inputs=TENSORS):
    """A rollout on the fixture's model and noise; ``schedule`` defaults to all steps forced."""
    data = golden.tensors(inputs)
    noise, renoise = data["noise"], data["renoise"]
    size = noise.shape[1] // len(renoise)
    sampler = FewStep(frames_per_chunk=size)
    timesteps = golden.numbers(NUMBERS)["timesteps"]
    assert sampler.timesteps.tolist() == pytest.approx(timesteps, abs=1e-3), "another step list"
    watch = oracles.Watch(method)
    forced = tuple(letter == "F" for letter in schedule or "F" * sampler.num_steps)
    draws = recorded_draws(noise, renoise)
    model = golden.model(noise, size)
    made = rollout(model, {"pos": watch}, sampler, forced, data["prompt_embeds"], noise.shape[1], draws)
    return Result(made.latents, watch.seen, watch.grid, made.chunks)


def build(entry, kind=None, **more):
    """The method of an entry. Fits are not clamped: the recorded code did not."""
    options = dict(entry["params"]) | more
    coefficients = options.pop("coefficients", None)
    if coefficients:
        options["rescale"] = Rescale(coefficients, clamp=False)
    return (kind or KINDS[entry["method"]])(**options)


def fault(entry, batch, frames):
    """The fault of the recorded code that had a say in an entry, or None; ``frames`` of a chunk."""
    method, params, schedule = entry["method"], entry["params"], entry["schedule"]
    if batch > 1 and issubclass(KINDS[method], AdaptiveMethod):
        return "G11: one decision for a batch"
    if not schedule.startswith("F"):
        return "G9: a chunk starts from the former chunk's state"
    if method == "motioncache" and "F" in schedule[1:].rstrip("F"):
        return "MotionCache (a): frame 0 is compared with its own chunk's last frame"
    if method == "motioncache" and params.get("indicator") == "e0":
        return "G2: e0 has no tokens"
    if method == "flowcache" and params.get("indicator") == "e0" and params.get("group_size", 1) < frames:
        return "G1: e0 is cut with token bounds"
    second = any(sum(row[:k]) >= 3 for row in entry["fractions"] for k, f in enumerate(row) if f == 0)
    if method == "taylorseer" and params.get("max_order", 1) > 1 and second:
        return "TaylorSeer (a): no term above the first order"
    return None


class OwnChunk(MotionCache):
    """MotionCache with its fault (a)."""

    def _former_frame(self, step_idx):
        own = list(self.last_frames.values())
        return own[-1] if own else super()._former_frame(step_idx)


class SecondOrder(TaylorSeer):
    """Forecasts of order 2 written out over the last three computed steps; TaylorSeer decides which those are."""

    def begin_chunk(self, chunk_idx):
        super().begin_chunk(chunk_idx)
        self.computed = []

    def _compute(self, step, run, now):
        self.since, self.times = 0, [now]
        out, features = run.record()
        self.computed = [*self.computed, (step.step_idx, {k: f.double() for k, f in features.items()})][-3:]
        return StepResult(out, 1.0)

    def _forecast(self, step, run, now):
        (last, f2), *earlier = reversed(self.computed)
        ahead, made = step.step_idx - last, dict(f2)
        for key in made:
            slopes, later, when = [], f2, last
            for at, features in earlier:
                slopes.append((later[key] - features[key]) / (when - at))
                later, when = features, at
            if slopes:
                made[key] = made[key] + slopes[0] * ahead
            if len(slopes) == 2:
                bend = (slopes[0] - slopes[1]) / (last - earlier[0][0])
                made[key] = made[key] + bend * ahead**2 / 2
        return run.replay({key: value.float() for key, value in made.items()})


def check_decisions(entry, result):
    fractions = [trace.fractions for trace in result.traces]
    what = f"entry {entry['id']}"
    assert np.allclose(fractions, entry["fractions"], atol=1e-9, rtol=0), f"{what}: {fractions}"
    rows = iter(result.seen)
    for chunk, masks in enumerate(entry.get("selected", [])):
        for step, mask in enumerate(masks):
            tokens = next(rows)["tokens"]
            if mask is not None:
                assert tokens == [i for i, c in enumerate(mask) if c == "1"], f"{what}: chunk {chunk}, step {step}"
    expected = entry.get("acc_at_decision", entry.get("acc_mean_at_decision"))
    if expected is not None:
        noted = [row for trace in result.traces for row in trace.indicator if row is not None]
        values = np.concatenate([np.atleast_1d(row) for row in noted]) if noted else np.empty(0)
        np.testing.assert_allclose(values, expected, atol=SCORE, rtol=0, err_msg=what)


def check_latents(golden, entry, latents):
    what = f"entry {entry['id']}"
    probe = latents.flatten()[golden.numbers(NUMBERS)["probe_flat_index"]]
    close(probe, torch.tensor(entry["probe"]), LATENT, what)
    assert float(latents.mean()) == pytest.approx(entry["latents_mean"], abs=LATENT), what
    assert float(latents.std()) == pytest.approx(entry["latents_std"], abs=LATENT), what
    if "tensor" in entry:
        close(latents, golden.tensors(TENSORS)[entry["tensor"]], LATENT, what)


def check_faulty(golden, entry, name):
    """An entry that a fault had a say in: right by an oracle, and as recorded once the fault is put back."""
    if name.startswith("G9"):
        with pytest.raises(UserError, match="start with F"):
            run(golden, build(entry), entry["schedule"])
    elif name.startswith("G11"):
        with pytest.raises(UserError, match="one video at a time"):
            run(golden, build(entry), entry["schedule"])
    elif name.startswith("G2"):
        with pytest.raises(UserError, match="per-token"):
            build(entry)
    elif name.startswith("TaylorSeer (a)"):
        ours, written_out = (run(golden, build(entry, kind), entry["schedule"]) for kind in (TaylorSeer, SecondOrder))
        close(ours.latents, written_out.latents, LATENT, f"entry {entry['id']}, second order")
        check_decisions(entry, ours)
        first = run(golden, build(entry, max_order=1), entry["schedule"])
        check_latents(golden, entry, first.latents)
        applied = f"latents.taylor_{entry['schedule']}_interval{entry['params']['interval']:g}_second_order_applied"
        if entry["params"]["max_order"] == 2 and applied in golden.tensors(TENSORS):
            close(ours.latents, golden.tensors(TENSORS)[applied], LATENT, applied)
    else:
        method = build(entry)
        ours = run(golden, method, entry["schedule"])
        oracle = oracles.motioncache if entry["method"] == "motioncache" else oracles.groupwise
        assert [row["tokens"] for row in ours.seen] == oracle(ours.seen, method, ours.grid), f"entry {entry['id']}"
        if name.startswith("MotionCache (a)"):
            seed = run(golden, build(entry, OwnChunk), entry["schedule"])
            check_decisions(entry, seed)
            check_latents(golden, entry, seed.latents)


@pytest.mark.golden(NUMBERS)
def test_methods(golden, entries):
    """Entries of a method and a schedule."""
    data = golden.tensors(TENSORS)
    batch, frames = data["noise"].shape[:2]
    for entry in entries:
        if name := fault(entry, batch, frames // len(data["renoise"])):
            check_faulty(golden, entry, name)
        else:
            result = run(golden, build(entry), entry["schedule"])
            check_decisions(entry, result)
            check_latents(golden, entry, result.latents)


@pytest.mark.golden(NUMBERS)
def test_steps_of_methods(golden):
    """What the token-wise decisions are made of, step by step."""
    data = golden.tensors(TENSORS)
    full = run(golden, NoCache())
    for now, then in zip(full.seen[1:], full.seen, strict=False):
        key = f"ind_dist_per_token.chunk{now['chunk']}.step{now['step']}"
        if key in data:
            a, b = (torch.from_numpy(row["indicator"])[None] for row in (now, then))
            close(rel_l1_per_token(a, b), data[key], SCORE, key)
    for norm in ("mean", "max", "max_rescale") if len(data["noise"]) == 1 else ():
        method = OwnChunk(thresh=1e9, weight_norm=norm)
        weights, full_step = {}, method._full

        def noting(step, run, method=method, weights=weights, full_step=full_step, norm=norm):
            result = full_step(step, run)
            weights[f"motion.weights.{norm}.chunk{step.chunk_idx}.step{step.step_idx}"] = method.weights
            return result

        method._full = noting
        run(golden, method, "FxxF")
        for key, value in weights.items():
            close(value, data[key], SCORE, key)


@pytest.mark.golden(NUMBERS)
@pytest.mark.parametrize("indicator", ["modulated_input", "e0"])
def test_calibration(golden, indicator):
    """The probe's samples and the fits through them, on the noise of both fixtures."""
    for head, inputs in (("calibration", TENSORS), ("calibration_fixture_c_inputs", "c_rollout.safetensors")):
        expected = golden.numbers(NUMBERS)[head][indicator]
        probe = Probe(indicator=indicator)
        if len(golden.tensors(inputs)["noise"]) > 1:
            with pytest.raises(UserError, match="one video at a time"):
                run(golden, probe, inputs=inputs)
            continue
        run(golden, probe, inputs=inputs)
        samples = probe.samples
        assert [(s["chunk"], s["step"]) for s in samples] == [(s["block"], s["step"]) for s in expected["samples"]]
        for axis in ("x", "y"):
            ours, theirs = ([s[axis] for s in rows] for rows in (samples, expected["samples"]))
            np.testing.assert_allclose(ours, theirs, atol=SCORE, rtol=0, err_msg=f"{head} {indicator} {axis}")
        for degree, wanted in expected["polyfit"].items():
            on = {"model": "", "sampler": {}, "indicator": indicator}
            fit = make_fit(expected["samples"], int(degree), on, gate=False)
            fitted = np.polyval(fit["coefficients"], [s["x"] for s in expected["samples"]])
            np.testing.assert_allclose(fitted, wanted["fitted"], atol=1e-6, rtol=0, err_msg=f"{head} degree {degree}")
