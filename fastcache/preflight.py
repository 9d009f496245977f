"""What can be refused before a run, or a sweep, starts; and what ``dry=true`` tells. Torch is imported when needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from fastcache import cost, fits, results, scores, terminal
from fastcache.build import build
from fastcache.errors import UserError
from fastcache.results import Folder
from fastcache.schedule import parse_schedule
from fastcache.settings import Settings, reference_of, resolve

ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}


def prepare(cfg: DictConfig, choices: Mapping[str, str]) -> Settings:
    """The settings of a composed job, its device found. Raises UserError on what no run can use."""
    s = resolve(cfg, choices)
    s["device"] = _device(str(s["device"]))
    return s


def check(todo: Sequence[Settings], local: bool) -> None:
    """Build the small parts of every unfinished job and, where jobs run in this process, its model too.

    Raises UserError before anything is written.
    """
    from fastcache.make import files_shown, get_metrics, get_model

    for root in {s["outputs"] for s in todo}:
        results.check_writable(root)
    for s in todo:
        get_metrics(s)
        folder = Folder.of(s)
        external_reference(s)
        if folder.finished and not s["force"]:
            continue
        sampler = build(s["sampler"])
        build(s["engine"]).check_frames(sampler.frames_per_chunk, s["frames"])
        build(s["method"])
        parse_schedule(s["schedule"], sampler.num_steps)
        if local:
            model = get_model(s)
            for i, prompt in enumerate(s["prompts"]):
                model.condition(prompt, s["seed"] + i, s["frames"], **files_shown(s, model, i))


def external_reference(s: Settings) -> Folder | None:
    """The reference named by a signature or a folder. Raises UserError if it is not there or cannot be compared."""
    if s["reference"] == "auto":
        return None
    folder = results.find_run(s["outputs"], str(s["reference"]))
    differences = results.differing(s, folder.settings())
    if fatal := [d for d in differences if d.startswith(("frames:", "prompts:", "config.yaml:"))]:
        also = [d for d in differences if d not in fatal]
        raise UserError(
            f"reference={s['reference']} is of another size or of other prompts: {'; '.join([*fatal, *also])}. "
            "Use reference=auto, or the reference's settings"
        )
    return folder


def dry(s: Settings) -> None:
    """Say what a run would do; build nothing, write nothing."""
    results.check_writable(s["outputs"], try_it=False)
    folder = Folder.of(s)
    reference = external_reference(s) or Folder.of(reference_of(s))
    terminal.say(terminal.header(s, folder.signature))
    lines = {
        "signature": folder.signature,
        "folder": f"{folder.path}  {_state(folder)}",
        "reference": f"{reference.signature}  {_state(reference)}",
        "ceiling": f"{scores.top_speed(s):.2f}x of DiT time if every step but the F ones is skipped",
        "reach": reach(s),
        "memory": _memory(s),
    }
    if "rescale" in s["method"]:
        lines["rescale"] = _rescale(s)
    for name, text in lines.items():
        terminal.say(f"  {name:<10} {text}")


def reachable(todo: Sequence[Settings]) -> list[str]:
    """For each schedule among the jobs that are still to be made and leave a method something to skip: what it can
    reach."""
    open_ = [s for s in todo if len(scores.speeds(s)) > 1 and (s["force"] or not Folder.of(s).finished)]
    return list(dict.fromkeys(f"{s['schedule']} can reach {reach(s)}" for s in open_))


def reach(s: Settings) -> str:
    """The speed-ups of DiT time that whole skipped steps give."""
    speeds = scores.speeds(s)
    if len(speeds) == 1:
        return "1.00x: every step is forced"
    skipped = ", ".join(map(str, range(len(speeds))))
    store = "no store pass" if s["sampler"].get("store") == "reuse_last" else "the store pass counted"
    return f"{', '.join(f'{x:.2f}x' for x in speeds)} of DiT time by skipping {skipped} steps of a chunk, {store}"


def _state(folder: Folder) -> str:
    if folder.finished:
        return "exists, finished"
    missing = len(folder.missing())
    return "does not exist yet" if missing == folder.count else f"{missing} of {folder.count} videos missing"


def _memory(s: Settings) -> str:
    """K/V of one video and the weights, where the model's module can tell its sizes without building it."""
    from importlib import import_module

    weights = [f"weights {_size(Path(s['weights']['path']).stat().st_size)}"] if s["weights"] else []
    describe = getattr(import_module(s["model"]["_target_"].rpartition(".")[0]), "describe", None)
    if describe is None:
        return ", ".join([*weights, "K/V not known before the model is built"])
    config, latent_shape = describe(**{key: value for key, value in s["model"].items() if key != "_target_"})
    sizes = cost.Sizes.of(config, latent_shape, s["sampler"]["frames_per_chunk"])
    item, chunks = ITEM[s["dtype"]], s["frames"] // s["sampler"]["frames_per_chunk"]
    under = "" if s["choices"]["engine"] == "vanilla" else " under engine=vanilla"
    parts = [f"K/V {_size(cost.kv_bytes(sizes, chunks, item))}{under}"]
    method = build(s["method"])
    if kept := method.estimate_bytes(sizes.tokens * config.dim, config.num_layers, item):
        parts.append(f"kept by {method.name} {_size(kept)}")
    if method.selective:
        parts.append(f"K/V of the current chunk {_size(cost.working_bytes(sizes, item))}")
    return ", ".join([*weights, *parts]) + " a video, estimated"


def _rescale(s: Settings) -> str:
    fit = s["rescale"]["used"]
    if fit is not None:
        return fits.describe(fit).removeprefix("rescale ")
    return "a probe on the calibration prompts comes first" if s["rescale"]["probe"] else "none: raw distances"


def _size(count: int) -> str:
    unit, divisor = next(((u, d) for u, d in (("GB", 1e9), ("MB", 1e6)) if count >= d / 20), ("kB", 1e3))
    return f"{count / divisor:.{2 if unit == 'GB' else 1}f} {unit}"


def _device(name: str) -> str:
    """auto becomes what there is. Raises UserError where CUDA is asked for and absent."""
    if name == "cpu":
        return name
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if count else "cpu"
    wanted = int(name.partition(":")[2] or 0)
    if wanted >= count:
        there = f"{count} CUDA device{'s' if count > 1 else ''} here" if count else "torch finds no CUDA device here"
        raise UserError(f"device={name}: {there}; use device=cpu or device=auto")
    return name
