"""The rollout: chunks x denoising steps, then the store pass that commits the chunk. The only file that knows time.

Every forward of the DiT has a role. A *denoise* forward is a step of a chunk, the only one a cache method is told of.
A *store* forward, at t = 0 on the finished latent, commits the chunk's clean K/V; a *prefill* forward does the same for
a latent that was given. Both are always full. Loop: Self-Forcing (guandeh17/Self-Forcing,
pipeline/causal_inference.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fastcache.ages import Ages
from fastcache.errors import UserError
from fastcache.kv_cache import CausalContext, KVSpec
from fastcache.kv_cache.masks import chunk_plan
from fastcache.noise import Draw
from fastcache.sampler import Sampler
from fastcache.step import Step


@dataclass
class ChunkTrace:
    """What happened in one chunk, one entry a denoising step; all empty for a prefilled chunk."""

    letters: str = ""  # F computed in full, P partly, R reused or forecast
    fractions: list[float] = field(default_factory=list)  # tokens computed / tokens
    indicator: list[Any] = field(default_factory=list)  # what the method decided on (a number or several), or None
    full_forwards: int = 0  # store and prefill forwards

    @property
    def compute_fraction(self) -> float:
        return sum(self.fractions) / len(self.fractions) if self.fractions else 1.0

    def add(self, fraction: float, decisions: list[Any]) -> None:
        step_idx = len(self.letters)
        self.letters += "F" if fraction >= 1 else "P" if fraction > 0 else "R"
        self.fractions.append(float(fraction))
        self.indicator.append(decisions[step_idx] if step_idx < len(decisions) else None)


@dataclass
class Rollout:
    """A generated batch: latents [B, F, C, H, W], its trace and what it cost."""

    latents: Tensor
    chunks: list[ChunkTrace]
    seconds: float  # wall time of the whole call
    dit_seconds: float  # of it, in the DiT and the cache method
    kv_bytes: int
    method_bytes: int

    @property
    def forwards(self) -> int:
        """DiT forwards of all roles, skipped denoising steps included."""
        return sum(len(c.fractions) + c.full_forwards for c in self.chunks)

    @property
    def compute_fraction(self) -> float:
        """Tokens computed / tokens over the denoising steps."""
        fractions = [f for c in self.chunks for f in c.fractions]
        return sum(fractions) / len(fractions) if fractions else 1.0

    @property
    def forward_fraction(self) -> float:
        """The same over all forwards, store and prefill included."""
        return sum(sum(c.fractions) + c.full_forwards for c in self.chunks) / self.forwards


OnStep = Callable[[int, ChunkTrace], None]
"""Called after every denoising step with the chunk's index and its trace so far."""


@torch.inference_mode()
def rollout(
    model: Any,
    methods: Mapping[str, Any],
    sampler: Sampler,
    forced: tuple[bool, ...],
    prompt_embeds: Tensor,
    frames: int,
    draw: Draw,
    on_step: OnStep | None = None,
    given: Tensor | None = None,
) -> Rollout:
    """Generate ``frames`` latent frames, chunk by chunk.

    Args:
        model: a VideoModel; its engines are cleared before and after.
        methods: the cache method of each cache tag; without guidance there is one, {"pos": method}.
        forced: which steps are forced full (``schedule.parse_schedule``).
        prompt_embeds: [B, text_len, text_dim].
        draw: (chunk_idx, step_idx, shape) -> noise of that address (``Noise.of``).
        given: the first latent frames [B, k * frames_per_chunk, C, H, W], stored instead of generated.

    Raises UserError on sizes that do not fit. An exception in a store or prefill forward leaves the engines as they
    were at the chunk's start.
    """
    start = perf_counter()
    _check(model, methods, sampler, forced, frames, given)
    ((tag, method),) = methods.items()
    video = _Video(model.dit, sampler, tag, prompt_embeds, frames, method.selective)
    size = sampler.frames_per_chunk
    noise_shape = (prompt_embeds.shape[0], size, *model.latent_shape)
    known = [] if given is None else video.latent(given).split(size, dim=1)
    latents, traces = [], []
    method.begin_video()
    for chunk_idx in range(frames // size):
        trace = ChunkTrace()
        if chunk_idx < len(known):
            x = known[chunk_idx]
            video.store(x, chunk_idx, trace)
        else:
            noise = partial(video.noise, draw, noise_shape, chunk_idx)
            x = _denoise_chunk(video, method, forced, chunk_idx, trace, noise, on_step)
            video.commit(x, chunk_idx, trace)
        latents.append(x)
        traces.append(trace)
    kv_bytes = sum(engine.memory_bytes() for engine in video.engines.values())
    model.dit.clear_caches()
    out = torch.cat(latents, dim=1)
    return Rollout(out, traces, perf_counter() - start, video.seconds, kv_bytes, method.memory_bytes())


def _denoise_chunk(
    video: "_Video",
    method: Any,
    forced: tuple[bool, ...],
    chunk_idx: int,
    trace: ChunkTrace,
    noise: Callable[[int], Tensor],
    on_step: OnStep | None,
) -> Tensor:
    """All denoising steps of one chunk: from its initial noise to its latent [B, F, C, H, W]."""
    sampler = video.sampler
    method.begin_chunk(chunk_idx)
    x = noise(0)
    for i in range(sampler.num_steps):
        flow = video.denoise(x, chunk_idx, i, forced[i], method, trace)
        x = sampler.next(x, flow, i, partial(noise, i + 1))
        if on_step is not None:
            on_step(chunk_idx, trace)
    return x


def allocate(dit: Any, cache_tag: str, batch: int, tokens: int) -> None:
    """Room in every engine of the DiT for ``tokens`` committed tokens of ``batch`` videos under ``cache_tag``."""
    config, weight = dit.config, dit.blocks[0].self_attn.v.weight
    heads, cross_len = config.num_heads, config.text_len
    spec = KVSpec(batch, heads, config.dim // heads, weight.dtype, weight.device, tokens, cross_len)
    for engine in dit.kv_cache_engines.values():
        engine.ensure_capacity(cache_tag, spec, on_mismatch="realloc")


class _Video:
    """The forwards of one video: what stays the same between them, and the time they take."""

    def __init__(self, dit: Any, sampler: Sampler, tag: str, prompt_embeds: Tensor, frames: int, selective: bool):
        self.dit, self.sampler, self.tag, self.engines = dit, sampler, tag, dit.kv_cache_engines
        self.frames, self.reuse_last = frames, sampler.store == "reuse_last"
        self.keep_current = selective or self.reuse_last
        self.ages = Ages(dit, tag) if any(getattr(e, "debug", False) for e in self.engines.values()) else None
        weight = dit.patch_embedding.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.timesteps = sampler.timesteps.tolist()
        self.seconds = 0.0
        dit.clear_caches()
        self.context = dit.encode_text(prompt_embeds.to(self.device))

    def latent(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.dtype)

    def noise(self, draw: Draw, shape: tuple[int, ...], chunk_idx: int, i: int) -> Tensor:
        """The noise that enters before step i."""
        return self.latent(draw(chunk_idx, self.sampler.noise_step(i), shape))

    def denoise(self, x: Tensor, chunk_idx: int, i: int, forced: bool, method: Any, trace: ChunkTrace) -> Tensor:
        """The flow at step i, as far as the method lets it be computed."""
        began = self._now()
        run = self._prepare(x, chunk_idx, self.timesteps[i], store=False, step_idx=i)
        step = Step(run.x, run.e0, run.grid, chunk_idx, i, forced, self.sampler.sigma(i))
        tokens, fraction = method.step(step, run if self.ages is None else self.ages.watch(run))
        if self.ages is not None:
            self.ages.check(step, method, tokens)
        flow = run.head(tokens)
        self.seconds += self._now() - began
        trace.add(fraction, method.decisions)
        return flow

    def commit(self, x: Tensor, chunk_idx: int, trace: ChunkTrace) -> None:
        """Make the finished chunk part of the past."""
        if not self.reuse_last:
            return self.store(x, chunk_idx, trace)
        ctx = self._context(x, chunk_idx, store=True)
        for branch, blocks in self.dit.branch_blocks.items():
            engine = self.engines[branch]
            for block in blocks:
                k, v = engine.get_current_kv(block.self_attn, cache_tag=self.tag)
                engine.append_self_kv(block.self_attn, k, v, cache_tag=self.tag, start_token=ctx.start_token)

    def store(self, x: Tensor, chunk_idx: int, trace: ChunkTrace) -> None:
        """One full forward on a clean latent at t = 0 whose K/V are committed; its output is not needed."""
        began = self._now()
        run = self._prepare(x, chunk_idx, 0.0, store=True)
        try:
            run.full()
        except BaseException:
            for engine in self.engines.values():
                engine.truncate(cache_tag=self.tag, end_token=run.ctx.start_token)
            raise
        self.seconds += self._now() - began
        trace.full_forwards += 1

    def _prepare(self, x: Tensor, chunk_idx: int, timestep: float, store: bool, step_idx: int | None = None) -> Any:
        ctx = self._context(x, chunk_idx, store, step_idx)
        t = torch.full(x.shape[:2], timestep, dtype=torch.float32, device=self.device)
        return self.dit.prepare(x, t, self.context, ctx)

    def _context(self, x: Tensor, chunk_idx: int, store: bool, step_idx: int | None = None) -> CausalContext:
        size, seqlen = self.sampler.frames_per_chunk, self.dit.grid(x).tokens_per_frame
        if chunk_idx == 0:
            allocate(self.dit, self.tag, x.shape[0], self.frames * seqlen)
        return CausalContext(
            cache_engines=self.engines,
            cache_tag=self.tag,
            cur_start_frame=chunk_idx * size,
            num_frames=size,
            frame_seqlen=seqlen,
            chunk_size=size,
            total_num_frames=self.frames,
            store_kv=store,
            is_ar=True,
            keep_current=self.keep_current,
            cross_fill="first_no_grad" if self.reuse_last else "on_store",
            step_idx=step_idx,
            chunk_idx=chunk_idx,
        )

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()


def _check(
    model: Any,
    methods: Mapping[str, Any],
    sampler: Sampler,
    forced: tuple[bool, ...],
    frames: int,
    given: Tensor | None,
) -> None:
    size = sampler.frames_per_chunk
    if size != model.frames_per_chunk:
        expected = f"{model.name} was trained with {model.frames_per_chunk} frames a chunk"
        raise UserError(f"sampler.frames_per_chunk={size}, but {expected}; leave the option out")
    chunk_plan(frames, size)
    if frames > model.dit.max_frames:
        raise UserError(f"frames={frames} is more than the {model.dit.max_frames} time positions of {model.name}")
    if len(forced) != sampler.num_steps or not forced[0]:
        raise UserError(f"the schedule needs {sampler.num_steps} letters, one a step, and must start with F")
    if len(methods) != 1:
        raise UserError(f"methods for {', '.join(methods) or 'no tag'}: expected one, e.g. {{'pos': method}}")
    if given is not None and (given.shape[1] % size or not 0 < given.shape[1] <= frames):
        raise UserError(f"{given.shape[1]} given frames: expected whole chunks of {size}, at most frames={frames}")
