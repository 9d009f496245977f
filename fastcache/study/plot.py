"""The study's picture: growth of the saving, bytes and errors of the engines, drift of long rollouts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastcache.results import written_aside
from fastcache.study.drift import Drift
from fastcache.study.engines import Row

BLUE, RED, GREEN = "#2c4e7a", "#c8553d", "#3a7d44"


def draw(
    path: Path,
    frames: Sequence[int],
    counted: Sequence[float],
    measured: Sequence[float],
    rows: Sequence[Row],
    drifts: Sequence[Drift],
    frames_per_chunk: int,
) -> None:
    """Write a PNG. ``counted`` and ``measured`` are ratios of rollouts of so many latent ``frames``."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(13, 4.2), dpi=120, layout="constrained")
    growth, engines, drift = figure.subplots(1, 3)
    growth.plot(frames, counted, color=BLUE, label="counted: (chunks + 1) / 2")
    growth.plot(frames, measured, "o-", color=RED, markersize=4, label="measured")
    growth.set(xlabel="latent frames", ylabel="time recomputed / time cached", title="What the cache saves")
    growth.legend(frameon=False)
    _engines(engines, rows)
    for one, colour in zip(drifts, (BLUE, RED), strict=False):
        at = [frames_per_chunk * (i + 1) for i, x in enumerate(one.error) if x is not None]
        drift.plot(at, [x for x in one.error if x is not None], color=colour, label=f"rope {one.rope}", linewidth=1)
    drift.set(xlabel="latent frames", ylabel="sprite error, pixels (median)", title="Long rollouts in a window")
    if drifts:
        drift.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside:
        figure.savefig(aside, format="png")


def _engines(axes: Any, rows: Sequence[Row]) -> None:
    names = [row.name for row in rows]
    axes.bar(names, [row.bytes / 1e6 for row in rows], color=BLUE, label="on the device")
    axes.bar(
        names, [row.host_bytes / 1e6 for row in rows], bottom=[r.bytes / 1e6 for r in rows], color=GREEN, label="host"
    )
    for i, row in enumerate(rows):
        if row.attention_error:
            total = (row.bytes + row.host_bytes) / 1e6
            axes.text(i, total, f"{row.attention_error:.1%}", ha="center", va="bottom", fontsize=8)
    axes.set(ylabel="K/V, MB", title="Engines (error of attention above)")
    axes.tick_params(axis="x", labelrotation=30)
    axes.margins(y=0.25)
    axes.legend(frameon=False)
