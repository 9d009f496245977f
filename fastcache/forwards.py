"""The forwards of one video under one cache tag, each in its role: denoise, store or prefill."""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastcache.ages import Ages
from fastcache.condition import Condition
from fastcache.errors import UserError
from fastcache.kv_cache import CausalContext, KVSpec
from fastcache.noise import Draw
from fastcache.sampler import Sampler
from fastcache.step import Step


def allocate(dit: Any, cache_tag: str, batch: int, tokens: int) -> None:
    """Room in every engine of the DiT for ``tokens`` committed tokens of ``batch`` videos under ``cache_tag``."""
    config, weight = dit.config, dit.blocks[0].self_attn.v.weight
    heads, cross_len = config.num_heads, config.context_len
    spec = KVSpec(batch, heads, config.dim // heads, weight.dtype, weight.device, tokens, cross_len)
    for engine in dit.kv_cache_engines.values():
        engine.ensure_capacity(cache_tag, spec, on_mismatch="realloc")


class Forwards:
    """The forwards of one video: what stays the same between them, and the time they take."""

    def __init__(self, dit: Any, sampler: Sampler, tag: str, condition: Condition, frames: int, selective: bool):
        self.dit, self.sampler, self.tag, self.engines = dit, sampler, tag, dit.kv_cache_engines
        self.frames, self.reuse_last = frames, sampler.store == "reuse_last"
        self.keep_current = selective or self.reuse_last
        self.ages = Ages(dit, tag) if any(getattr(e, "debug", False) for e in self.engines.values()) else None
        weight = dit.patch_embedding.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.timesteps = sampler.timesteps.tolist()
        self.seconds = 0.0
        picture = condition.image_embeds
        picture = None if picture is None else picture.to(self.device)
        self.context = dit.encode_context(condition.prompt_embeds.to(self.device), picture)
        self.channels = self._whole("channels", condition.channels)
        self.store_channels = self._whole("store_channels", condition.store_channels)
        self.control = None if condition.control is None else self.latent(condition.control)

    def latent(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.dtype)

    def _whole(self, name: str, given: Tensor | None) -> Tensor | None:
        """Channels that every frame needs. Raises UserError where there are too few frames."""
        if given is None:
            return None
        if given.shape[1] < self.frames:
            raise UserError(f"the condition's {name} are of {given.shape[1]} latent frames, the video of {self.frames}")
        return self.latent(given)

    def noise(self, draw: Draw, shape: tuple[int, ...], chunk_idx: int, i: int) -> Tensor:
        """The noise that enters before step i."""
        return self.latent(draw(chunk_idx, self.sampler.noise_step(i), shape))

    def denoise(self, x: Tensor, chunk_idx: int, i: int, forced: bool, method: Any) -> tuple[Tensor, float]:
        """The flow at step i, as far as the method lets it be computed, and the fraction computed."""
        began = self._now()
        run = self._prepare(x, chunk_idx, self.timesteps[i], store=False, step_idx=i)
        step = Step(run.x, run.e0, run.grid, chunk_idx, i, forced, self.sampler.sigma(i))
        tokens, fraction = method.step(step, run if self.ages is None else self.ages.watch(run))
        if self.ages is not None:
            self.ages.check(step, method, tokens)
        flow = run.head(tokens)
        self.seconds += self._now() - began
        return flow, fraction

    def commit(self, x: Tensor, chunk_idx: int) -> int:
        """Make the finished chunk part of the past; returns the forwards it took."""
        if not self.reuse_last:
            return self.store(x, chunk_idx)
        ctx = self._context(x, chunk_idx, store=True)
        for branch, blocks in self.dit.branch_blocks.items():
            engine = self.engines[branch]
            for block in blocks:
                k, v = engine.get_current_kv(block.self_attn, cache_tag=self.tag)
                engine.append_self_kv(block.self_attn, k, v, cache_tag=self.tag, start_token=ctx.start_token)
        return 0

    def store(self, x: Tensor, chunk_idx: int) -> int:
        """One full forward on a clean latent at t = 0 whose K/V are committed; its output is not needed."""
        began = self._now()
        self._prepare(x, chunk_idx, 0.0, store=True).full()
        self.seconds += self._now() - began
        return 1

    def drop(self, x: Tensor, chunk_idx: int) -> None:
        """Forget what was committed of a chunk."""
        start = self._context(x, chunk_idx, store=True).start_token
        for engine in self.engines.values():
            engine.truncate(cache_tag=self.tag, end_token=start)

    def _prepare(self, x: Tensor, chunk_idx: int, timestep: float, store: bool, step_idx: int | None = None) -> Any:
        ctx = self._context(x, chunk_idx, store, step_idx)
        t = torch.full(x.shape[:2], timestep, dtype=torch.float32, device=self.device)
        span = slice(ctx.cur_start_frame, ctx.cur_start_frame + x.shape[1])
        channels = self.store_channels if store and self.store_channels is not None else self.channels
        if channels is not None:
            x = torch.cat((x, channels[:, span]), dim=2)
        control = None
        if self.control is not None:
            control = self.control[:, span]
            control = pad(control, (0, 0) * 3 + (0, x.shape[1] - control.shape[1]))
        return self.dit.prepare(x, t, self.context, ctx, control)

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
