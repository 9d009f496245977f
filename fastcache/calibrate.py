"""Calibration: roll out the calibration prompts in full with the probe, fit, save."""

from collections.abc import Callable, Sequence
from typing import Any

from fastcache.fits import PROBE_SEED, Fit, make_fit
from fastcache.methods.calibrate import Probe
from fastcache.noise import Noise
from fastcache.sample import rollout

OnVideo = Callable[[int, int], None]
"""Called after each video with (videos done, videos in all)."""


def probe(
    model: Any,
    sampler: Any,
    prompts: Sequence[str],
    frames: int,
    seed: int = PROBE_SEED,
    indicator: str = "modulated_input",
    on_video: OnVideo | None = None,
) -> list[dict[str, Any]]:
    """Samples of every prompt, computed in full: dicts with x, y, chunk, step, sigma and prompt (its index).

    Raises UserError on what the model cannot roll out.
    """
    method, noise = Probe(indicator=indicator), Noise(seed)
    forced = (True,) * sampler.num_steps
    samples: list[dict[str, Any]] = []
    for idx, prompt in enumerate(prompts):
        embeds = model.encode_prompt(prompt, seed)
        rollout(model, {"pos": method}, sampler, forced, embeds, frames, noise.of(idx))
        samples += [sample | {"prompt": idx} for sample in method.samples]
        if on_video is not None:
            on_video(idx + 1, len(prompts))
    return samples


def calibrate(
    model: Any,
    sampler: Any,
    prompts: Sequence[str],
    wanted: dict[str, Any],
    degree: int = 2,
    on_video: OnVideo | None = None,
) -> tuple[Fit, list[dict[str, Any]]]:
    """Probe and fit what ``wanted`` (see fits.fitted_on) describes: the fit and its samples."""
    frames, seed, indicator = wanted["frames"], wanted["seed"], wanted["indicator"]
    samples = probe(model, sampler, prompts, frames, seed, indicator, on_video)
    return make_fit(samples, degree, wanted), samples
