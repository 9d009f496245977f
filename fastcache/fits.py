"""Saved rescale fits: a YAML file each, with the samples beside it in JSON. No torch.

Keys: ``format``, ``name``, ``coefficients`` (highest power first), ``degree``, ``domain`` [low, high] of the sampled
distances, ``steps`` (for some steps, {step, coefficients, domain} in the place of the former), ``r2`` (null where y
does not vary), ``loo`` (mean error on a prompt left out; null with one prompt), ``rank`` (rank correlation), ``n``,
``degrees`` (r2 and loo of every degree), ``asked`` (degree, gate), ``gate`` (what the gate did, in sentences),
``fitted_on`` (what the samples come from) and ``samples`` (the file). Readers ignore keys they do not know.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fastcache import fitting
from fastcache.errors import UserError
from fastcache.files import read_yaml

FORMAT = 1
MATCH = ("model", "weights", "sampler", "indicator")
"""The keys of fitted_on in which a fit and a run must agree."""

PROBE_SEED = 4242
"""Seed of the probe in rescale=auto: one fit serves every seed of a run, and shares no noise with it."""
PROBE_VIDEOS = 8
"""How many of the calibration prompts rescale=auto rolls out."""

Fit = dict[str, Any]
Asked = dict[str, Any]


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
        request: the composed ``rescale`` group: name none, auto (with degree, gate), file (with file), or a saved fit.
        wanted: ``fitted_on`` of the fit that auto would make for this run.
        shipped: folder of promoted fits; auto takes one for the same model, weights, sampler and indicator.
        made: folder of fits that auto has made; auto takes one made on exactly ``wanted``.

    Raises UserError on a file that is missing or malformed and on a fit made for something else.
    """
    name = request.get("name")
    if name == "none":
        return Resolution(None, False)
    if name == "auto":
        asked = asked_of(request)
        needed = {key: wanted[key] for key in MATCH}
        fit = find_fit(needed, [shipped], asked) or find_fit(wanted, [made], asked)
        return Resolution(fit, fit is None)
    fit = load_fit(Path(str(request["file"])).expanduser()) if name == "file" else check_form(dict(request), str(name))
    check_match(fit, wanted)
    return Resolution(fit, False)


def asked_of(request: Mapping[str, Any]) -> Asked:
    """The form that a ``rescale`` group asks a new fit to have: degree (None: by cross-validation) and gate.

    Raises UserError on values that no fit can have.
    """
    degree, gate = request.get("degree"), request.get("gate", True)
    whole = isinstance(degree, int) and not isinstance(degree, bool)
    if degree is not None and not (whole and 0 <= degree <= max(fitting.DEGREES)):
        raise UserError(f"rescale.degree={degree}: expected null (cross-validation) or a whole number from 0 to 4")
    if not isinstance(gate, bool):
        raise UserError(f"rescale.gate={gate}: expected true or false")
    return {"degree": degree, "gate": gate}


def find_fit(wanted: Mapping[str, Any], dirs: Sequence[Path], asked: Asked | None = None) -> Fit | None:
    """The first saved fit made on exactly ``wanted`` (all keys given are equal), asked for as ``asked`` if given."""
    for folder in dirs:
        for path in sorted(folder.glob("*.yaml")):
            content = read_yaml(path)
            if not isinstance(content, dict) or "coefficients" not in content:
                continue  # none.yaml, auto.yaml
            fit = check_form(content, str(path))
            same = all(fit["fitted_on"].get(key) == value for key, value in wanted.items())
            if same and asked in (None, fit.get("asked")):
                return fit | {"path": str(path)}
    return None


def load_fit(path: Path) -> Fit:
    """A saved fit. Raises UserError if the file is missing or not a fit."""
    if not path.is_file():
        raise UserError(f"rescale={path}: no such file; make one with python -m fastcache.calibrate")
    return check_form(read_yaml(path), str(path)) | {"path": str(path)}


def check_form(content: Any, where: str) -> Fit:
    """The content if it is a fit; raises UserError saying what is wrong with it."""
    if not isinstance(content, dict) or not {"coefficients", "degree", "domain", "fitted_on"} <= content.keys():
        raise UserError(f"{where} is not a saved fit: expected coefficients, degree, domain and fitted_on")
    degree, steps = content["degree"], content.get("steps") or []
    _check_numbers(content, where)
    if len(content["coefficients"]) != degree + 1:
        raise UserError(f"{where}: degree {degree} needs {degree + 1} coefficients, not {len(content['coefficients'])}")
    for one in steps if isinstance(steps, list) else [steps]:
        if not isinstance(one, dict) or not {"step", "coefficients", "domain"} <= one.keys():
            raise UserError(f"{where}: {one} is not a step's fit: expected step, coefficients and domain")
        _check_numbers(one, f"{where}, step {one['step']}")
    if not isinstance(content["fitted_on"], dict):
        raise UserError(f"{where}: fitted_on does not say what the fit was made on")
    return content


def _check_numbers(one: Mapping[str, Any], where: str) -> None:
    coefficients, domain = one["coefficients"], one["domain"]
    for values in (coefficients, domain):
        if not isinstance(values, list) or not values or not all(_is_number(v) for v in values):
            raise UserError(f"{where}: {values} is not a list of finite numbers")
    if len(domain) != 2 or domain[0] > domain[1]:
        raise UserError(f"{where}: domain {domain} is not a pair [low, high]")


def check_match(fit: Fit, wanted: Mapping[str, Any]) -> None:
    """Raise UserError naming the keys in which a fit was made for another model, sampler or indicator."""
    there = fit["fitted_on"]
    if wrong := differing({key: there.get(key) for key in MATCH}, {key: wanted[key] for key in MATCH}):
        raise UserError(
            f"the fit {fit.get('name', '')} was made for something else: {'; '.join(wrong)}. "
            "Use rescale=auto, or make a fit with python -m fastcache.calibrate"
        )


def differing(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    """ "sampler.renoise fresh there, shared here" for each key in which two provenances differ."""
    found = []
    for key in {**there, **here}:
        a, b = there.get(key), here.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differing(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key} {_short(a)} there, {_short(b)} here")
    return found


def make_fit(
    samples: Sequence[Mapping[str, Any]], degree: int | None, fitted_on: Mapping[str, Any], gate: bool = True
) -> Fit:
    """Fit y over x: numpy.polyfit of ``degree`` (None: by cross-validation), lowered where there are too few different
    x for it, and with ``gate`` replaced where it cannot be trusted (see fitting.choose).

    Raises UserError on no samples, on a value that is not finite and on a degree outside 0 to 4.
    """
    asked = asked_of({"degree": degree, "gate": gate})
    data = fitting.Data(samples)
    model, said = fitting.choose(data, degree, gate)
    if model["steps"]:
        make = fitting.lines if len(model["steps"][0]["coefficients"]) > 1 else fitting.constants
    else:
        make = partial(fitting.polynomial, degree=len(model["coefficients"]) - 1)
    rows = [(d, partial(fitting.polynomial, degree=d)) for d in fitting.DEGREES]
    return {
        "format": FORMAT,
        "name": fit_name(fitted_on),
        "coefficients": model["coefficients"],
        "degree": len(model["coefficients"]) - 1,
        "domain": model["domain"],
        "steps": model["steps"],
        "r2": fitting.r2(model, data),
        "loo": _mean(fitting.left_out(make, data)),
        "rank": fitting.rank_correlation(data.x, data.y),
        "n": len(data.x),
        "degrees": [
            {"degree": d, "r2": fitting.r2(each(data), data), "loo": _mean(fitting.left_out(each, data))}
            for d, each in rows
        ],
        "asked": asked,
        "gate": said,
        "fitted_on": dict(fitted_on),
    }


def describe(fit: Fit) -> str:
    """One line on a fit: its name, what it is worth, all its numbers, and what the gate did."""
    low, high = fit["domain"]
    terms = ", ".join(f"{c:.4g}" for c in fit["coefficients"])
    form, numbers = f"degree {fit['degree']}", f"coefficients {terms}"
    if steps := fit.get("steps"):
        form = "by step"
        numbers = ", ".join(f"step {one['step']} {' '.join(f'{c:.4g}' for c in one['coefficients'])}" for one in steps)
    worth = [f"{title} {_shown(fit.get(key))}" for title, key in (("R2", "r2"), ("error", "loo"), ("rank", "rank"))]
    parts = [form, *worth, f"n {fit.get('n', '-')}", f"range {low:.3f} to {high:.3f}", numbers]
    text = f"rescale {fit.get('name', '')}: {', '.join(parts)}"
    return text + (f"  ({'; '.join(fit['gate'])})" if fit.get("gate") else "")


def fit_name(fitted_on: Mapping[str, Any]) -> str:
    """A readable name: model, sampler, its re-noising, indicator."""
    sampler = fitted_on["sampler"]
    kind = {"FewStep": "few_step", "Euler": "euler"}.get(str(sampler.get("_target_", "")).rpartition(".")[2])
    parts = (fitted_on["model"], kind or sampler.get("name"), sampler.get("renoise"), fitted_on["indicator"])
    return "-".join(str(part) for part in parts if part)


def fit_path(folder: Path, wanted: Mapping[str, Any], asked: Asked) -> Path:
    """Where auto keeps the fit it makes for ``wanted``: the same place each time."""
    text = json.dumps([wanted, asked], sort_keys=True)
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


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{os.getpid()}.{path.name}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def _mean(errors: Any) -> float | None:
    return None if errors is None else float(errors.mean())


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
