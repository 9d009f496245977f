"""The work of a run: model, fit, the videos that are missing. Holds one model a process."""

import json
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fastcache import __version__, api, fits, preflight, shown, terminal
from fastcache.build import build
from fastcache.calibrate import make_fit
from fastcache.commit import running
from fastcache.cost import Sizes, flops_fraction
from fastcache.results import Folder, locked
from fastcache.scores import check_size
from fastcache.settings import Settings, guided, wanted_fit

_warm: set[str] = set()  # what this process has run already


def get_model(s: Settings) -> Any:
    """The model of a run; the last one is kept, for it alone outlives a job. Its text encoder has its turn before."""
    texts = [*s["prompts"], *(preflight.calibration_texts(s) if s["rescale"]["probe"] else [])]
    texts += [s["negative_prompt"] or ""] if guided(s) else []
    api.prepare(s["model"], texts, s["device"], s["dtype"])
    return _model(json.dumps([s["model"], s["weights"], s["device"], s["dtype"]], sort_keys=True))


@lru_cache(maxsize=1)
def _model(key: str) -> Any:
    node, weights, device, dtype = json.loads(key)
    return api.build_model(node, weights and weights["path"], device, dtype)


def make_videos(
    s: Settings,
    folder: Folder,
    reference: Folder,
    title: str = "",
    ready: Callable[[], object] = lambda: None,
    look: Callable[[int], None] = lambda idx: None,
) -> None:
    """Roll out and keep the videos that are missing, one by one. ``ready`` is called before the first one, which the
    clock is on, and ``look`` with the number of each."""
    missing = folder.missing()
    model, sampler = get_model(s), build(s["sampler"])
    model.dit.set_kv_engines(lambda branch: build(s["engine"]))
    use_fit(s, model, sampler)
    fit = s["rescale"]["used"]  # None: raw distances
    method = build(s["method"], **({} if fit is None else {"rescale": api.rescale(fit)}))
    warm_up(s, model, sampler)
    for note in _notes(s, model):
        terminal.say(f"note: {note}")
    note_short(s, model, missing)
    ready()
    chunks = s["frames"] // sampler.frames_per_chunk
    with terminal.Bar(folder.count, chunks, folder.count - len(missing), title) as bar:
        for idx in missing:
            _reset_peak(s["device"])
            before = method.nonfinite_events, method.clamps
            began = perf_counter()
            video = api.generate(
                model, s["prompts"][idx], method, sampler, s["schedule"], s["frames"], s["seed"], idx, bar.on_step(idx),
                **files_shown(s, model, idx), **guided(s),
            )  # fmt: skip
            if reference is not folder:
                check_size(s, video.frames.shape, reference)
            folder.save_frames(idx, video.frames)
            events = method.nonfinite_events - before[0], method.clamps - before[1]
            info = _info(s, idx, model, video, *events) | {"wall_s": perf_counter() - began - video.search_seconds}
            folder.save_info(idx, info)
            bar.video(idx, [c.letters for c in video.rollout.chunks], info["compute_fraction"], info["wall_s"])
            look(idx)
    model.dit.clear_caches()


def warm_up(s: Settings, model: Any, sampler: Any) -> None:
    """One chunk that counts for nothing: the first forwards of a process are slow for reasons of no interest here."""
    kind = json.dumps([s[key] for key in ("model", "weights", "device", "dtype", "engine", "sampler")], sort_keys=True)
    if kind in _warm:
        return
    shown_first = files_shown(s, model, 0)
    api.generate(model, s["prompts"][0], None, sampler, s["schedule"], sampler.frames_per_chunk, **shown_first)
    _warm.add(kind)


def _notes(s: Settings, model: Any) -> Iterator[str]:
    """What is unusual about a run and does not keep it from being made."""
    if 0 < model.trained_frames < s["frames"]:
        yield f"{model.name} was trained on {model.trained_frames} latent frames; this goes beyond them"
    if guided(s) and not model.guidable:
        yield f"{model.name} was not trained for guidance; its videos get no better by it"
    if guided(s) and s["rescale"]["used"]:
        yield "rescale fits are made without guidance: thresh is about the error of a pass, not of the guided flow"


def files_shown(s: Settings, model: Any, idx: int) -> dict[str, Any]:
    """The picture or control video that video ``idx`` is given, as frames of the model's size.

    Raises UserError where the model takes none of the kind and where it cannot be read.
    """
    shown.check(s, model.needs)
    most = model.pixel_frames(s["frames"])
    return {kind: shown.read(kind, s[kind]["files"][idx], model.frame_size, most) for kind in shown.KINDS if s[kind]}


def note_short(s: Settings, model: Any, videos: Sequence[int]) -> None:
    """Say it once where control videos end before the videos do."""
    if not s["control"]:
        return
    firsts = {s["control"]["files"][i]: i for i in videos}.values()
    least, wanted = min(len(files_shown(s, model, i)["control"]) for i in firsts), model.pixel_frames(s["frames"])
    if least < wanted:
        path = s["control"]["path"]
        terminal.say(f"note: control={path} has {least} of {wanted} frames; what follows them is without control")


def use_fit(s: Settings, model: Any, sampler: Any) -> None:
    """With rescale=auto and no fit yet, probe the calibration prompts, once for everybody, and keep the fit."""
    if not s["rescale"]["probe"]:
        return
    wanted, asked = wanted_fit(s), fits.asked_of(s["rescale"]["signed"])
    path = fits.fit_path(Path(s["outputs"]).expanduser() / "fits", wanted, asked)
    with locked(path.with_suffix(".lock"), wait=True, say=terminal.say):
        if not path.is_file():
            texts = preflight.calibration_texts(s)
            terminal.say(f"no fit for {fits.fit_name(wanted)} yet: probing {len(texts)} calibration prompts")
            make_fit(s, model, sampler, texts, wanted, asked, path)
        fit = fits.load_fit(path)
    terminal.say(fits.describe(fit))
    s["rescale"] |= {"used": fit, "probe": False}


def _info(s: Settings, idx: int, model: Any, video: api.Video, nonfinite: int, clamps: int) -> dict[str, Any]:
    made, size = video.rollout, s["sampler"]["frames_per_chunk"]
    fractions, stores = [c.fractions for c in made.chunks], [c.full_forwards for c in made.chunks]
    keys = ("letters", "fractions", "indicator", "full_forwards")
    return {
        "prompt": s["prompts"][idx],
        "seed": s["seed"] + idx,
        "chunks": [{key: getattr(chunk, key) for key in keys} for chunk in made.chunks],
        "frames_of_chunk": video.frames_of_chunk,
        "fps": model.fps,
        "dit_s": made.dit_seconds,
        "decode_s": video.decode_seconds,
        "compute_fraction": made.compute_fraction,
        "forward_fraction": made.forward_fraction,
        "flops_fraction": flops_fraction(Sizes.of(model.dit.config, model.latent_shape, size), fractions, stores),
        "kv_bytes": made.kv_bytes,
        "kv_host_bytes": made.kv_host_bytes,
        "method_bytes": made.method_bytes,
        "peak_bytes": _peak(s["device"]),
        "nonfinite_events": nonfinite,
        "clamps": clamps,
        "made_by": _made_by(s["device"]),
    }


def _made_by(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device != "cpu" else _cpu_name()
    versions = {"fastcache": __version__, "commit": running(), "torch": torch.__version__}
    return {"device": name, "threads": torch.get_num_threads(), **versions}


@lru_cache(maxsize=1)
def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def _reset_peak(device: str) -> None:
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: str) -> int:
    """Highest memory so far, bytes: allocated on a GPU; resident on a CPU, for the whole process."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
