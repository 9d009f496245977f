"""Runs with a dial against controls of equal compute: the oracle, random masks, fixed masks, fewer steps.

Prompt by prompt, at the forward fraction of that prompt's video: it follows from the video's own compute_fraction where
scores.json has it, else the mean of the run is taken. A control is a line through its runs of the same reference,
engine, sampling and seed, which ends where everything is computed (fraction 1, no error). Between neighbouring points
of the line LPIPS and squared error are interpolated linearly, which is what a mixture costs: some chunks with one, the
others with the next. Fixed masks, fewer steps and the oracle are mixed as well as they can be (chosen on the same
videos, which favours them); random masks are joined in the order of their cost. Of oracle and random masks, those of
the run's own schedule are taken where there are any, else those of the schedule that forces least.

An identical video has no error: its squared error counts as ``LEAST`` (100 dB) in differences of PSNR. No torch.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastcache.report.groups import SAMPLING, Group, axis, engine_options
from fastcache.report.load import CONTROLS, Run
from fastcache.report.stats import Estimate, estimates, mixture

LINES = {"oracle": "oracle", "random": "random masks", "mask": "fixed masks", "fewer": "fewer steps"}
METRICS = ("lpips", "psnr")
LEAST = 1e-10
SLACK = 0.01
"""Forward fraction by which videos may on average lie beyond a line's cheapest point, whose error then counts."""
MEANING = (
    "Each number is the run minus the control at equal forward fraction, prompt by prompt: LPIPS below 0 and PSNR "
    "above 0 say that the run is better than a control that decides nothing; against the oracle, the best masks of "
    "whole steps in hindsight by the squared error of the latents, it is the regret."
)
CHANCE = "may be chance: its 95 % bootstrap interval over prompts holds 0, or there are fewer than three prompts"
COMPETE = (
    "Fixed masks (reuse) and fewer steps (none F-FF) can be used as they are: they are controls here and have their "
    "place on the front as well."
)

Errors = dict[str, np.ndarray]
"""lpips and mse (255 = 1) of each prompt, NaN where not measured, and the forward fractions x."""


class Against(NamedTuple):
    """A run against the controls. ``found[control]``: estimates by metric, fewer where a metric was not scored;
    ``why[control]``: why there are none. ``identical``: videos with no error at all."""

    run: Run
    found: dict[str, dict[str, Estimate]]
    why: dict[str, str]
    identical: int


def against(group: Group) -> list[Against]:
    """Every run with a dial that skips anything, by line and cost; empty where the study has no control."""
    prompts = sorted({entry["prompt"] for run in group.compared for entry in run["per_video"]})
    shelves: dict[tuple[Any, ...], dict[str, list[Run]]] = {}
    for run in group.compared:
        shelves.setdefault(_setting(run), {}).setdefault(run.role, []).append(run)
    if not any(role in LINES for shelf in shelves.values() for role in shelf):
        return []
    made = {_key(run): errors(run, prompts) for run in group.compared}
    rows: dict[str, list[np.ndarray]] = {metric: [] for metric in METRICS}
    places: list[tuple[Run, str, dict[str, int], str]] = []
    for run in _dialled(group):
        for control in LINES:
            runs = _own(shelves[_setting(run)].get(control, []), run)
            differences, why = _differences(made[_key(run)], [made[_key(r)] for r in runs], control != "random")
            if differences and not all(one.exact_end for one in (run, *runs)):
                differences, why = {}, "another reference"  # computing everything is not without error there
            for metric, row in differences.items():
                rows[metric].append(row)
            places.append((run, control, {metric: len(rows[metric]) - 1 for metric in differences}, why))
    told = {metric: estimates(rows[metric]) for metric in METRICS}
    found: dict[tuple[str, str], Against] = {}
    for run, control, where, why in places:
        identical = int((made[_key(run)]["mse"] == 0).sum())
        one = found.setdefault(_key(run), Against(run, {}, {}, identical))
        if where:
            one.found[control] = {metric: told[metric][i] for metric, i in where.items()}
        else:
            one.why[control] = why
    return list(found.values())


def present(rows: Sequence[Against]) -> dict[str, str]:
    """The controls that any run has a line of, with their titles."""
    return {c: title for c, title in LINES.items() if any(row.why.get(c) != "no such runs" for row in rows)}


def errors(run: Run, prompts: Sequence[str]) -> Errors:
    """What is known of a run's videos, in the order of ``prompts``."""
    entries = {entry["prompt"]: entry for entry in run["per_video"]}
    videos = [entries.get(prompt) or {} for prompt in prompts]
    lpips = [np.nan if video.get("lpips") is None else video["lpips"] for video in videos]
    return {
        "lpips": np.array(lpips, float),
        "mse": np.array([_mse(video) for video in videos]),
        "x": np.array([_forward(run, video) for video in videos]),
    }


def _mse(video: Mapping[str, Any]) -> float:
    if video.get("psnr") is not None:
        return float(10 ** (-video["psnr"] / 10))
    return 0.0 if video.get("psnr_why") == "identical" else np.nan


def _forward(run: Run, video: Mapping[str, Any]) -> float:
    """The store passes, which are always full, are the same in all videos of a run."""
    share, mean = video.get("compute_fraction"), run["compute_fraction"]
    if share is None or mean >= 1 - 1e-9:
        return float(run["forward_fraction"])
    return float(1 - (1 - share) * (1 - run["forward_fraction"]) / (1 - mean))


def _key(run: Run) -> tuple[str, str]:
    return run.signature, str(run["reference"])


def _setting(run: Run) -> tuple[Any, ...]:
    options = json.dumps(engine_options(run), sort_keys=True)
    return (run["reference"], run["engine"], options, run["seed"], *(axis(run, name) for name in SAMPLING))


def _dialled(group: Group) -> list[Run]:
    runs = [run for line in group.lines.values() for run in line]
    return [r for r in runs if r["dial"] is not None and r.role not in CONTROLS and r["forward_fraction"] < 1 - 1e-9]


def _own(runs: Sequence[Run], run: Run) -> list[Run]:
    """Of controls that have a schedule of their own, those that compare with a run."""
    if not runs or runs[0].role not in CONTROLS:
        return list(runs)
    schedules = {r["schedule"] for r in runs}
    kept = run["schedule"] if run["schedule"] in schedules else min(schedules, key=lambda s: (s.count("F"), s))
    return [r for r in runs if r["schedule"] == kept]


def _differences(mine: Errors, line: Sequence[Errors], mixed: bool) -> tuple[dict[str, np.ndarray], str]:
    """Run - control by metric and prompt, or why there is none."""
    if not line:
        return {}, "no such runs"
    cheapest = np.min([one["x"] for one in line], axis=0)
    if np.maximum(cheapest - mine["x"], 0).mean() > SLACK:
        return {}, "not covered"
    found = {}
    for metric, key in (("lpips", "lpips"), ("psnr", "mse")):
        theirs = _at(mine["x"], [one for one in line if not np.isnan(one[key]).any()], key, mixed)
        if theirs is None or np.isnan(mine[key]).any():
            continue
        if key == "mse":
            decibel = -10 * np.log10(np.maximum([mine[key], theirs], LEAST))
            found[metric] = decibel[0] - decibel[1]
        else:
            found[metric] = mine[key] - theirs
    return found, "" if found else "not scored"


def _at(x: np.ndarray, line: Sequence[Errors], key: str, mixed: bool) -> np.ndarray | None:
    """Each prompt's error on a line at its fraction in ``x``."""
    if not line:
        return None
    xs = np.stack([*(one["x"] for one in line), np.ones_like(x)])
    ys = np.stack([*(one[key] for one in line), np.zeros_like(x)])
    if mixed:
        kept = mixture(xs.mean(axis=1).tolist(), ys.mean(axis=1).tolist())
        xs, ys = xs[kept], ys[kept]
    order = np.argsort(xs, axis=0, kind="stable")
    xs, ys = np.take_along_axis(xs, order, 0), np.take_along_axis(ys, order, 0)
    return np.array([np.interp(x[i], xs[:, i], ys[:, i]) for i in range(len(x))])
