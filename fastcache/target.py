"""`target_speedup=1.4` or `max_lpips=0.05`: method, dial and schedule picked from the finished runs. No torch.

Only settings that were run are picked, never something between two of them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastcache.catalog import DIALS
from fastcache.errors import UserError
from fastcache.report.load import CONTROLS, Run, load
from fastcache.report.words import counted
from fastcache.scores import too_fast

TARGETS = ("target_speedup", "max_lpips")
PICKED = ("method", "schedule", *DIALS)
MUST_AGREE = ("model", "engine", "sampler", "frames", "dtype", "indicator", "guidance_scale")


def expand(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """The command line with its target replaced by what it picks, and the sentence that says so; as it was without one.

    Raises UserError where the finished runs do not cover the target.
    """
    asked = [word for word in argv if word.partition("=")[0] in TARGETS]
    if not asked:
        return list(argv), None
    rest = [word for word in argv if word not in asked]
    if len(asked) > 1 or {"-m", "--multirun"} & set(rest):
        raise UserError(f"{' '.join(asked)}: one target for one run, without -m")
    if clash := [word for word in rest if word.partition("=")[0] in PICKED]:
        raise UserError(f"{asked[0]} picks method, dial and schedule; leave {' '.join(clash)} out")
    name, _, text = asked[0].partition("=")
    limit = _limit(name, text)
    settings = _composed(rest)
    root = Path(settings["outputs"]).expanduser()
    found = [run for run in _study(root, name) if not run.computes_all and run.role not in CONTROLS]
    runs = [run for run in found if _timed(run)]
    usable = [run for run in runs if not _differing(run, settings)]
    if not usable:
        why = f": they differ in {', '.join(_differing(runs[0], settings))}" if runs else ""
        if len(found) > len(runs):
            why += f" ({len(found) - len(runs)} runs are left out, timed beside other work)"
        raise UserError(f"{asked[0]}: no finished run in {root} was made with these settings{why}. {_hint(settings)}")
    run = _pick(usable, name, limit, root, settings)
    words = _words(run, settings, rest)
    lpips = "not measured" if run["lpips"] is None else f"{run['lpips']:.4f}"
    said = (
        f"{asked[0]}: {run['label']}, of {len(usable)} finished runs in {root}: measured {run['speedup']:.2f}x, "
        f"forward fraction {run['forward_fraction']:.3f}, LPIPS {lpips} over {counted(run['num_videos'], 'video')} "
        f"({run.signature}); "
        + (
            "the best quality at that speed or faster"
            if name == "target_speedup"
            else "the fastest of that quality or better"
        )
    )
    return [*rest, *words], said


def _limit(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    least = 1.0 if name == "target_speedup" else 0.0
    if not least <= value < float("inf"):
        raise UserError(f"{name}={text}: expected a number, {least:g} or more; e.g. target_speedup=1.4, max_lpips=0.05")
    return value


def _composed(words: Sequence[str]) -> dict[str, Any]:
    """The settings of the run as far as the target leaves them open."""
    from fastcache.config import plan
    from fastcache.settings import resolve

    jobs = plan(words).jobs
    if jobs is None:
        raise UserError("a target picks a run to make; leave --cfg and --info out")
    return resolve(jobs[0].cfg, jobs[0].choices)


def _study(root: Path, name: str) -> list[Run]:
    try:
        return load([root]).runs
    except UserError as error:
        raise UserError(f"{name} picks from finished runs, and {error}") from None


def _differing(run: Run, s: Mapping[str, Any]) -> list[str]:
    """The settings in which a run was made otherwise; prompts, seed and device may differ."""
    there = run.settings
    keys = [key for key in MUST_AGREE if key in s and _plain(there.get(key)) != _plain(s[key])]
    weights = [(one or {}).get("sha256") for one in (there.get("weights"), s["weights"])]
    return keys + ["weights"] * (weights[0] != weights[1])


def _pick(runs: Sequence[Run], name: str, limit: float, root: Path, s: Mapping[str, Any]) -> Run:
    scored = [run for run in runs if run["lpips"] is not None]
    if not scored:
        raise UserError(f"{name}={limit:g}: no run in {root} has LPIPS; score them with metric=lpips")
    if name == "target_speedup":
        good = [run for run in scored if run["speedup"] >= limit]
        best = max(scored, key=lambda run: run["speedup"])
    else:
        good = [run for run in scored if run["lpips"] <= limit]
        best = min(scored, key=lambda run: run["lpips"])
    if not good:
        reach = f"{best['speedup']:.2f}x" if name == "target_speedup" else f"LPIPS {best['lpips']:.4f}"
        raise UserError(
            f"{name}={limit:g}: the {len(scored)} finished runs in {root} do not cover it; the nearest is "
            f"{best['label']} with {reach}. {_hint(s)}"
        )
    if name == "target_speedup":
        return min(good, key=lambda run: (run["lpips"], -run["speedup"]))
    return max(good, key=lambda run: (run["speedup"], -run["lpips"]))


def _words(run: Run, s: Mapping[str, Any], rest: Sequence[str]) -> list[str]:
    """Overrides that make the run's method, with every option that its YAML does not have."""
    words = [f"method={run.settings['choices']['method']}", f"schedule={run['schedule']}"]
    there = run.settings["method"]
    words += [f"{key}={there[key]:g}" for key in DIALS if key in there]
    if not any(word.startswith("rescale") for word in rest):
        words += _rescale(run)
    made = _composed([*rest, *words])["method"]
    skipped = ("_target_", "rescale", *DIALS)
    return words + [
        f"method.{key}={json.dumps(value)}"
        for key, value in there.items()
        if key not in skipped and made.get(key) != value
    ]


def _rescale(run: Run) -> list[str]:
    """What the run asked of its fit."""
    asked, choice = run.settings.get("rescale") or {}, run.settings["choices"].get("rescale", "auto")
    if choice == "file" and asked.get("used"):
        return [f"rescale={asked['used']['path']}"]
    signed: Mapping[str, Any] = asked["signed"] if isinstance(asked.get("signed"), dict) else {}
    degree = [f"rescale.degree={signed['degree']}"] if signed.get("degree") is not None else []
    return [f"rescale={choice}"] * (choice != "auto") + degree + ["rescale.gate=false"] * (signed.get("gate") is False)


def _timed(run: Run) -> bool:
    """Whether the speed-up can be true: a run faster than its forwards allow was timed against a busy machine."""
    return run["speedup"] is not None and too_fast(run.scores) is None


def _hint(s: Mapping[str, Any]) -> str:
    model = s["choices"]["model"]
    return f"Make a study first: python -m fastcache.run -m model={model} method=teacache,motioncache thresh=0.1,0.3,1"


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
