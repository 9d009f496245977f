"""The figures of a group as PNG and SVG, byte by byte the same for the same runs. No torch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastcache.report import atlas
from fastcache.report.groups import Group, front
from fastcache.report.load import Run
from fastcache.report.looks import COLOURS, MARKS, looks
from fastcache.results import written_aside

TITLES = {
    "lpips": "LPIPS (lower is better)",
    "psnr": "PSNR, dB (higher is better)",
    "speedup": "DiT speed-up, measured",
    "forward_fraction": "forward fraction",
}
NEAR_ZERO = 1e-3  # LPIPS below which its axis is linear
HEATMAPS = 12  # runs drawn in the static figure
MOST_LINES = 20
COLUMNS = 4  # of decision maps


def draw(group: Group, folder: Path, stem: str) -> list[Path]:
    """Write <stem>pareto, chunks, decisions, atlas and propagation (.png, .svg) where there is something to show, each
    sampling for itself."""
    import matplotlib

    matplotlib.use("agg")
    style: dict[Any, Any] = {"svg.hashsalt": "fastcache", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(style | {"axes.spines.right": False, "axes.spines.top": False}):
        made: dict[str, Any] = {}
        for part in group.parts:
            own = stem if part is group else f"{stem}{part.told.replace(' ', '-')}-"
            made |= {f"{own}{name}": maker(part) for name, maker in FIGURES.items()}
        return [path for name, figure in made.items() if figure for path in _save(figure, folder, name)]


def _save(figure: Any, folder: Path, name: str) -> list[Path]:
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        kind = path.suffix[1:]
        with written_aside(path) as aside:
            figure.savefig(aside, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return paths


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))  # placed by hand: an automatic layout draws everything twice


def _pareto(group: Group) -> Any:
    """Quality against cost, one line a method, what nothing beats ringed."""
    if not group.compared:
        return None
    timed = any(run["speedup"] is not None for run in group.compared)
    figure = _figure(12, 9 if timed else 5)
    grid = figure.subplots(2 if timed else 1, 2, gridspec_kw={"hspace": 0.2, "wspace": 0.16}, squeeze=False)
    places = [(q, c) for q in ("lpips", "psnr") for c in ("speedup", "forward_fraction") if timed or c != "speedup"]
    handles: dict[str, Any] = {}
    for axes, (quality, cost) in zip(grid.flat, places, strict=True):
        handles |= _scatter(axes, group, cost, quality)
    _legend(figure, list(handles.values())[:MOST_LINES], list(handles)[:MOST_LINES])
    return figure


def _scatter(axes: Any, group: Group, cost: str, quality: str) -> dict[str, Any]:
    handles = {}
    for top, schedules in group.ceilings.items():
        where = top if cost == "speedup" else 1 / top
        axes.axvline(where, color="0.85", linewidth=1, zorder=0)
        axes.annotate(
            " ".join(schedules if len(schedules) < 3 else [schedules[0], f"+{len(schedules) - 1}"]),
            (where, 1),
            xycoords=("data", "axes fraction"),
            rotation=90,
            va="top",
            ha="right",
            fontsize=7,
            color="0.55",
        )
    for name, look in looks(group).items():
        runs = group.lines[name]
        points = [(r[cost], r[quality]) for r in runs if r[cost] is not None and r[quality] is not None]
        if not points:
            continue
        own = (
            sorted(points)
            if runs[0].role == "random"
            else [(r[cost], r[quality]) for r in front(runs, cost, quality) if r[quality] is not None]
        )
        x, y = zip(*points, strict=True)
        handles[name] = axes.scatter(x, y, s=26, marker=MARKS[look.mark], color=look.colour, label=name, zorder=3)
        if look.dash is not None:
            dash = (0, look.dash) if look.dash else "-"
            (line,) = axes.plot(*zip(*own, strict=True), linestyle=dash, color=look.colour, linewidth=1.2, alpha=0.8)
            handles[name] = (line, handles[name])
    best = [r for r in front(group.rivals, cost, quality) if r[quality] is not None]
    axes.scatter(
        [r[cost] for r in best], [r[quality] for r in best], s=90, facecolors="none", edgecolors="0.2", zorder=4
    )
    low, high = axes.get_ylim()
    for run in group.noise:  # another seed is far off most plots
        if run[quality] is not None and low < run[quality] < high:
            axes.axhline(run[quality], color="0.6", linestyle=":", linewidth=1)
    if quality == "lpips":  # from nearly nothing to ruin: most runs lie near 0
        axes.set_yscale("symlog", linthresh=NEAR_ZERO)
        axes.set_ylim(bottom=-NEAR_ZERO / 10)
    axes.set_xlabel(TITLES[cost])
    axes.set_ylabel(TITLES[quality])
    if cost == "forward_fraction":
        axes.invert_xaxis()
    return handles


def _legend(figure: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Below everything, in as many columns as the names leave room for."""
    columns = max(1, min(5, 150 // (max(map(len, names), default=0) + 8)))
    rows, height = -(-len(names) // columns), figure.get_figheight()
    figure.legend(handles, names, loc="lower center", ncols=columns, frameon=False)
    figure.subplots_adjust(left=0.06, right=0.985, top=1 - 0.15 / height, bottom=(0.65 + 0.2 * rows) / height)


def _chunks(group: Group) -> Any:
    """Quality chunk by chunk: how an error lives on."""
    lines = [(run, run.series("lpips"), run.series("psnr")) for run in shown_runs(group)]
    if not any(value is not None for _, *series in lines for values in series for value in values):
        return None
    figure = _figure(12, 4.6)
    for axes, place, quality in zip(figure.subplots(1, 2), (1, 2), ("lpips", "psnr"), strict=True):
        for i, line in enumerate(lines):
            values = [np.nan if value is None else value for value in line[place]]  # type: ignore[union-attr]
            label = line[0]["label"] + group.options[line[0].signature]
            axes.plot(values, marker=MARKS[i % 5], markersize=4, color=COLOURS[i % len(COLOURS)], label=label)
        axes.set_xlabel("chunk")
        axes.set_ylabel(TITLES[quality])
        axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(figure, *figure.axes[0].get_legend_handles_labels())
    return figure


def _decisions(group: Group) -> Any:
    """Share of tokens computed, chunk by step, mean over videos."""
    maps = [(run, fractions) for run in shown_runs(group) if (fractions := heat(run)) is not None]
    if not maps:
        return None
    chunks, steps = max(len(f) for _, f in maps), max(len(f[0]) for _, f in maps)
    wide, high, rows = chunks + 1, steps + 2, -(-len(maps) // COLUMNS)
    picture = np.full((rows * high, COLUMNS * wide), np.nan)  # all maps in one picture: fast to draw
    figure = _figure(12, 0.3 * high * rows + 0.4)
    axes = figure.subplots()
    for i, (run, fractions) in enumerate(maps):
        y, x = i // COLUMNS * high + 1, i % COLUMNS * wide
        picture[y : y + len(fractions[0]), x : x + len(fractions)] = np.array(fractions).T
        axes.text(x - 0.5, y - 0.7, run["label"] + group.options[run.signature], fontsize=8, va="bottom")
    shown = axes.imshow(picture, vmin=0, vmax=1, cmap="viridis", aspect="auto", interpolation="nearest")
    axes.set_axis_off()
    axes.text(-0.5, rows * high - 0.6, "across: chunks; down: steps", fontsize=8, color="0.4", va="bottom")
    figure.subplots_adjust(left=0.02, right=0.96, top=1, bottom=0.02)
    figure.colorbar(shown, ax=axes, label="share of tokens computed", pad=0.01, fraction=0.03)
    return figure


def heat(run: Run) -> list[list[float]] | None:
    """[chunk][step]: share computed, mean over the videos that have the chunk; None without a trace."""
    if run.trace is None:
        return None
    videos = [[chunk["fractions"] for chunk in video["chunks"]] for video in run.trace["videos"]]
    count = max(map(len, videos), default=0)
    columns = [[video[c] for video in videos if c < len(video)] for c in range(count)]
    if not columns or len({len(steps) for column in columns for steps in column}) != 1:
        return None
    return [np.mean(column, axis=0).round(4).tolist() for column in columns]


def shown_runs(group: Group) -> list[Run]:
    """The runs that figures with a panel or a line a run show: the front first, then the others by line."""
    best = group.fronts
    rest = [run for runs in group.lines.values() for run in runs if run not in best and run.role != "part"]
    return sorted([*best, *rest][:HEATMAPS], key=lambda r: -r["forward_fraction"])


FIGURES: dict[str, Callable[[Group], Any]] = {
    "pareto": _pareto,
    "chunks": _chunks,
    "decisions": _decisions,
    "atlas": atlas.atlas,
    "propagation": atlas.propagation,
}
