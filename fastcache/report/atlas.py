"""Heat maps of fixed masks: the atlas (mask by chunks in which it skips) and the propagation of one skip. No torch."""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from fastcache.report.groups import Group
from fastcache.report.load import Run, value_of
from fastcache.report.study import Study

STYLE: dict[Any, Any] = {"svg.hashsalt": "fastcache", "svg.fonttype": "none", "font.size": 9}
METRICS = (("lpips", "LPIPS, lower is better", "magma_r"), ("psnr", "PSNR in dB, higher is better", "viridis"))
WHAT = {
    "atlas": "Atlas: masks by the chunks in which they skip",
    "propagation": "Propagation: one skipped step, and what it does to the chunks after it",
}


class Grid(NamedTuple):
    """Cells [row][column] by metric; NaN is identical to the reference in PSNR, or was not run."""

    rows: list[str]
    columns: list[str]
    lpips: np.ndarray
    psnr: np.ndarray


def atlas(group: Group) -> Any:
    """A figure, or None without masks confined to classes of chunks."""
    grid = atlas_grid(group)
    return None if grid is None else _figure(grid, WHAT["atlas"], "skipped in", "mask")


def propagation(group: Group) -> Any:
    """A figure, or None without runs that skip one step of one chunk."""
    grid = propagation_grid(group)
    return None if grid is None else _figure(grid, WHAT["propagation"], "chunk of the video", "skipped")


def masks(study: Study) -> str:
    """The two figures for the page, as pictures in it; a sentence where a study has no such runs."""
    parts = []
    for i, g in enumerate(study.groups):
        shown = [(part, name, figure) for part in g.parts for name, figure in _drawn(part).items()]
        inner = "".join(_picture(figure, f"{part.told} {WHAT[name]}".strip()) for part, name, figure in shown)
        none = "<p>No masks confined to some chunks (method=reuse method.chunks=[0,0]) among these runs.</p>"
        parts.append(f'<div data-group="{i}" class="masks">{inner or none}</div>')
    return "\n".join(parts)


def _drawn(part: Group) -> dict[str, Any]:
    made = {"atlas": atlas(part), "propagation": propagation(part)}
    return {name: figure for name, figure in made.items() if figure is not None}


def _picture(figure: Any, told: str) -> str:
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context(STYLE | {"svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode()
    return f'<figure><img alt="{escape(told)}" src="data:image/svg+xml;base64,{data}"></figure>'


def atlas_grid(group: Group) -> Grid | None:
    """Masks by classes of chunks: all, and those that a mask of several skips (else any mask) is confined to."""
    runs = [run for run in group.compared if run.role in ("mask", "part")]
    spans = {_span(run): None for run in runs if run.role == "part" and run["schedule"].count("R") > 1}
    spans = spans or {_span(run): None for run in runs if run.role == "part" and _span(run)[0] != _span(run)[1]}
    schedules = sorted({r["schedule"] for r in runs if _span(r) in spans}, key=lambda s: (s.count("R"), s[::-1]))
    if len(schedules) < 2:
        return None
    last = _chunks(runs) - 1
    ordered = [(0, last), *sorted(span for span in spans if span != (0, last))]
    place = {(s, span): (i, j) for i, s in enumerate(schedules) for j, span in enumerate(ordered)}
    cells = np.full((2, len(schedules), len(ordered)), np.nan)
    for run in runs:
        span = (0, last) if run.role == "mask" else _span(run)
        if at := place.get((run["schedule"], span)):
            cells[0][at], cells[1][at] = _number(run, "lpips"), _number(run, "psnr")
    return Grid(schedules, [_named(span, last) for span in ordered], cells[0], cells[1])


def propagation_grid(group: Group) -> Grid | None:
    """One step skipped in one chunk, by chunk of the video."""
    runs = [r for r in group.compared if r.role == "part" and r["schedule"].count("R") == 1]
    runs = [run for run in runs if _span(run)[0] == _span(run)[1]]
    runs.sort(key=lambda r: (r["schedule"].index("R"), _span(r), r.signature))
    if len({_span(run) for run in runs}) < 2:
        return None
    count = _chunks(runs)
    cells = np.full((2, len(runs), count), np.nan)
    for i, run in enumerate(runs):
        for metric in (0, 1):
            values = run.series(METRICS[metric][0])
            cells[metric][i, : len(values)] = [np.nan if value is None else value for value in values]
    rows = [f"step {r['schedule'].index('R')} of chunk {_span(r)[0]}" for r in runs]
    return Grid(rows, [str(c) for c in range(count)], cells[0], cells[1])


def _span(run: Run) -> tuple[int, int]:
    """First and last chunk of a confined mask; (-1, -1) of one that is not."""
    chunks = (run.settings.get("method") or {}).get("chunks")
    return (-1, -1) if chunks is None else (int(chunks[0]), int(chunks[-1]))


def _chunks(runs: Sequence[Run]) -> int:
    return max(len(entry["per_chunk"].get("lpips") or []) for run in runs for entry in run["per_video"])


def _number(run: Run, name: str) -> float:
    value = value_of(run, name)
    return np.nan if value is None else value


def _named(span: tuple[int, int], last: int) -> str:
    """Chunks counted from 0: "all chunks", "first (0)", "early (1-3)", "late (4-6)"."""
    if span == (0, last):
        return "all chunks"
    where = f"{span[0]}" if span[0] == span[1] else f"{span[0]}-{span[1]}"
    if span == (0, 0):
        return f"first ({where})"
    return f"{'late' if span[1] >= last else 'early' if span[0] + span[1] < last + 1 else 'chunks'} ({where})"


def _figure(grid: Grid, title: str, across: str, down: str) -> Any:
    from matplotlib.figure import Figure

    high, wide = len(grid.rows), len(grid.columns)
    figure = Figure(figsize=(11, 1.35 + 0.29 * high), layout="constrained")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    for axes, (metric, told, cmap), cells in zip(figure.subplots(1, 2), METRICS, grid[2:], strict=True):
        shown = axes.pcolormesh(np.ma.masked_invalid(cells), cmap=cmap, edgecolors="white", linewidth=1)
        axes.set_facecolor("#eef0f3")
        axes.set_title(told, fontsize=9)
        axes.set_xticks(np.arange(wide) + 0.5, grid.columns)
        axes.set_yticks(np.arange(high) + 0.5, grid.rows if metric == "lpips" else [])
        axes.tick_params(length=0)
        axes.invert_yaxis()
        axes.set_xlabel(across)
        if metric == "lpips":
            axes.set_ylabel(down)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for (i, j), value in np.ndenumerate(cells):
            _write(axes, shown, j, i, value, metric, float(grid.lpips[i, j]))
    return figure


def _write(axes: Any, shown: Any, x: int, y: int, value: float, metric: str, lpips: float) -> None:
    """A cell's number, black or white by its ground; "=" where PSNR has none because nothing differs."""
    if np.isnan(value):
        text, ink = ("=" if lpips == 0 else ""), "0.5"
    else:
        red, green, blue, _ = shown.cmap(shown.norm(value))
        ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
        text = f"{value:.4f}" if metric == "lpips" else f"{value:.1f}"
    axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7.5, color=ink)
