"""Numeric fixtures of the model, its K/V cache, the scheduler and a whole rollout (``--golden DIR`` for other folders).

Nothing here knows a size: shapes, chunk counts and pass names come from the files. Tolerances are absolute, several
times the differences that independent float32 implementations of the same model show.
"""

import re

import pytest
import torch
from golden_files import FILES, METHODS, PASSES, Passes, close, recorded_draws
from golden_methods import pytest_generate_tests, test_calibration, test_methods, test_steps_of_methods  # noqa: F401
from torch import nn

from fastcache.kv_cache import CausalContext
from fastcache.kv_cache.masks import dense_block_mask
from fastcache.methods.none import NoCache
from fastcache.models.layers import LayerNorm, RMSNorm, time_features
from fastcache.models.rope import apply_rope, rope_table
from fastcache.sample import rollout
from fastcache.sampler import FewStep, FlowTable, add_noise, euler_step, x0_from_flow
from fastcache.step import Grid

FLOW = ROWS = TRACE = 2e-5
LATENT = 5e-5
UNIT = 1e-5
SIGMA, TIMESTEP, STEP = 1e-6, 1e-3, 1e-6

UNITS = "a_units.safetensors"
SCHEDULER, NUMBERS, ROLLOUT = "c_scheduler.safetensors", "c_scheduler.json", "c_rollout.safetensors"


def test_the_folder_holds_fixtures(golden):
    assert golden.present, f"{golden.folder} holds none of {', '.join(FILES)}; give a folder of fixtures to --golden"


def check_rows(passes, c, name):
    """The K/V rows of a chunk's pass, for the blocks whose rows are stored: k0, v2, k_last_block, ..."""
    for key, expected in passes.data.items():
        if m := re.match(rf"chunk{c}\.{name}\.([kv])(\d+|_last_block)$", key):
            block_idx = len(passes.dit.blocks) - 1 if m[2] == "_last_block" else int(m[2])
            close(passes.rows(c, block_idx, stored=name == "ctx")["kv".index(m[1])], expected, ROWS, key)


@pytest.mark.golden(PASSES)
@torch.inference_mode()
def test_passes_and_cached_rows(golden):
    """Every pass of every chunk behind the clean past, its flow and the K/V rows it leaves."""
    passes = Passes(golden)
    assert passes.chunks, f"{PASSES} has no chunk"
    for c in passes.chunks:
        for name in passes.names(c):
            run = passes.prepare(c, name, store=name == "ctx")
            close(run.head(run.full()), passes.data[f"chunk{c}.{name}.flow"], FLOW, f"chunk{c}.{name}.flow")
            check_rows(passes, c, name)


@pytest.mark.golden(PASSES)
@torch.inference_mode()
def test_inside_of_one_pass(golden):
    """Embeddings, the indicator, every module before its gate, every block, the head."""
    passes, seen = Passes(golden), {}
    trace = {key.removeprefix("trace."): value for key, value in passes.data.items() if key.startswith("trace.")}
    run = _find_traced(passes, trace["x_tokens"])
    modules = {f"block{i}.out": block for i, block in enumerate(passes.dit.blocks)} | {"head.out": passes.dit.head}
    handles = [m.register_forward_hook(lambda _m, _a, out, k=k: seen.update({k: out})) for k, m in modules.items()]
    try:
        tokens, features = run.record()
        run.head(tokens)
    finally:
        for handle in handles:
            handle.remove()
    seen |= {"x_tokens": run.x, "e": run.e, "e0": run.e0, "context": passes.text}
    seen["block0.self_attn.in"] = run.modulated_input()
    seen |= {f"block{k.removeprefix('main.')}.out": v for k, v in features.items()}
    for key, expected in trace.items():
        close(seen[key].reshape(expected.shape), expected, TRACE, f"trace.{key}")


def _find_traced(passes, tokens):
    """The pass whose patch embedding was traced, prepared behind the clean chunks before it."""
    for c in passes.chunks:
        for name in passes.names(c):
            run = passes.prepare(c, name)
            if run.x.shape == tokens.shape and torch.allclose(run.x, tokens, atol=TRACE, rtol=0):
                return run
        passes.prepare(c, "ctx", store=True).full()
    raise AssertionError("trace.x_tokens is the patch embedding of none of the passes")


@pytest.mark.golden(METHODS)
@torch.inference_mode()
def test_selective_passes(golden):
    """Chunk 1 after a full pass: selections one after the other, their tokens and the rows that are left."""
    passes, data = Passes(golden), golden.tensors(METHODS)
    passes.prepare(0, "ctx", store=True).full()
    passes.prepare(1, "p0").full()
    names = sorted({m[1] for key in data if (m := re.match(r"(selective\.sel\d+)\.index$", key))})
    assert names, f"{METHODS} has no selective pass"
    for name in names:
        index, tokens = data[f"{name}.index"], data[f"{name}.x_in"]
        runs = [passes.prepare(1, other) for other in passes.names(1)]
        fits = [run for run in runs if torch.allclose(run.x[:, index], tokens, atol=TRACE, rtol=0)]
        assert fits, f"{name}.x_in is the patch embedding of no pass of chunk 1"
        close(fits[0].selected(index), data[f"{name}.x_out"], TRACE, f"{name}.x_out")
        for key, expected in data.items():
            if m := re.match(rf"{name}\.([kv])(\d+)$", key):
                close(passes.rows(1, int(m[2]), stored=False)["kv".index(m[1])], expected, ROWS, key)


def _passes_at(passes, t):
    """The pass of each chunk that has these timesteps [B, all frames]."""
    names = []
    for c, part in zip(passes.chunks, t.split(passes.frames, dim=1), strict=True):
        fits = [n for n in passes.names(c) if torch.equal(passes.data[f"chunk{c}.{n}.t"], part)]
        assert fits, f"no pass of chunk {c} has the timesteps {part.tolist()} of the uncached forward"
        names.append(fits[0])
    return names


@pytest.mark.golden(PASSES)
@torch.inference_mode()
def test_one_forward_without_cache(golden):
    """All frames at once under the block-causal mask, and the same passes one after the other through the cache."""
    passes = Passes(golden)
    t, expected = passes.data["uncached.t"], passes.data["uncached.flow"]
    names = _passes_at(passes, t)
    latent = torch.cat([passes.input(c, name) for c, name in zip(passes.chunks, names, strict=True)], dim=1)
    ctx = CausalContext(
        num_frames=latent.shape[1],
        frame_seqlen=passes.seqlen,
        block_mask=dense_block_mask(passes.frames, passes.seqlen),
    )
    close(passes.dit(latent, t, passes.data["prompt_embeds"], ctx), expected, FLOW, "uncached.flow")
    for c, name, part in zip(passes.chunks, names, expected.split(passes.frames, dim=1), strict=True):
        run = passes.prepare(c, name, store=True)
        close(run.head(run.full()), part, FLOW, f"uncached.flow, chunk {c} through the cache")


@pytest.mark.golden(UNITS)
def test_units_rope(golden):
    data = golden.tensors(UNITS)
    dims = sorted({int(m[1]) for key in data if (m := re.match(r"rope(\d+)\.x$", key))})
    assert dims, f"{UNITS} has no rope"
    for dim in dims:
        x, y, grids, starts = (data[f"rope{dim}.{part}"] for part in ("x", "y", "grid", "start_frame"))
        for b in range(len(x)):
            table = rope_table(dim, Grid(*grids[b].tolist()), int(starts[b % len(starts)]))
            close(apply_rope(x[b : b + 1], table), y[b : b + 1], UNIT, f"rope{dim}")


@pytest.mark.golden(UNITS)
def test_units_time_features_and_norms(golden):
    data = golden.tensors(UNITS)
    dims = sorted({int(m[1]) for key in data if (m := re.match(r"sinus(\d+)\.t$", key))})
    assert dims, f"{UNITS} has no sinus"
    for dim in dims:
        close(time_features(data[f"sinus{dim}.t"], dim).float(), data[f"sinus{dim}.y"], UNIT, f"sinus{dim}")
    norm = RMSNorm(len(data["rmsnorm.w"]), eps=1e-6)
    norm.weight = nn.Parameter(data["rmsnorm.w"])
    close(norm(data["rmsnorm.x"]), data["rmsnorm.y"], UNIT, "rmsnorm")
    layer = LayerNorm(data["layernorm.x"].shape[-1], eps=1e-6, affine=False, fp32=True)
    close(layer(data["layernorm.x"]), data["layernorm.y"], UNIT, "layernorm")


@pytest.mark.golden(UNITS)
def test_units_of_the_model(golden):
    """The FFN's activation and the head's patch order, of the model that the fixtures describe."""
    data, dit = golden.tensors(UNITS), golden.dit
    close(dit.blocks[0].ffn[1](data["gelu_tanh.x"]), data["gelu_tanh.y"], UNIT, "gelu_tanh")
    frames, height, width = data["unpatchify.y"].shape[2:]
    _, ph, pw = dit.config.patch_size
    latent = dit.unpatchify(data["unpatchify.x"], Grid(frames, height // ph, width // pw))
    close(latent.transpose(1, 2), data["unpatchify.y"], UNIT, "unpatchify")


def _table(golden, size=None):
    config = golden.numbers(NUMBERS)["config"]
    fixed = {"sigma_min": 0.0, "sigma_max": 1.0, "extra_one_step": True}
    other = {key: config[key] for key, value in fixed.items() if config.get(key, value) != value}
    assert not other, f"{NUMBERS}: the scheduler has {other}; supported here: {fixed}"
    return FlowTable(config["shift"], size or config["num_train_timesteps"])


@pytest.mark.golden(NUMBERS)
def test_scheduler_numbers(golden):
    numbers, table = golden.numbers(NUMBERS), _table(golden)
    assert len(table.sigmas) == numbers["length"]
    for name, atol in (("sigmas", SIGMA), ("timesteps", TIMESTEP)):
        ours, first, last = getattr(table, name), numbers[f"{name}_first20"], numbers[f"{name}_last20"]
        close(ours[: len(first)].double(), torch.tensor(first, dtype=torch.float64), atol, f"{name}_first20")
        close(ours[-len(last) :].double(), torch.tensor(last, dtype=torch.float64), atol, f"{name}_last20")
    for key in (k for k in numbers if k.startswith("set_timesteps_")):
        small = _table(golden, int(key.rsplit("_", 1)[1]))
        close(small.sigmas, torch.tensor(numbers[key]["sigmas"]), SIGMA, f"{key} sigmas")
        close(small.timesteps, torch.tensor(numbers[key]["timesteps"]), TIMESTEP, f"{key} timesteps")
    for entry in numbers["nearest"]:
        t = torch.tensor(entry["t"], dtype=torch.float64)
        assert int(table.nearest(t)) == entry["index"], f"nearest to t = {entry['t']}"
        assert float(table.sigma(t)) == pytest.approx(entry["sigma"], abs=SIGMA)


@pytest.mark.golden(NUMBERS)
def test_scheduler_warped_steps(golden):
    numbers = golden.numbers(NUMBERS)
    warp, sampler = numbers["warp"], FewStep(steps=numbers["warp"]["requested"], shift=numbers["config"]["shift"])
    close(sampler.timesteps, torch.tensor(warp["timesteps"]), TIMESTEP, "warp timesteps")
    close(sampler.sigmas, torch.tensor(warp["sigmas"]), SIGMA, "warp sigmas")
    assert _table(golden).nearest(sampler.timesteps).tolist() == warp["nearest_index"]


@pytest.mark.golden(SCHEDULER)
def test_scheduler_arithmetic(golden):
    data, table = golden.tensors(SCHEDULER), _table(golden)
    close(table.sigmas, data["sigmas"], SIGMA, "sigmas")
    close(table.timesteps, data["timesteps"], TIMESTEP, "timesteps")
    entries = table.nearest(data["t"])
    for i, entry in enumerate(entries.tolist()):
        sigma, x0, flow = float(table.sigmas[entry]), data["x0"][i], data["flow"][i]
        xt = add_noise(x0, data["noise"][i], sigma)
        close(xt, data["add_noise"][i], STEP, f"add_noise {i}")
        close(x0_from_flow(xt, flow, sigma), data["x0_from_flow"][i], STEP, f"x0_from_flow {i}")
        # Rounding of the stored flow is the only difference: relative to it, not to x0.
        allowed = 1e-5 * sigma * max(1.0, float(data["flow_from_x0"][i].abs().max()))
        close(x0_from_flow(xt, data["flow_from_x0"][i], sigma), x0, allowed, f"flow_from_x0 {i}")


@pytest.mark.golden(SCHEDULER)
def test_scheduler_steps(golden):
    """Euler steps between listed levels, and the step of the long table, which moves one entry only."""
    data, table = golden.tensors(SCHEDULER), _table(golden)
    count = len(data["euler4.step"])
    levels = [*_table(golden, count).sigmas.tolist(), 0.0]
    for i in range(count):
        step = euler_step(data["euler4.sample"][i], data["euler4.flow"][i], levels[i], levels[i + 1])
        close(step, data["euler4.step"][i], STEP, f"euler4.step {i}")
    sigmas = [*table.sigmas.tolist(), 0.0]
    for i, entry in enumerate(table.nearest(data["t"][: len(data["grid_step"])]).tolist()):
        step = euler_step(data["x0"][i], data["flow"][i], sigmas[entry], sigmas[entry + 1])
        close(step, data["grid_step"][i], STEP, f"grid_step {i}")


class Recording(FewStep):
    """Keeps what it was given and what it predicted."""

    seen: dict

    def next(self, x, flow, i, noise):
        self.seen[i] = {"xt": x, "x0": self.x0(x, flow, i)}
        return super().next(x, flow, i, noise)


@pytest.mark.golden(ROLLOUT)
def test_rollout(golden):
    """The whole pipeline, every chunk's steps and context pass, on the recorded noise."""
    data = golden.tensors(ROLLOUT)
    noise, renoise = data["noise"], data["renoise"]
    size, options = noise.shape[1] // len(renoise), {}
    if NUMBERS in golden.present:
        numbers = golden.numbers(NUMBERS)
        options = {"steps": numbers["warp"]["requested"], "shift": numbers["config"]["shift"]}
    sampler = Recording(frames_per_chunk=size, **options)
    steps = sampler.num_steps
    assert renoise.shape[1] == steps - 1, f"{ROLLOUT} has {renoise.shape[1]} re-noise draws a chunk for {steps} steps"
    sampler.seen, seen = {}, {}

    def keep(chunk_idx, trace):
        i = len(trace.letters) - 1
        seen.update({f"chunk{chunk_idx}.step{i}.{k}": v for k, v in sampler.seen[i].items()})

    result = rollout(
        golden.model(noise, size),
        {"pos": NoCache()},
        sampler,
        (True,) * steps,
        data["prompt_embeds"],
        noise.shape[1],
        recorded_draws(noise, renoise),
        on_step=keep,
    )
    close(result.latents, data["latents"], LATENT, "latents")
    for key, expected in data.items():
        if key.startswith("chunk"):
            close(seen[key], expected, LATENT, key)
