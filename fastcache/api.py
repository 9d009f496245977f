"""The Python interface: a model, a method, a video, its scores. The command line runs on the same functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastcache import catalog, fits, guidance, hindsight
from fastcache.build import build
from fastcache.condition import Condition
from fastcache.errors import UserError
from fastcache.kv_cache import VanillaKVCacheEngine
from fastcache.methods.follow import for_guidance
from fastcache.methods.none import NoCache
from fastcache.methods.planned import Oracle
from fastcache.metrics.score import chunk_frames, score_video
from fastcache.noise import Draw, Noise
from fastcache.rescale import Rescale
from fastcache.sample import OnStep, Rollout, rollout
from fastcache.sampler import FewStep
from fastcache.schedule import Schedule, parse_schedule


@dataclass
class Video:
    """Frames uint8 [T, H, W, 3], the rollout they came from and the seconds spent on decoding and, by an oracle, on its
    search."""

    frames: np.ndarray
    rollout: Rollout
    decode_seconds: float
    search_seconds: float = 0.0

    @property
    def frames_of_chunk(self) -> list[int]:
        return chunk_frames(len(self.frames), len(self.rollout.chunks))


def load_model(
    name: str = "tiny_t2v", weights: str | None = None, device: str = "cpu", dtype: str = "float32", **options: Any
) -> Any:
    """A model of conf/model/ with its own weights, or those of a file, and a default engine in each branch; ``options``
    take the place of those in its YAML.

    Raises UserError on an unknown name and on weights that are missing, damaged or of another shape.
    """
    node = catalog.load("model", name) | options
    own = node.pop("weights", None)
    return build_model(node, weights or (own and str(catalog.HERE / own)), device, dtype)


def build_model(node: Mapping[str, Any], weights: str | None, device: str, dtype: str) -> Any:
    """The VideoModel that a configuration node names, with a default engine in each branch."""
    model = build(node, weights=weights, device=device, dtype=getattr(torch, dtype))
    model.dit.set_kv_engines(lambda branch: VanillaKVCacheEngine())
    return model


def prepare(node: Mapping[str, Any], prompts: Sequence[str], device: str, dtype: str) -> None:
    """Let a model whose text encoder is large encode prompts before the model itself is loaded; others have no need."""
    ready = getattr(import_module(str(node["_target_"]).rpartition(".")[0]), "prepare", None)
    if ready is not None:
        options = {key: value for key, value in node.items() if key != "_target_"}
        ready(prompts, device, getattr(torch, dtype), **options)


def load_fit(name: str) -> Rescale:
    """A saved rescale fit: a name in conf/rescale/ or a file. Raises UserError if there is none."""
    path = catalog.CONF / "rescale" / f"{name}.yaml"
    return rescale(fits.load_fit(path if path.is_file() else Path(name).expanduser()))


def rescale(fit: Mapping[str, Any]) -> Rescale:
    """What a saved fit says of distances."""
    return Rescale(fit["coefficients"], fit["domain"], steps=fit.get("steps"))


def generate(
    model: Any,
    prompt: str,
    method: Any = None,
    sampler: Any = None,
    schedule: str = "FxxF",
    frames: int = 21,
    seed: int = 0,
    idx: int = 0,
    on_step: OnStep | None = None,
    image: np.ndarray | None = None,
    control: np.ndarray | None = None,
    guidance_scale: float = 1.0,
    negative_prompt: str | None = None,
    guidance_decisions: str = "separate",
) -> Video:
    """Roll out one video of ``frames`` latent frames and decode it.

    ``method`` defaults to no caching, ``sampler`` to the few-step one. Noise is addressed by (seed, idx, chunk, step);
    what the prompt leaves open is drawn from seed + idx. ``image`` uint8 [H, W, 3] is the first frame for an I2V model,
    ``control`` uint8 [T, H, W, 3] the control video for a VACE model, both in frames of ``model.frame_size``.
    ``guidance_scale`` above 1 adds a pass for ``negative_prompt`` (None: no words) to every forward, and the flow is
    negative + scale * (positive - negative); see VideoModel.negative. The second pass has K/V and a method of its own,
    which decides for itself or, with ``guidance_decisions="shared"``, computes what the first decided to.
    Raises UserError on a prompt, sizes or a scale that the model cannot take.
    """
    guidance_scale = guidance.check(guidance_scale, negative_prompt, guidance_decisions)
    sampler = FewStep(frames_per_chunk=model.frames_per_chunk) if sampler is None else sampler
    method = NoCache() if method is None else method
    forced = parse_schedule(schedule, sampler.num_steps)
    condition = model.condition(prompt, seed + idx, frames, image=image, control=control)
    method.address = (seed, idx)
    methods, negative, known = {"pos": method}, None, 0
    if guidance_scale > 1:
        methods = for_guidance(method, guidance_decisions == "shared")
        negative, known = model.negative(condition, negative_prompt, seed + idx), method.nonfinite_events
    draw = Noise(seed).of(idx)
    searched = 0.0
    if isinstance(method, Oracle):
        if negative is not None:
            raise UserError("method=oracle searches without guidance; leave guidance_scale out")
        began = perf_counter()
        run = partial(_again, model, sampler, forced, condition, draw)
        hindsight.search(method, run, forced, frames, sampler.frames_per_chunk)
        searched = perf_counter() - began
    made = rollout(
        model, methods, sampler, forced, condition, frames, draw, on_step, negative=negative, guidance=guidance_scale
    )
    if negative is not None:
        method.nonfinite_events += methods["neg"].nonfinite_events - known
    began = perf_counter()
    with torch.inference_mode():
        decoded = model.decode(made.latents)
    return Video(decoded, made, perf_counter() - began, searched)


def _again(
    model: Any, sampler: Any, forced: Schedule, condition: Condition, draw: Draw, method: Any, frames: int, given: Any
) -> Rollout:
    """The same video once more, or its beginning, with another method."""
    return rollout(model, {"pos": method}, sampler, forced, condition, frames, draw, given=given)


def score(video: Video, reference: Video, metrics: Sequence[Any] | None = None) -> dict[str, Any]:
    """Quality of a video against its reference, as one ``per_video`` entry of scores.json. All metrics by default.

    Raises UserError where the two differ in size.
    """
    if metrics is None:
        metrics = [build(catalog.load("metric", name)) for name in ("psnr", "ssim", "lpips")]
    if video.frames.shape != reference.frames.shape:
        sizes = f"{list(video.frames.shape)} and {list(reference.frames.shape)}"
        raise UserError(f"video and reference are {sizes} [frames, height, width, 3]; expected one size")
    return score_video(video.frames, reference.frames, video.frames_of_chunk, metrics)
