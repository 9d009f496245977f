"""One fit from the samples of several, so that many machines can share the probing. No torch."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastcache import fits
from fastcache.errors import UserError

ALIKE = (*fits.MATCH, "frames")
PROBE = ("seed", "prompts", "num_prompts")


def merge_fits(paths: Sequence[Path]) -> tuple[fits.Fit, list[dict[str, Any]]]:
    """The fit of all samples together, and those samples, their prompts numbered through.

    Its ``fitted_on`` lists the probes they come from; its form is what all of them were asked for, else by
    cross-validation. Raises UserError unless there are two fits or more, made on the same model, sampler, indicator and
    frames, with their samples beside them and no probe counted twice.
    """
    if len(paths) < 2:
        raise UserError("merge needs two fits or more: python -m fastcache.calibrate merge FIT FIT ...")
    loaded = [fits.load_fit(path) for path in paths]
    first = loaded[0]["fitted_on"]
    for fit in loaded[1:]:
        ours, theirs = ({key: on.get(key) for key in ALIKE} for on in (first, fit["fitted_on"]))
        if wrong := fits.differing(theirs, ours):
            raise UserError(f"{fit['path']} does not go with {paths[0]}: {'; '.join(wrong)}")
    probes: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for fit in loaded:
        for probe in fit["fitted_on"].get("probes") or [{key: fit["fitted_on"].get(key) for key in PROBE}]:
            if probe in probes:
                raise UserError(f"{fit['path']} holds samples of a probe (seed {probe['seed']}) that is in already")
            probes.append(probe)
        taken = 1 + max((sample["prompt"] for sample in samples), default=-1)
        samples += [one | {"prompt": one["prompt"] + taken} for one in fits.load_samples(Path(fit["path"]))]
    asked = loaded[0].get("asked")
    if asked is None or any(fit.get("asked") != asked for fit in loaded):
        asked = fits.asked_of({})
    return fits.make_fit(samples, fitted_on=_together(first, probes), **asked), samples


def _together(first: dict[str, Any], probes: list[dict[str, Any]]) -> dict[str, Any]:
    seeds = {probe["seed"] for probe in probes}
    text = "\n".join(sorted(f"{probe['seed']} {probe['prompts']}" for probe in probes))
    return {key: first.get(key) for key in ALIKE} | {
        "seed": seeds.pop() if len(seeds) == 1 else None,
        "prompts": hashlib.sha256(text.encode()).hexdigest(),
        "num_prompts": sum(probe["num_prompts"] for probe in probes),
        "probes": probes,
    }
