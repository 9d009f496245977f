"""The figures of a group as PNG and SVG, byte by byte the same for the same runs. No torch."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from fastcache.report import atlas, pareto
from fastcache.report.groups import Group
from fastcache.report.load import Run
from fastcache.report.looks import MARKS, TITLES, curves, legend, new_figure
from fastcache.report.words import counted
from fastcache.results import written_aside

HEATMAPS = 12  # runs drawn in the static figure
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


def _chunks(group: Group) -> Any:
    """Quality chunk by chunk: how an error lives on."""
    lines = [(run, run.series("lpips"), run.series("psnr")) for run in shown_runs(group)]
    if not any(value is not None for _, *series in lines for values in series for value in values):
        return None
    figure = new_figure(12, 4.9)
    shown = [run for run, *_ in lines]
    for axes, place, quality in zip(figure.subplots(1, 2), (1, 2), ("lpips", "psnr"), strict=True):
        for line, look in zip(lines, curves(group, shown), strict=True):
            values = [np.nan if value is None else value for value in line[place]]  # type: ignore[union-attr]
            style: dict[str, Any] = {"color": look.colour, "linestyle": (0, look.dash) if look.dash else "-"}
            style |= {"marker": MARKS[look.mark], "markersize": 4, "fillstyle": "none" if look.hollow else "full"}
            axes.plot(values, **style, label=_named(group, line[0]))
        axes.set_xlabel("chunk")
        axes.set_ylabel(TITLES[quality])
        axes.xaxis.get_major_locator().set_params(integer=True)
    handles, names = figure.axes[0].get_legend_handles_labels()
    legend(figure, handles, names, _which(group, shown), dashes=True)
    return figure


def _decisions(group: Group) -> Any:
    """Share of tokens computed, chunk by step, mean over videos."""
    maps = [(run, fractions) for run in shown_runs(group) if (fractions := heat(run)) is not None]
    if not maps:
        return None
    chunks, steps = max(len(f) for _, f in maps), max(len(f[0]) for _, f in maps)
    wide, high, rows = chunks + 1, steps + 2, -(-len(maps) // COLUMNS)
    picture = np.full((rows * high, COLUMNS * wide), np.nan)  # all maps in one picture: fast to draw
    height = 0.3 * high * rows + 0.6
    figure = new_figure(12, height)
    axes = figure.subplots()
    for i, (run, fractions) in enumerate(maps):
        y, x = i // COLUMNS * high + 1, i % COLUMNS * wide
        picture[y : y + len(fractions[0]), x : x + len(fractions)] = np.array(fractions).T
        axes.text(x - 0.5, y - 0.7, _named(group, run), fontsize=8, va="bottom")
    shown = axes.imshow(picture, vmin=0, vmax=1, cmap="viridis", aspect="auto", interpolation="nearest")
    axes.set_axis_off()
    told = f"across: chunks; down: steps. {_which(group, [run for run, _ in maps])}"
    figure.text(0.02, 0.06 / height, told, fontsize=8, color="0.4")
    figure.subplots_adjust(left=0.02, right=0.96, top=1 - 0.1 / height, bottom=0.3 / height)  # room for "1.0"
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
    """The runs that figures with a panel or a line a run show: the front with one run of each tie, then one of each
    line in turn."""
    best = group.front_points
    rest = [[run for run in runs if run not in best and run.role != "part"] for runs in group.lines.values()]
    others = [run for turn in zip_longest(*rest) for run in turn if run is not None]
    return sorted([*best, *others][:HEATMAPS], key=lambda r: -r["forward_fraction"])


def _which(group: Group, shown: Sequence[Run]) -> str:
    """Which runs a figure shows, and why those."""
    if len(shown) == len(group.compared):
        return "* the front"
    whole = all(run in shown for run in group.front_points)
    why = "then one run of each line in turn" if whole else "no room for all of it"
    return f"{len(shown)} of {counted(len(group.compared), 'run')}: the front (*), one run of each tie; {why}"


def _named(group: Group, run: Run) -> str:
    return group.label(run) + " *" * (run in group.fronts)


FIGURES: dict[str, Callable[[Group], Any]] = {
    "pareto": pareto.pareto,
    "chunks": _chunks,
    "decisions": _decisions,
    "atlas": atlas.atlas,
    "propagation": atlas.propagation,
}
