"""What can be refused before a run, or a sweep, starts; and what ``dry=true`` tells. Torch is imported when needed."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fastcache import catalog, cost, fits, memory, results, scores, shown, terminal, track
from fastcache.build import build
from fastcache.checkpoints.files import find
from fastcache.errors import UserError
from fastcache.memory import size
from fastcache.results import Folder
from fastcache.schedule import parse_schedule
from fastcache.settings import Settings, guided, own_reference, reference_of, wanted_fit

MANY = 4  # runs, of which dry=true says more than a line each
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}


def place(s: Settings, elsewhere: str = "") -> Settings:
    """The settings with the device found that is here. Raises UserError where there is none; of jobs that run on other
    machines (``elsewhere``: their launcher), where the settings would mean something else there."""
    if elsewhere:
        _check_remote(s, elsewhere)
    else:
        s["device"] = _device(str(s["device"]))
    return s


def _check_remote(s: Settings, launcher: str) -> None:
    """Raise UserError on what would mean something else on other machines."""
    if s["device"] == "auto":
        raise UserError(
            f"hydra/launcher={launcher} runs jobs on other machines, and what device=auto is there is not known here, "
            "though it is part of a run's name; write device=cuda or device=cpu"
        )
    if launcher.startswith("ray") and not Path(s["outputs"]).expanduser().is_absolute():
        raise UserError(
            f"hydra/launcher={launcher} starts jobs in other folders than this one; give outputs= as a full path that "
            f"every machine sees, e.g. outputs={Path(s['outputs']).absolute()}"
        )


def check(todo: Sequence[Settings], local: bool, here: bool = True) -> None:
    """Build the small parts of every unfinished job and, where jobs run in this process, its model too. ``here``: they
    run on this machine at least.

    Raises UserError before anything is written.
    """
    from fastcache.finished import get_metrics
    from fastcache.make import files_shown, get_model

    check_tracking([s for s in todo if s["force"] or not Folder.of(s).finished])
    for root in {s["outputs"] for s in todo}:
        results.check_writable(root)
    unfinished = []
    for s in todo:
        get_metrics(s)
        folder = Folder.of(s)
        external_reference(s)
        if folder.finished and not s["force"]:
            continue
        sampler = build(s["sampler"])
        build(s["engine"]).check_frames(sampler.frames_per_chunk, s["frames"])
        if here and s["engine"].get("folder") is not None:
            results.check_writable(s["engine"]["folder"], name="engine.folder=")
        build(s["method"])
        parse_schedule(s["schedule"], sampler.num_steps)
        check_shown(s)
        check_loadable(s, here)
        if local:
            unfinished.append(s)
    for s in unfinished:
        model = get_model(s)
        for i, prompt in enumerate(s["prompts"]):
            condition = model.condition(prompt, s["seed"] + i, s["frames"], **files_shown(s, model, i))
            if guided(s):
                model.negative(condition, s["negative_prompt"], s["seed"] + i)


def check_tracking(todo: Sequence[Settings]) -> None:
    """Raise UserError where W&B would refuse these jobs, or does not answer, in one sentence."""
    track.check(s["tracking"] for s in todo)
    if any(s["tracking"]["mode"] == "online" for s in todo):
        track.connect("tracking=online", "or use tracking=offline and upload later with `wandb sync`")


def calibration_texts(s: Settings) -> list[str]:
    """The prompts that rescale=auto would probe."""
    return catalog.load("prompts", "calibration")["texts"][: wanted_fit(s)["num_prompts"]]


def check_shown(s: Settings) -> None:
    """Raise UserError where image= or control= cannot be read, or is nothing for a model of this layout."""
    describe = getattr(_module(s), "describe", None)
    if describe is not None and any(s[kind] for kind in shown.KINDS):
        config, _ = describe(**_options(s))
        shown.check(s, config.needs)
    for kind in shown.KINDS:
        for file in set(s[kind]["files"] if s[kind] else ()):
            shown.read(kind, file, (8, 8), most=1)


def external_reference(s: Settings) -> Folder | None:
    """The reference named by a signature or a folder. Raises UserError if it is not there or cannot be compared."""
    if own_reference(s):
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


def dry_all(todo: Sequence[Settings], part: str = "") -> None:
    """Say what a command would do; build nothing, write nothing. Of many runs, a line each and how many are left."""
    if len(todo) <= MANY:
        for s in todo:
            dry(s)
        return
    folders = {Folder.of(s).path: s for s in todo}
    done = 0
    for s in folders.values():
        results.check_writable(s["outputs"], try_it=False)
        folder = Folder.of(s)
        done += folder.finished
        terminal.say(f"{terminal.header(s, folder.signature)}  {_state(folder)}")
    terminal.say(f"{part + ': ' if part else ''}{len(folders)} runs, {done} finished, {len(folders) - done} to make")


def dry(s: Settings) -> None:
    """Say what a run would do; build nothing, write nothing."""
    results.check_writable(s["outputs"], try_it=False)
    folder = Folder.of(s)
    reference = external_reference(s) or Folder.of(reference_of(s))
    check_shown(s)
    lines = {
        "signature": folder.signature,
        "folder": f"{folder.path}  {_state(folder)}",
        "reference": f"{reference.signature}  {_state(reference)}",
        "ceiling": f"{scores.top_speed(s):.2f}x of DiT time if every step but the F ones is skipped",
        "reach": reach(s),
        **_memory(s),
    }
    if "rescale" in s["method"]:
        lines["rescale"] = _rescale(s)
    lines |= {kind: s[kind]["path"] for kind in shown.KINDS if s[kind]}
    terminal.say(terminal.header(s, folder.signature))
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
    if len(speeds) == 1 and "-" in s["schedule"]:
        return f"{speeds[0]:.2f}x of DiT time: steps left out: {s['schedule'].count('-')} a chunk"
    if len(speeds) == 1:
        return f"{speeds[0]:.2f}x of DiT time: every step is forced"
    skipped = ", ".join(map(str, range(len(speeds))))
    store = "no store pass" if s["sampler"].get("store") == "reuse_last" else "the store pass counted"
    return f"{', '.join(f'{x:.2f}x' for x in speeds)} of DiT time by skipping {skipped} steps of a chunk, {store}"


def _state(folder: Folder) -> str:
    if folder.finished:
        return "exists, finished"
    missing = len(folder.missing())
    return "does not exist yet" if missing == folder.count else f"{missing} of {folder.count} videos missing"


def check_loadable(s: Settings, here: bool = True) -> None:
    """Raise UserError where the model of a run lacks something, has no such time positions, or, ``here``, will not fit
    the device; nothing is loaded. Of what does not fit, the largest setting that would is named."""
    from fastcache.models.rope import MAX_POSITIONS

    if ready := getattr(_module(s), "check", None):
        given = [kind for kind in shown.KINDS if s[kind]]
        needs = ready(weights=s["weights"] and s["weights"]["path"], shown=given, **_options(s))
        if needs and s["rescale"]["probe"]:
            raise UserError(
                f"rescale=auto probes the calibration prompts, for which model={s['choices']['model']} has no "
                f"{needs[0]}; use rescale=none, or the file of a fit"
            )
    if s["frames"] > MAX_POSITIONS and s["engine"].get("rope") != "relative":
        positions = f"{MAX_POSITIONS} time positions of model={s['choices']['model']}"
        raise UserError(
            f"frames={s['frames']} is more than the {positions}; engine=window engine.rope=relative goes beyond them"
        )
    if here and (misfit := _misfit(s)):
        raise UserError(misfit)


def planned(s: Settings, frames: int | None = None) -> memory.Estimate | None:
    """What a run will need in memory (of other ``frames``), where the model's module tells its sizes."""
    describe = getattr(_module(s), "describe", None)
    if describe is None:
        return None
    config, latent_shape = describe(**_options(s))
    around = getattr(_module(s), "around", lambda **_: memory.Around())(**_options(s))
    sizes = cost.Sizes.of(config, latent_shape, s["sampler"]["frames_per_chunk"])
    chunks = (frames or s["frames"]) // s["sampler"]["frames_per_chunk"]
    passes = 1 + bool(guided(s))
    estimate = memory.estimate(sizes, chunks, ITEM[s["dtype"]], build(s["method"]), around, passes=passes)
    share = build(s["engine"]).share(frames or s["frames"], config.dim // config.num_heads, ITEM[s["dtype"]])
    return estimate._replace(kv={branch: round(count * share) for branch, count in estimate.kv.items()})


def _misfit(s: Settings) -> str | None:
    """Why the run cannot fit its device, and what would; None where it can or nobody knows."""
    estimate, room = planned(s), memory.available(s["device"])
    if estimate is None or room is None or estimate.peak <= room:
        return None
    needs = f"model={s['choices']['model']} with frames={s['frames']} needs about {size(estimate.peak)}"
    phase = max(estimate.phases, key=lambda name: estimate.phases[name])
    told = f"{needs} ({phase}), {s['device']} has {size(room)} left"
    step = s["sampler"]["frames_per_chunk"]
    for frames in range(s["frames"] - step, 0, -step):
        fewer = planned(s, frames)
        if fewer is not None and fewer.peak <= room:
            return f"{told}; frames={frames} is the most that fits ({size(fewer.peak)})"
    smaller = [] if s["dtype"] != "float32" else ["dtype=bfloat16"]
    smaller += ["model.encode_on=cpu"] if phase.startswith("encoding") and s["device"] != "cpu" else []
    smaller += ["model.vae_tiling=true"] if phase == "decoding" else []
    return f"{told}; no number of frames fits. Try {' or '.join([*smaller, 'a smaller model'])}"


def _memory(s: Settings) -> dict[str, str]:
    """Lines on parameters and memory."""
    told = {"weights": size(find(s["weights"]["path"]).size) + " on disk"} if s["weights"] else {}
    e = planned(s)
    if e is None:
        return told | {"memory": "not known before the model is built"}
    kv = ", ".join(f"{branch} {size(count)}" for branch, count in e.kv.items())
    kept = [f"kept by the method {size(e.method)}"] if e.method else []
    kept += [f"K/V of the current chunk {size(e.working)}"] if e.working else []
    phases = ", ".join(f"{name} {size(count)}" for name, count in e.phases.items())
    room = memory.available(s["device"])
    left = "" if room is None else f"; {s['device']} has {size(room)} left"
    return (
        told
        | {
            "parameters": f"{e.parameters:,} in the DiT, {size(e.weights)} as {s['dtype']}",
            "K/V": f"{kv} for {s['frames']} frames",
            "memory": ", ".join([*kept, f"within a forward {size(e.forward)}"]) + " a video, estimated",
            "peak": f"{size(e.peak)}: {phases}{left}",
        }
        | ({"fits": f"no: {misfit}"} if (misfit := _misfit(s)) else {})
    )


def _module(s: Settings) -> Any:
    return import_module(s["model"]["_target_"].rpartition(".")[0])


def _options(s: Settings) -> dict[str, Any]:
    return {key: value for key, value in s["model"].items() if key != "_target_"}


def _rescale(s: Settings) -> str:
    fit = s["rescale"]["used"]
    if fit is not None:
        return fits.describe(fit).removeprefix("rescale ")
    return "a probe on the calibration prompts comes first" if s["rescale"]["probe"] else "none: raw distances"


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
