"""Differences with their intervals: per prompt against a baseline, methods at equal cost, the noise floor. No torch.

All intervals are 95 % percentile bootstrap intervals over prompts (scipy.stats.bootstrap).
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fastcache.errors import UserError
from fastcache.report.groups import HIGHER, Group
from fastcache.report.load import Run

RESAMPLES = 2000
CONFIDENCE = 0.95
FRACTIONS = tuple(round(0.95 - 0.05 * i, 2) for i in range(16))  # 0.95 to 0.20


class Estimate(NamedTuple):
    """A mean over ``n`` prompts and its interval; no interval (None) from fewer than three prompts."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def estimates(rows: Sequence[np.ndarray]) -> list[Estimate]:
    """The mean of each row of per-prompt numbers, with its interval. Rows of one length share their resamples."""
    found: dict[int, Estimate] = {}
    for length in {len(row) for row in rows}:
        places = [i for i, row in enumerate(rows) if len(row) == length]
        data = np.stack([rows[i] for i in places])
        low, high = _interval(data) if length > 2 else (None, None)
        for j, place in enumerate(places):
            ends = (None, None) if low is None or high is None else (float(low[j]), float(high[j]))
            found[place] = Estimate(float(data[j].mean()), ends[0], ends[1], length)
    return [found[i] for i in range(len(rows))]


def _interval(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds [R] of the means of [R, prompts]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows without spread
        found = stats.bootstrap(
            (data,),
            np.mean,
            axis=-1,
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=200,
            confidence_level=CONFIDENCE,
            method="percentile",
            rng=np.random.default_rng(0),
        )
    interval = found.confidence_interval
    return np.atleast_1d(interval.low), np.atleast_1d(interval.high)


def find_baseline(group: Group, name: str | None) -> Run | None:
    """The run of a signature, a folder's name or a label; without a name, the fixed mask FRRF (FxxF), or another.

    Raises UserError where the name fits several runs.
    """
    if name is None:
        masks = sorted(
            (r for r in group.compared if r.role == "mask"), key=lambda r: r["schedule"] not in ("FxxF", "FRRF")
        )
        return masks[0] if masks else None
    found = [run for run in group.runs if name in (run.signature, run.path.name, run["label"], group.label(run))]
    if len(found) > 1:
        names = ", ".join(run.signature for run in found)
        raise UserError(f"--baseline {name} fits {len(found)} runs: {names}; name one of them by its signature")
    return found[0] if found else None


def paired(runs: Sequence[Run], baseline: Run, metric: str) -> dict[str, Estimate]:
    """By signature: run - baseline, prompt by prompt, of the prompts (with their seeds) that both have a number for.

    A prompt whose video is identical in either has no PSNR and is left out.
    """
    rows, names = [], []
    for run in runs:
        both = run.per_prompt.keys() & baseline.per_prompt.keys()
        pairs = [(run.per_prompt[key][metric], baseline.per_prompt[key][metric]) for key in sorted(both)]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        if differences and run.signature != baseline.signature:
            rows.append(np.array(differences))
            names.append(run.signature)
    return dict(zip(names, estimates(rows), strict=True))


class Ranked(NamedTuple):
    """A line at one forward fraction: its quality there, and how much worse it is than the best line. The oracle has
    rank 0: it is a bound and no competitor."""

    line: str
    schedule: str
    value: Estimate
    behind: Estimate
    rank: int


class Ranking(NamedTuple):
    """``at``: by forward fraction, the lines that reach it, best first."""

    metric: str
    at: dict[float, list[Ranked]]


def rank(group: Group) -> Ranking:
    """Methods at equal forward fraction, interpolated per prompt between neighbouring runs of a line.

    A line with a dial is interpolated along it, for each schedule, and the best schedule counts; fixed masks and fewer
    steps, which have none, are mixed as well as they can be; masks in some chunks only are left out. Computing
    everything (fraction 1, no error) is the end of every line, so lines scored against the FFFF run of other settings
    are left out; nothing is extrapolated beyond its cheapest run. Only fractions that two lines reach are kept.
    """
    metric = next((m for m in ("lpips", "ssim") if any(r[m] is not None for r in group.compared)), "lpips")
    curves = _curves(group, metric)
    bounds = {line for line, runs in group.lines.items() if runs[0].role == "oracle"}
    at = {}
    for fraction in FRACTIONS:
        here: dict[str, tuple[str, np.ndarray]] = {}
        for (line, schedule), curve in curves.items():
            values = _interpolated(curve, fraction)
            if values is not None and (line not in here or _better(values, here[line][1], metric)):
                here[line] = (schedule, values)
        if len(here.keys() - bounds) > 1:
            at[fraction] = _ranked(here, metric, bounds)
    return Ranking(metric, at)


def _curves(group: Group, metric: str) -> dict[tuple[str, str], list[tuple[float, np.ndarray]]]:
    """(line, schedule) -> (forward fraction, number of each prompt), cheapest first."""
    perfect = 0.0 if metric == "lpips" else 1.0
    keys = sorted({key for run in group.compared for key in _texts(run)})
    found: dict[tuple[str, str], list[tuple[float, np.ndarray]]] = {}
    for line, runs in group.lines.items():
        if runs[0].role == "part" or not all(run.exact_end for run in runs):
            continue
        dialled = any(run["dial"] is not None for run in runs)
        for run in runs:
            values = _texts(run)
            row = [values[key][metric] if key in values else None for key in keys]
            if any(value is None for value in row):
                continue  # not scored by this metric
            schedule = run["schedule"] if dialled else "any mask"
            found.setdefault((line, schedule), []).append((run["forward_fraction"], np.array(row, float)))
    everything = (1.0, np.full(len(keys), perfect))
    for key, points in found.items():
        points.append(everything)
        if key[1] == "any mask":
            worse = [abs(float(values.mean()) - perfect) for _, values in points]
            found[key] = [points[i] for i in mixture([x for x, _ in points], worse)]
    return {key: sorted(points, key=lambda p: p[0]) for key, points in found.items()}


def mixture(x: Sequence[float], error: Sequence[float]) -> list[int]:
    """Which points the best mixture of two is made of at every cost: the lower convex hull, cheapest first."""
    hull: list[int] = []
    for i in sorted(range(len(x)), key=lambda i: (round(x[i], 6), error[i])):
        if hull and round(x[i], 6) == round(x[hull[-1]], 6):
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], i, x, error):
            hull.pop()
        hull.append(i)
    return hull


def _above(a: int, b: int, c: int, x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether point b lies on or above the line from a to c."""
    return (y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a])


def _texts(run: Run) -> dict[str, Any]:
    """Entries of per_video by prompt: lines of different seeds are compared prompt by prompt as well."""
    return {entry["prompt"]: entry for entry in run["per_video"]}


def _interpolated(curve: Sequence[tuple[float, np.ndarray]], fraction: float) -> np.ndarray | None:
    """Each prompt's number at a fraction between two points of a curve; None below its cheapest point."""
    above = next((i for i, (x, _) in enumerate(curve) if x >= fraction - 1e-9), None)
    if above is None or (above == 0 and curve[0][0] > fraction + 1e-9):
        return None
    if above == 0:
        return curve[0][1]
    (x0, y0), (x1, y1) = curve[above - 1], curve[above]
    share = 1.0 if x1 == x0 else (fraction - x0) / (x1 - x0)
    return y0 * (1 - share) + y1 * share


def _better(one: np.ndarray, other: np.ndarray, metric: str) -> bool:
    return bool(one.mean() > other.mean()) == HIGHER[metric]


def _ranked(here: Mapping[str, tuple[str, np.ndarray]], metric: str, bounds: set[str]) -> list[Ranked]:
    sign = -1 if HIGHER[metric] else 1
    lines = sorted(here, key=lambda line: (line not in bounds, sign * float(here[line][1].mean())))
    first = len(bounds & here.keys())
    best = here[lines[first]][1]
    rows = [here[line][1] for line in lines]
    values = estimates(rows)
    behind = estimates([row - best for row in rows])
    places = [max(0, i + 1 - first) for i in range(len(lines))]
    return [Ranked(line, here[line][0], values[i], behind[i], places[i]) for i, line in enumerate(lines)]


class Floor(NamedTuple):
    """A row of the noise floor: what was compared, and its numbers (None: not measured)."""

    what: str
    lpips: float | None
    psnr: float | None
    ssim: float | None
    identical: bool


def noise_floor(group: Group, twice: Sequence[tuple[Run, Run]]) -> list[Floor]:
    """Computing everything against computing everything: with another seed, and twice with one."""
    rows = []
    for run in group.noise:
        other = next((r for r in group.runs if r.signature == run["reference"]), None)
        base = f"seed {other['seed']}" if other is not None else f"reference {run['reference']}"
        rows.append(
            Floor(f"{run['schedule']} seed {run['seed']} against {base}", run["lpips"], run["psnr"], run["ssim"], False)
        )
    for one, other in twice:
        if one.computes_all and one in group.runs:
            rows.append(_again(one, other))
    return rows


def _again(one: Run, other: Run) -> Floor:
    """Two folders of the same settings, frame by frame."""
    squares, identical = [], True
    for idx in range(min(one["num_videos"], other["num_videos"])):
        a, b = (_frames(run, idx) for run in (one, other))
        if a is None or b is None or a.shape != b.shape:
            return Floor(f"{one['label']} twice: videos missing", None, None, None, False)
        identical &= bool((a == b).all())
        squares.append(float(np.square((a.astype(np.float64) - b) / 255).mean()))
    named = f"{one['label']} twice ({one.path.parent.name}, {other.path.parent.name})"
    finite = [-10 * np.log10(mse) for mse in squares if mse]
    psnr = float(np.mean(finite)) if finite else None
    return Floor(named, 0.0 if identical else None, psnr, 1.0 if identical else None, identical)


def _frames(run: Run, idx: int) -> np.ndarray | None:
    try:
        with np.load(run.path / "videos" / f"{idx}.npz") as file:
            return np.asarray(file["frames"])
    except (OSError, ValueError, KeyError):
        return None
