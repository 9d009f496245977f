"""A picture of a rescale fit: the samples, coloured by step, and the curve that a run will use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastcache.results import written_aside

COLOURS = ("#2c4e7a", "#c8553d", "#3a7d44", "#7b5ea7", "#b8860b", "#008b8b", "#a0456e", "#555555")


def draw_fit(fit: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG of ``samples`` (x, y, step) and ``fit``."""
    from matplotlib.figure import Figure  # slow to import, and seldom needed

    figure = Figure(figsize=(6.4, 4.4), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    steps = sorted({int(sample.get("step", 0)) for sample in samples})
    for step in steps:
        here = [sample for sample in samples if int(sample.get("step", 0)) == step]
        colour = COLOURS[step % len(COLOURS)]
        axes.scatter([s["x"] for s in here], [s["y"] for s in here], s=9, alpha=0.5, color=colour, label=f"step {step}")
    curves = fit.get("steps") or [{"coefficients": fit["coefficients"], "domain": fit["domain"], "step": None}]
    for curve in curves:
        x = np.linspace(curve["domain"][0], curve["domain"][1], 200)
        colour = "black" if curve["step"] is None else COLOURS[curve["step"] % len(COLOURS)]
        axes.plot(x, np.polyval(curve["coefficients"], x), color=colour, linewidth=2)
    axes.set_xlabel("relative L1 distance of the indicator to the step before")
    axes.set_ylabel("relative L1 change of the residual")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    worth = "" if fit.get("r2") is None else f", R2 {fit['r2']:.3f}"
    form = "by step" if fit.get("steps") else f"degree {fit['degree']}"
    axes.set_title(f"{fit.get('name', '')}\n{form}{worth}, {len(samples)} samples", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside:
        figure.savefig(aside, format="png")
