"""From a composed configuration to the settings of a run: plain values, checked before anything is built. No torch."""

import copy
import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fastcache import catalog, encoders, fits, guidance, shown
from fastcache.checkpoints.hashing import checkpoint_hash
from fastcache.errors import UserError
from fastcache.schedule import parse_schedule

Settings = dict[str, Any]
"""The whole resolved configuration of a run, ``config.yaml`` of its folder. Beyond conf/config.yaml's keys: choices
(the option chosen in each group), dial (a number or None), prompts (a list of texts), weights (path and sha256),
encoders (sha256 of text encoder, VAE, ... where the model has them), image and control (see shown.resolve), rescale
(see _rescale)."""

DTYPES = ("float32", "bfloat16", "float16")
TRACKING = ("offline", "online", "disabled")
COMPUTING = ("none", "euler")
"""Methods that compute every step that the sampler takes."""
POSITIONS = 1024  # latent frames that absolute rotary positions reach


def resolve(cfg: DictConfig, choices: Mapping[str, str]) -> Settings:
    """The settings of a composed job. Raises UserError on a value that no run can use."""
    try:
        plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(f"the configuration cannot be resolved: {str(error).splitlines()[0]}") from None
    assert isinstance(plain, dict)
    s: Settings = {str(key): value for key, value in plain.items() if key != "grids"}
    s["choices"] = {group: choices[group] for group in catalog.GROUPS if choices.get(group) not in (None, "None")}
    s["schedule"] = str(s["schedule"])
    if s["choices"]["method"] in COMPUTING and set(s["schedule"]) <= set("FxR-"):
        s["schedule"] = re.sub("[xR]", "F", s["schedule"])  # what it does with them, and so its name and its signature
    s.setdefault("metric", {})  # metric=[]
    for key, least in (("frames", 1), ("seed", 0), ("num_videos", 1)):
        _whole(s, key, least)
    if not re.fullmatch(r"seed:\d+|(?!seed:).*", str(s["reference"])):
        raise UserError(f"reference={s['reference']}: expected a seed, e.g. reference=seed:1")
    for key in ("force", "retry", "dry"):
        if not isinstance(s[key], bool):
            raise UserError(f"{key}={s[key]}: expected true or false")
    for key, value, known in (("dtype", s["dtype"], DTYPES), ("tracking.mode", s["tracking"]["mode"], TRACKING)):
        if value not in known:
            raise UserError(f"{key}={value} is not one of {', '.join(known)}")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(s["device"])):
        raise UserError(f"device={s['device']} is not one of auto, cpu, cuda, cuda:N")
    _check_sampling(s)
    _check_guidance(s)
    s["dial"] = _dial(s)
    _check_planned(s)
    s["prompts"] = _prompts(s)
    s["num_videos"] = len(s["prompts"])
    s["weights"] = _weights(s)
    s["model"] = encoders.beside(s["model"], s["weights"] and s["weights"]["path"])
    s["encoders"] = encoders.hashes(s["model"])
    for kind in shown.KINDS:
        s[kind] = shown.resolve(kind, s[kind], s["num_videos"])
    s["rescale"] = _rescale(s)
    return s


def wanted_fit(s: Settings) -> fits.Fit:
    """Provenance of the fit that rescale=auto would make for these settings (``fits.fitted_on``)."""
    texts = catalog.load("prompts", "calibration")["texts"][: fits.PROBE_VIDEOS]
    drawn = hashlib.sha256(json.dumps(s["model"], sort_keys=True).encode()).hexdigest()  # a model without a file
    weights = s["weights"]["sha256"] if s["weights"] else drawn
    name, indicator = s["choices"]["model"], s["method"]["indicator"]
    return fits.fitted_on(name, weights, s["sampler"], indicator, s["frames"], fits.PROBE_SEED, texts)


def reference_of(s: Settings) -> Settings:
    """The run that a run is scored against: nothing cached, the default engine, all else equal.

    ``method=euler`` stands for another sampler, so its reference is that of the stock sampler, on the same steps.
    ``reference=seed:N`` is the FFFF run of another seed, ``reference=clean`` that whose chunks a store pass commits.
    """
    r = copy.deepcopy(s)
    asked = str(s["reference"])
    if asked.startswith("seed:"):
        r["seed"] = int(asked.removeprefix("seed:"))
    if asked == "clean":
        r["sampler"]["store"] = "clean"
    r["method"] = catalog.load("method", "none")["method"]
    r["schedule"] = "F" * len(s["sampler"]["steps"])
    r["choices"] |= {"method": "none"}
    if s["frames"] <= POSITIONS:  # beyond them the default engine makes no video
        r["engine"], r["choices"]["engine"] = catalog.load("engine", "vanilla"), "vanilla"
    r |= {"dial": None, "reference": "auto", "force": False, "rescale": _unused(s["rescale"]["name"])}
    r["guidance_decisions"] = "separate"
    for dial in catalog.DIALS:
        r.pop(dial, None)
    if s["choices"]["method"] == "euler":
        stock = catalog.load("sampler", "few_step")
        shared = {key: value for key, value in s["sampler"].items() if key in stock and key != "_target_"}
        r["sampler"], r["choices"]["sampler"] = stock | shared, "few_step"
    return r


def engine_reference_of(s: Settings) -> Settings | None:
    """The run that tells a method's error from its engine's: as ``reference_of``, on the engine of ``s``. None for the
    default engine, whose reference is the first one."""
    if s["choices"]["engine"] == "vanilla":
        return None
    r = reference_of(s)
    r["engine"] = copy.deepcopy(s["engine"])
    r["choices"]["engine"] = s["choices"]["engine"]
    return r


def own_reference(s: Settings) -> bool:
    """Whether the reference follows from the settings (``reference_of``); else it is a run named by the user."""
    return s["reference"] in ("auto", "clean") or str(s["reference"]).startswith("seed:")


def label(s: Settings) -> str:
    """What tables print: euler, none FFFF, motioncache 0.3 FxxF."""
    method = s["choices"]["method"]
    if method == "euler" and set(s["schedule"]) == {"F"}:
        return str(method)
    chunks = s["method"].get("chunks")
    where = [] if chunks is None else [f"chunks {'-'.join(map(str, chunks))}"]
    return " ".join([method, *([number(s["dial"])] if s["dial"] is not None else []), s["schedule"], *where])


def number(value: float) -> str:
    """A dial in as few digits as tell it: 0.3, 1, 0.05."""
    return f"{value:.12f}".rstrip("0").rstrip(".") if abs(value) < 1e15 else f"{value:g}"


def _whole(s: Settings, key: str, least: int) -> None:
    value = s[key]
    if value is None and key == "num_videos":
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{key}={value}: expected a whole number, {least} or more; e.g. {key}={max(least, 1)}")


def _check_sampling(s: Settings) -> None:
    sampler, name = s["sampler"], s["choices"]["sampler"]
    if s["choices"]["method"] == "euler" and name != "euler":
        raise UserError(f"method=euler is the Euler sampler without caching, but sampler={name}; leave sampler= out")
    if isinstance(sampler.get("steps"), list):
        forced = parse_schedule(s["schedule"], len(sampler["steps"]))
        if None in forced and s["choices"]["method"] not in COMPUTING:
            raise UserError(
                f"schedule={s['schedule']} leaves a step out of the sampler, which method={s['choices']['method']} "
                "cannot reuse; write R to reuse it, or method=none"
            )
    size = sampler.get("frames_per_chunk")
    ends = s["method"].get("chunks")
    pair = isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int) for end in ends)
    if pair and isinstance(size, int) and ends[0] * size >= s["frames"]:
        last = s["frames"] // size - 1
        raise UserError(f"method.chunks={ends}: frames={s['frames']} are chunks 0 to {last}, none of them is meant")
    if isinstance(size, int) and size > 0 and s["frames"] % size:
        below = s["frames"] // size * size
        near = f"frames={below} or frames={below + size}" if below else f"frames={size}"
        raise UserError(f"frames={s['frames']} is not a multiple of {size}, the frames of a chunk; try {near}")


def _check_planned(s: Settings) -> None:
    """The controls, whose dial is a number of skipped steps."""
    if "skip" not in s["method"]:
        return
    open_steps = parse_schedule(s["schedule"], len(s["sampler"]["steps"])).count(False)
    if s["dial"] > open_steps:
        raise UserError(f"skip={number(s['dial'])}: schedule={s['schedule']} leaves {open_steps} steps of a chunk open")
    if s["choices"]["method"] == "oracle" and s["guidance_scale"] > 1:
        raise UserError("method=oracle searches without guidance; leave guidance_scale out")


def _check_guidance(s: Settings) -> None:
    words = s["negative_prompt"]
    s["negative_prompt"] = (None if words is None else str(words).strip()) or None  # blank: no words at all
    s["guidance_scale"] = guidance.check(s["guidance_scale"], s["negative_prompt"], s["guidance_decisions"])
    if "rescale" not in s["method"]:  # compares nothing, so both passes decide alike: one run, not two of one content
        s["guidance_decisions"] = "separate"


def guided(s: Settings) -> dict[str, Any]:
    """The settings of guidance, all of them; empty where there is none."""
    keys = ("guidance_scale", "negative_prompt", "guidance_decisions")
    return {key: s[key] for key in keys} if s.get("guidance_scale", 1.0) > 1 else {}


def _dial(s: Settings) -> float | None:
    """The method's dial, checked to be a number at all; its range is the method's own business."""
    dial = next((key for key in catalog.DIALS if key in s["method"]), None)
    if dial is None:
        return None
    value, least = s["method"][dial], 1 if dial == "interval" else 0
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < least:
        usual = {"thresh": 0.3, "interval": 2, "skip": 1}[dial]
        raise UserError(f"{dial}={value}: expected a number, {least} or more; e.g. {dial}={usual}")
    s["method"][dial] = float(value)
    return float(value)


def _prompts(s: Settings) -> list[str]:
    source = s["prompts"]
    if s["prompt"] is not None:
        source = {"name": "prompt", "texts": [str(s["prompt"])]}
    elif "file" in source:
        source = {"name": source["file"], "texts": _lines(Path(source["file"]))}
    texts = [str(text).strip() for text in source["texts"]]
    if not all(texts):
        raise UserError("a prompt is empty; say what to show, e.g. prompt='a red circle moves left'")
    wanted = len(texts) if s["num_videos"] is None else s["num_videos"]
    if wanted > len(texts):
        raise UserError(f"num_videos={wanted}, but prompts={source['name']} holds {len(texts)}; try prompts=eval")
    return texts[:wanted]


def _lines(path: Path) -> list[str]:
    try:
        texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompts={path} cannot be read: {error}") from None
    texts = [text for text in texts if text]
    if not texts:
        raise UserError(f"prompts={path} is empty; expected a text file, one prompt a line")
    return texts


def _rescale(s: Settings) -> dict[str, Any]:
    """name, used (the fit, None for raw distances or where a probe is still needed), probe (whether it is), and signed:
    what enters the signature. A fit enters by its numbers; one that auto makes, which depends on nothing else, by what
    it is made on, so that a run is called the same before and after the probe."""
    request = s["rescale"]
    choice = s["choices"]["rescale"]
    name = str(request.get("name", choice)) if choice == "file" else choice
    if "rescale" not in s["method"]:
        return _unused(name)
    wanted = wanted_fit(s)
    shipped, made = catalog.CONF / "rescale", Path(s["outputs"]).expanduser() / "fits"
    fit, probe = fits.resolve_rescale(request, wanted, shipped, made)
    if choice == "file" and fit is not None:
        name = str(fit.get("name", name))
    own = choice == "auto" and (fit is None or Path(fit["path"]).parent != shipped)
    numbers = None if fit is None else {key: fit.get(key) for key in ("coefficients", "domain", "steps")}
    signed = {"auto": wanted, **fits.asked_of(request)} if own else numbers
    return {"name": name, "used": fit, "probe": probe, "signed": signed}


def _unused(name: str) -> dict[str, Any]:
    return {"name": name, "used": None, "probe": False, "signed": None}


def _weights(s: Settings) -> dict[str, str] | None:
    """Path and hash of the checkpoint: weights= or what the model's YAML names (relative to the package)."""
    own = s["model"].pop("weights", None)
    name = s["weights"] or own
    if name is None:
        return None
    path = Path(str(name)).expanduser()
    path = path.absolute() if s["weights"] else catalog.HERE / path
    if not path.exists() and not s["weights"]:
        raise UserError(
            f"model={s['choices']['model']} comes with {path}, but it is not there; name a file: weights=PATH"
        )
    try:
        return {"path": str(path), "sha256": checkpoint_hash(path)}
    except OSError as error:
        raise UserError(f"weights={path} cannot be read: {error}") from None
