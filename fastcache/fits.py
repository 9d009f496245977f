"""Saved rescale fits: a YAML file each, with the samples beside it in JSON. No torch.

Keys: ``format``, ``name``, ``coefficients`` (highest power first), ``degree``, ``domain`` [low, high] of the sampled
distances, ``r2`` (null where y does not vary), ``n``, ``fitted_on`` (what the samples come from) and ``samples`` (the
file). Readers ignore keys they do not know.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from fastcache.errors import UserError

FORMAT = 1
MATCH = ("model", "weights", "sampler", "indicator")
"""The keys of fitted_on in which a fit and a run must agree."""

PROBE_SEED = 4242
"""Seed of the probe in rescale=auto: one fit serves every seed of a run, and shares no noise with it."""
PROBE_VIDEOS = 8
"""How many of the calibration prompts rescale=auto rolls out."""

Fit = dict[str, Any]


class Resolution(NamedTuple):
    """What a rescale request comes to. ``fit`` is None for raw distances and where a probe is needed."""

    fit: Fit | None
    needs_probe: bool


def fitted_on(
    model: str,
    weights: str | None,
    sampler: Mapping[str, Any],
    indicator: str,
    frames: int,
    seed: int,
    prompts: Sequence[str],
) -> dict[str, Any]:
    """Provenance of a fit in plain values: ``weights`` a sha256, ``sampler`` its whole configuration."""
    text = "\n".join(prompts)
    return {
        "model": model,
        "weights": weights,
        "sampler": json.loads(json.dumps(sampler)),
        "indicator": indicator,
        "frames": frames,
        "seed": seed,
        "prompts": hashlib.sha256(text.encode()).hexdigest(),
        "num_prompts": len(prompts),
    }


def resolve_rescale(request: Mapping[str, Any], wanted: Mapping[str, Any], shipped: Path, made: Path) -> Resolution:
    """The fit for a run.

    Args:
        request: the composed ``rescale`` group: name none, auto (with degree), file (with file), or a saved fit.
        wanted: ``fitted_on`` of the fit that auto would make for this run.
        shipped: folder of promoted fits; auto takes one for the same model, weights, sampler and indicator.
        made: folder of fits that auto has made; auto takes one made on exactly ``wanted``.

    Raises UserError on a file that is missing or malformed and on a fit made for something else.
    """
    name = request.get("name")
    if name == "none":
        return Resolution(None, False)
    if name == "auto":
        degree = request.get("degree")
        needed = {key: wanted[key] for key in MATCH}
        fit = find_fit(needed, [shipped], degree) or find_fit(wanted, [made], degree)
        return Resolution(fit, fit is None)
    fit = load_fit(Path(str(request["file"])).expanduser()) if name == "file" else check_form(dict(request), str(name))
    check_match(fit, wanted)
    return Resolution(fit, False)


def find_fit(wanted: Mapping[str, Any], dirs: Sequence[Path], degree: int | None = None) -> Fit | None:
    """The first saved fit made on exactly ``wanted`` (all keys given are equal), of ``degree`` if that is given."""
    for folder in dirs:
        for path in sorted(folder.glob("*.yaml")):
            content = _read(path)
            if not isinstance(content, dict) or "coefficients" not in content:
                continue  # none.yaml, auto.yaml
            fit = check_form(content, str(path))
            same = all(fit["fitted_on"].get(key) == value for key, value in wanted.items())
            if same and degree in (None, fit.get("degree_asked", fit["degree"])):
                return fit | {"path": str(path)}
    return None


def load_fit(path: Path) -> Fit:
    """A saved fit. Raises UserError if the file is missing or not a fit."""
    if not path.is_file():
        raise UserError(f"rescale={path}: no such file; make one with python -m fastcache.calibrate")
    return check_form(_read(path), str(path)) | {"path": str(path)}


def check_form(content: Any, where: str) -> Fit:
    """The content if it is a fit; raises UserError saying what is wrong with it."""
    if not isinstance(content, dict) or not {"coefficients", "degree", "domain", "fitted_on"} <= content.keys():
        raise UserError(f"{where} is not a saved fit: expected coefficients, degree, domain and fitted_on")
    coefficients, domain = content["coefficients"], content["domain"]
    for values in (coefficients, domain):
        if not isinstance(values, list) or not all(_is_number(v) for v in values):
            raise UserError(f"{where}: {values} is not a list of finite numbers")
    if len(coefficients) != content["degree"] + 1:
        raise UserError(f"{where}: degree {content['degree']} needs {content['degree'] + 1} coefficients")
    if len(domain) != 2 or domain[0] > domain[1]:
        raise UserError(f"{where}: domain {domain} is not a pair [low, high]")
    if not isinstance(content["fitted_on"], dict):
        raise UserError(f"{where}: fitted_on does not say what the fit was made on")
    return content


def check_match(fit: Fit, wanted: Mapping[str, Any]) -> None:
    """Raise UserError naming the keys in which a fit was made for another model, sampler or indicator."""
    there = fit["fitted_on"]
    wrong = [f"{key} {there.get(key)}, this run {wanted[key]}" for key in MATCH if there.get(key) != wanted[key]]
    if wrong:
        raise UserError(
            f"the fit {fit.get('name', '')} was made on another {'; '.join(wrong)}. "
            "Use rescale=auto, or make a fit with python -m fastcache.calibrate"
        )


def make_fit(samples: Sequence[Mapping[str, Any]], degree: int, fitted_on: Mapping[str, Any]) -> Fit:
    """Fit y over x with numpy.polyfit. The degree is lowered where there are too few different x for it.

    Raises UserError on no samples, on a value that is not finite and on a negative degree.
    """
    if degree < 0:
        raise UserError(f"degree={degree}: expected 0 or more, e.g. rescale.degree=2")
    x, y = (np.array([sample[key] for sample in samples], dtype=np.float64) for key in ("x", "y"))
    if not len(x) or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError(f"cannot fit {len(x)} samples: there are none, or some are not finite")
    used = min(degree, len(np.unique(x)) - 1)
    coefficients = np.polyfit(x, y, used)
    total = float(((y - y.mean()) ** 2).sum())
    left = float(((y - np.polyval(coefficients, x)) ** 2).sum())
    return {
        "format": FORMAT,
        "name": fit_name(fitted_on),
        "coefficients": [float(c) for c in coefficients],
        "degree": used,
        "degree_asked": degree,
        "domain": [float(x.min()), float(x.max())],
        "r2": 1 - left / total if total > 0 else None,
        "n": len(x),
        "fitted_on": dict(fitted_on),
    }


def describe(fit: Fit) -> str:
    """One line on a fit: its name, what it is worth and, in full, the polynomial."""
    low, high = fit["domain"]
    quality = "-" if fit.get("r2") is None else f"{fit['r2']:.3f}"
    terms = ", ".join(f"{c:.4g}" for c in fit["coefficients"])
    text = f"rescale {fit.get('name', '')}: degree {fit['degree']}, R2 {quality}, n {fit.get('n', '-')}"
    return f"{text}, range {low:.3f} to {high:.3f}, coefficients {terms}"


def fit_name(fitted_on: Mapping[str, Any]) -> str:
    """A readable name: model, sampler, its re-noising, indicator."""
    sampler = fitted_on["sampler"]
    kind = {"FewStep": "few_step", "Euler": "euler"}.get(str(sampler.get("_target_", "")).rpartition(".")[2])
    parts = (fitted_on["model"], kind or sampler.get("name"), sampler.get("renoise"), fitted_on["indicator"])
    return "-".join(str(part) for part in parts if part)


def fit_path(folder: Path, wanted: Mapping[str, Any], degree: int) -> Path:
    """Where auto keeps the fit it makes for ``wanted``: the same place each time."""
    text = json.dumps([wanted, degree], sort_keys=True)
    return folder / f"{fit_name(wanted)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"


def save_fit(fit: Fit, samples: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the samples, then the fit that names them; each whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".samples.json")
    _write(beside, json.dumps(list(samples), allow_nan=False))
    _write(path, yaml.safe_dump(fit | {"samples": beside.name}, sort_keys=False, width=120))


def load_samples(path: Path) -> list[dict[str, Any]]:
    """The samples of the fit saved at ``path``. Raises UserError if they are missing or damaged."""
    beside = path.with_suffix(".samples.json")
    try:
        samples = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{beside} cannot be read: {error}") from None
    return samples


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{os.getpid()}.{path.name}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
