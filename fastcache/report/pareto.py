"""Quality against cost, one line a method: pareto.png. No torch."""

from collections.abc import Sequence
from typing import Any

from fastcache.report.groups import Group, front
from fastcache.report.looks import MARKS, TITLES, legend, looks, new_figure
from fastcache.report.words import counted, verb

NEAR_ZERO = 1e-3  # LPIPS below which its axis is linear
MOST_LINES = 20
ROW = 0.14  # inches that a row of ceilings takes
LETTER = 0.056  # inches of a letter of their names, on average


def pareto(group: Group) -> Any:
    """Quality against cost, what nothing beats ringed."""
    if not group.compared:
        return None
    timed = any(run["speedup"] is not None for run in group.compared)
    figure = new_figure(12, 9.4 if timed else 5.3)
    grid = figure.subplots(2 if timed else 1, 2, squeeze=False)
    places = [(q, c) for q in ("lpips", "psnr") for c in ("speedup", "forward_fraction") if timed or c != "speedup"]
    handles: dict[str, Any] = {}
    rows = 0
    for axes, (quality, cost) in zip(grid.flat, places, strict=True):
        handles |= _scatter(axes, group, cost, quality)
        rows = max(rows, _ceilings(axes, group, cost))
    shown = dict(list(handles.items())[:MOST_LINES]) | _meanings(group)
    legend(figure, list(shown.values()), list(shown), top=0.12 + ROW * rows)
    figure.subplots_adjust(hspace=0.24 + 0.05 * rows, wspace=0.16)
    return figure


def few(schedules: Sequence[str]) -> str:
    """ "FRFF", "FRFF FFRF", "FRFF and 2 more" """
    return " ".join(schedules) if len(schedules) < 3 else f"{schedules[0]} and {len(schedules) - 1} more"


def _scatter(axes: Any, group: Group, cost: str, quality: str) -> dict[str, Any]:
    handles = {}
    for top in group.ceilings:
        axes.axvline(top if cost == "speedup" else 1 / top, color="0.85", linewidth=1, zorder=0)
    for name, look in looks(group).items():
        runs = group.lines[name]
        points = sorted((r[cost], r[quality]) for r in runs if r[cost] is not None and r[quality] is not None)
        if not points:
            continue
        best = [(r[cost], r[quality]) for r in front(runs, cost, quality) if r[quality] is not None]
        own = points if runs[0].role == "random" else sorted(best)
        x, y = zip(*points, strict=True)
        style: dict[str, Any] = {"marker": MARKS[look.mark], "color": look.colour, "label": name}
        handles[name] = axes.scatter(x, y, s=26, **style, zorder=3, clip_on=False)
        if look.dash is not None and own:
            dash = (0, look.dash) if look.dash else "-"
            (line,) = axes.plot(*zip(*own, strict=True), linestyle=dash, color=look.colour, linewidth=1.2, alpha=0.8)
            handles[name] = (line, handles[name])
    best = [(r[cost], r[quality]) for r in front(group.rivals, cost, quality) if r[quality] is not None]
    if best:
        axes.scatter(*zip(*best, strict=True), s=90, facecolors="none", edgecolors="0.2", zorder=4, clip_on=False)
    low, high = axes.get_ylim()
    for run in group.noise:  # another seed is far off most plots
        if run[quality] is not None and low < run[quality] < high:
            axes.axhline(run[quality], color="0.6", linestyle=":", linewidth=1)
    if quality == "lpips":  # from nearly nothing to ruin: most runs lie near 0
        axes.set_yscale("symlog", linthresh=NEAR_ZERO)
        axes.set_ylim(-NEAR_ZERO / 10, max(1.4 * high, 2 * NEAR_ZERO))  # whole marks below the upper edge
    axes.set_xlabel("\n".join([TITLES[cost], *_absent(group, cost, quality)]))
    axes.set_ylabel(TITLES[quality])
    if cost == "forward_fraction":
        axes.invert_xaxis()
    return handles


def _absent(group: Group, cost: str, quality: str) -> list[str]:
    """A line on the runs that a plot cannot show, because they have no error."""
    exact = [r for r in group.compared if r.scores.get(f"{quality}_why") == "identical" and r[cost] is not None]
    count = len(exact)
    if not count:
        return []
    told = f"{counted(count, 'run')} identical to the reference (exact) {verb(count, 'has', 'have')}"
    return [f"{told} no {quality.upper()}: not drawn"]


def _ceilings(axes: Any, group: Group, cost: str) -> int:
    """Names of the ceilings above the plot, in as many rows as keep them apart; returns how many that were."""
    (x0, x1), wide = axes.get_xlim(), 5.0  # inches of a plot
    places = [(((top if cost == "speedup" else 1 / top) - x0) / (x1 - x0), few(s)) for top, s in group.ceilings.items()]
    ends: list[float] = []
    for middle, text in sorted(places):
        share = LETTER * len(text) / wide
        left = min(max(middle - share / 2, 0), 1 - share)
        row = next((i for i, end in enumerate(ends) if end < left), len(ends))
        ends[row : row + 1] = [left + share + 0.01]
        style: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
        axes.annotate(text, (left, 1), (0, 3 + 72 * ROW * row), **style, fontsize=7, color="0.5")
    return len(ends)


def _meanings(group: Group) -> dict[str, Any]:
    """What of a plot is no line of runs, by what it says."""
    from matplotlib.lines import Line2D

    ring: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": "0.2"}
    made = {"nothing beats it": Line2D([], [], linestyle="none", **ring)}
    if group.ceilings:
        made["ceiling of the schedules named above"] = Line2D([], [], color="0.8", linewidth=1)
    if group.noise:
        made["another seed"] = Line2D([], [], color="0.6", linestyle=":", linewidth=1)
    return made
