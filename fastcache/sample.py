"""The rollout: chunks x denoising steps, then the store pass that commits the chunk. The only file that knows time.

Every forward of the DiT has a role. A *denoise* forward is a step of a chunk, the only one a cache method is told of.
A *store* forward, at t = 0 on the finished latent, commits the chunk's clean K/V; a *prefill* forward does the same for
a latent that was given. Both are always full. Loop: Self-Forcing (guandeh17/Self-Forcing,
pipeline/causal_inference.py).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fastcache.condition import Condition
from fastcache.errors import UserError
from fastcache.forwards import Forwards
from fastcache.kv_cache.masks import chunk_plan
from fastcache.noise import Draw
from fastcache.sampler import Sampler
from fastcache.schedule import Schedule, next_step


@dataclass
class ChunkTrace:
    """What happened in one chunk, one entry a denoising step; all empty for a prefilled chunk."""

    letters: str = ""  # F computed in full, P partly, R reused or forecast, - left out
    fractions: list[float] = field(default_factory=list)  # tokens computed / tokens
    indicator: list[Any] = field(default_factory=list)  # what pos's method decided on (numbers), or None
    full_forwards: int = 0  # store and prefill forwards, of each cache tag

    @property
    def compute_fraction(self) -> float:
        return sum(self.fractions) / len(self.fractions) if self.fractions else 1.0

    def add(self, fraction: float, decisions: list[Any]) -> None:
        step_idx = len(self.letters)
        self.letters += "F" if fraction >= 1 else "P" if fraction > 0 else "R"
        self.fractions.append(float(fraction))
        self.indicator.append(decisions[step_idx] if step_idx < len(decisions) else None)

    def leave_out(self) -> None:
        """A step that the schedule takes out of the sampler."""
        self.letters += "-"
        self.fractions.append(0.0)
        self.indicator.append(None)


@dataclass
class Rollout:
    """A generated batch: latents [B, F, C, H, W], its trace and what it cost."""

    latents: Tensor
    chunks: list[ChunkTrace]
    seconds: float  # wall time of the whole call
    dit_seconds: float  # of it, in the DiT and the cache method
    kv_bytes: int
    method_bytes: int
    passes: int = 1  # cache tags: 2 under guidance
    kv_host_bytes: int = 0  # K/V that lie elsewhere than on the device

    @property
    def forwards(self) -> int:
        """DiT forwards of all roles and cache tags, skipped denoising steps included."""
        return self.passes * sum(len(c.fractions) + c.full_forwards for c in self.chunks)

    @property
    def compute_fraction(self) -> float:
        """Tokens computed / tokens over the denoising steps."""
        fractions = [f for c in self.chunks for f in c.fractions]
        return sum(fractions) / len(fractions) if fractions else 1.0

    @property
    def forward_fraction(self) -> float:
        """The same over all forwards, store and prefill included."""
        return self.passes * sum(sum(c.fractions) + c.full_forwards for c in self.chunks) / self.forwards


OnStep = Callable[[int, ChunkTrace], None]
"""Called after every denoising step with the chunk's index and its trace so far."""


@dataclass
class _Passes:
    """The passes of one video, one a cache tag: pos, and under guidance neg."""

    forwards: dict[str, Forwards]
    methods: Mapping[str, Any]
    guidance: float

    def flow(self, x: Tensor, chunk_idx: int, i: int, forced: bool, trace: ChunkTrace) -> Tensor:
        """The flow at step i: of pos, or led away from neg."""
        flows, fractions = {}, []
        for tag, video in self.forwards.items():
            flows[tag], fraction = video.denoise(x, chunk_idx, i, forced, self.methods[tag])
            fractions.append(fraction)
        trace.add(sum(fractions) / len(fractions), self.methods["pos"].decisions)
        if "neg" not in flows:
            return flows["pos"]
        return flows["neg"] + self.guidance * (flows["pos"] - flows["neg"])

    def commit(self, x: Tensor, chunk_idx: int, trace: ChunkTrace, given: bool = False) -> None:
        """Make a chunk part of the past in every pass, or in none."""
        try:
            for video in self.forwards.values():
                took = video.store(x, chunk_idx) if given else video.commit(x, chunk_idx)
        except BaseException:
            for video in self.forwards.values():
                video.drop(x, chunk_idx)
            raise
        trace.full_forwards += took


@torch.inference_mode()
def rollout(
    model: Any,
    methods: Mapping[str, Any],
    sampler: Sampler,
    forced: Schedule,
    condition: Condition | Tensor,
    frames: int,
    draw: Draw,
    on_step: OnStep | None = None,
    given: Tensor | None = None,
    negative: Condition | Tensor | None = None,
    guidance: float = 1.0,
) -> Rollout:
    """Generate ``frames`` latent frames, chunk by chunk.

    Args:
        model: a VideoModel; its engines are cleared before and after.
        methods: the cache method of each cache tag: {"pos": method}, and under guidance "neg" with one of its own.
        forced: which steps are forced full or left out (``schedule.parse_schedule``).
        condition: what the video is told to be; bare prompt embeddings [B, text_len, text_dim] where text is all.
        draw: (chunk_idx, step_idx, shape) -> noise of that address (``Noise.of``).
        given: the first latent frames [B, k * frames_per_chunk, C, H, W], stored instead of generated.
        negative: what classifier-free guidance leads away from; flow = neg + guidance * (pos - neg).

    Raises UserError on sizes that do not fit. An exception in a store or prefill forward leaves the engines as they
    were at the chunk's start.
    """
    start = perf_counter()
    told = {"pos": condition} | ({} if negative is None else {"neg": negative})
    conditions = {tag: Condition(c) if isinstance(c, Tensor) else c for tag, c in told.items()}
    _check(model, sampler, forced, frames, given)
    _check_passes(methods, conditions, guidance)
    model.dit.clear_caches()
    videos = {
        tag: Forwards(model.dit, sampler, tag, c, frames, methods[tag].selective) for tag, c in conditions.items()
    }
    passes, first = _Passes(videos, methods, guidance), videos["pos"]
    size = sampler.frames_per_chunk
    noise_shape = (conditions["pos"].prompt_embeds.shape[0], size, *model.latent_shape)
    known = [] if given is None else first.latent(given).split(size, dim=1)
    latents, traces = [], []
    for method in methods.values():
        method.forced = forced
        method.begin_video()
    for chunk_idx in range(frames // size):
        trace = ChunkTrace()
        if chunk_idx < len(known):
            x = known[chunk_idx]
            passes.commit(x, chunk_idx, trace, given=True)
        else:
            noise = partial(first.noise, draw, noise_shape, chunk_idx)
            x = _denoise_chunk(passes, sampler, forced, chunk_idx, trace, noise, on_step)
            passes.commit(x, chunk_idx, trace)
        latents.append(x)
        traces.append(trace)
    kv_bytes = sum(engine.memory_bytes() for engine in first.engines.values())
    host_bytes = sum(engine.host_bytes() for engine in first.engines.values())
    model.dit.clear_caches()
    return Rollout(
        latents=torch.cat(latents, dim=1),
        chunks=traces,
        seconds=perf_counter() - start,
        dit_seconds=sum(video.seconds for video in videos.values()),
        kv_bytes=kv_bytes,
        method_bytes=sum(method.memory_bytes() for method in methods.values()),
        passes=len(videos),
        kv_host_bytes=host_bytes,
    )


def _denoise_chunk(
    passes: _Passes,
    sampler: Sampler,
    forced: Schedule,
    chunk_idx: int,
    trace: ChunkTrace,
    noise: Callable[[int], Tensor],
    on_step: OnStep | None,
) -> Tensor:
    """All denoising steps of one chunk: from its initial noise to its latent [B, F, C, H, W]."""
    for method in passes.methods.values():
        method.begin_chunk(chunk_idx)
    x = noise(0)
    for i, full in enumerate(forced):
        if full is None:
            trace.leave_out()
            continue
        flow, to = passes.flow(x, chunk_idx, i, full, trace), next_step(forced, i)
        further = {} if to == i + 1 else {"to": to}
        x = sampler.next(x, flow, i, partial(noise, to), **further)
        if on_step is not None:
            on_step(chunk_idx, trace)
    return x


def _check(
    model: Any,
    sampler: Sampler,
    forced: Schedule,
    frames: int,
    given: Tensor | None,
) -> None:
    size = sampler.frames_per_chunk
    if size != model.frames_per_chunk:
        expected = f"{model.name} was trained with {model.frames_per_chunk} frames a chunk"
        raise UserError(f"sampler.frames_per_chunk={size}, but {expected}; leave the option out")
    chunk_plan(frames, size)
    engines = model.dit.kv_cache_engines.values()
    for engine in engines:
        engine.check_frames(size, frames)
    if frames > model.dit.max_frames and not all(engine.relative for engine in engines):
        raise UserError(
            f"frames={frames} is more than the {model.dit.max_frames} time positions of {model.name}; "
            "engine=window engine.rope=relative goes beyond them"
        )
    if len(forced) != sampler.num_steps or not forced[0]:
        raise UserError(f"the schedule needs {sampler.num_steps} letters, one a step, and must start with F")
    if given is not None and (given.shape[1] % size or not 0 < given.shape[1] <= frames):
        raise UserError(f"{given.shape[1]} given frames: expected whole chunks of {size}, at most frames={frames}")


def _check_passes(methods: Mapping[str, Any], conditions: Mapping[str, Condition], guidance: float) -> None:
    if not (math.isfinite(guidance) and guidance >= 1) or (guidance > 1) != ("neg" in conditions):
        told = "with" if "neg" in conditions else "without"
        raise UserError(f"guidance={guidance} {told} negative=: guide with both, guidance above 1; or give neither")
    if set(methods) != set(conditions):
        expected = "one for each of " + " and ".join(conditions)
        raise UserError(f"methods for {', '.join(methods) or 'no tag'}: expected {expected}")
    if len({id(method) for method in methods.values()}) < len(methods):
        raise UserError("one method instance for two cache tags; give each its own")
    if len({len(condition.prompt_embeds) for condition in conditions.values()}) > 1:
        raise UserError("condition and negative are batches of different sizes")
