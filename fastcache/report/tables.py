"""The table of a report: for the terminal, as CSV and as LaTeX. No torch."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fastcache.report.controls import METRICS, Against, present
from fastcache.report.groups import AXES, Group, axis, setting
from fastcache.report.load import Run
from fastcache.report.stats import Estimate

TEX = str.maketrans(
    {char: "\\" + char for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)
PARTS = ("", "_low", "_high", "_n")  # of an estimate


class Column(NamedTuple):
    """A number of scores.json as a table shows it, and what it means."""

    key: str
    title: str
    form: str
    meaning: str
    better: str = ""


COLUMNS = (
    Column("compute_fraction", "compute", "{:.3f}", "tokens computed / tokens, over denoising steps", "lower"),
    Column("forward_fraction", "forward", "{:.3f}", "all forwards / the reference's, store passes included", "lower"),
    Column("ceiling", "ceiling", "{:.2f}x", "top DiT speed-up of the schedule, store pass counted", "higher"),
    Column("speedup", "speedup", "{:.2f}x", "measured DiT wall time, reference / run", "higher"),
    Column(
        "speedup_e2e", "end to end", "{:.2f}x", "measured wall time from prompt to frames, reference / run", "higher"
    ),
    Column("method_bytes", "method MB", "{:.2f}", "kept by the cache method, at its most", "lower"),
    Column("lpips", "LPIPS", "{:.4f}", "mean over videos, against the reference", "lower"),
    Column("ssim", "SSIM", "{:.4f}", "mean over videos, against the reference", "higher"),
    Column("psnr", "PSNR", "{:.2f}", "one MSE a clip, dB, mean over videos that are not identical", "higher"),
)
STAR = (
    "no other run is better in LPIPS (PSNR where that was not scored) or in forward fraction without being worse in "
    "the other, as far as the digits in the table tell; ties all count; the oracle and random masks do not compete"
)


def cell(run: Run, column: Column) -> str:
    """A number, "exact" where there is no error to measure, a dash where nothing was measured."""
    value = run.scores.get(column.key)
    if value is not None:
        return column.form.format(value / 1e6 if column.key == "method_bytes" else value)
    return "exact" if run.scores.get(f"{column.key}_why") == "identical" else "-"


def worst_chunk(run: Run) -> str:
    """ "3 (.021)": the chunk with the highest LPIPS, and it; a dash where there is none."""
    values = run.series("lpips")
    known = [(value, idx) for idx, value in enumerate(values) if value is not None]
    if not known or max(known)[0] == 0:
        return "-"
    value, idx = max(known)
    return f"{idx} ({value:.4f})"


def interval(estimate: Estimate | None, form: str = "{:+.5f}") -> str:
    """ "+0.0031 [+0.0020, +0.0042]" """
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{form.format(estimate.mean)} (n={estimate.n})"
    return f"{form.format(estimate.mean)} [{form.format(estimate.low)}, {form.format(estimate.high)}]"


def to_csv(
    groups: Sequence[Group],
    paired: Callable[[Group], Mapping[str, Mapping[str, Estimate]]],
    controls: Callable[[Group], Sequence[Against]] = lambda g: (),
) -> str:
    """One row a run, all groups: settings, every single number of scores.json, differences from the baseline and from
    the controls at equal compute, and where it comes from."""
    told = {control: None for g in groups for control in present(controls(g))}
    extra = [f"{m}_vs_{other}{part}" for other in ("baseline", *told) for m in METRICS for part in PARTS]
    extra += [f"vs_{control}" for control in told]
    known = dict.fromkeys(
        key
        for g in groups
        for run in g.runs
        for key, value in run.scores.items()
        if not isinstance(value, dict | list) and not key.endswith("_why")
    )
    names = [*known, *extra, "protocol", "commit", "machine", "made", "folder"]
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for place, g in enumerate(groups):
        differences = paired(g)
        beside = {(one.run.signature, one.run["reference"]): _beside(one, told) for one in controls(g)}
        for run in ordered(g.runs):
            row: dict[str, Any] = {key: run.scores.get(key) for key in known}
            for metric in METRICS:
                if estimate := differences.get(metric, {}).get(run.signature):
                    row |= _spread(f"{metric}_vs_baseline", estimate)
            row |= beside.get((run.signature, run["reference"]), {})
            by = run.made_by[0] if run.made_by else {}
            row |= {"protocol": place + 1, "commit": by.get("commit"), "machine": by.get("device")}
            writer.writerow(row | {"made": run.when, "folder": str(run.path)})
    return file.getvalue()


def _spread(name: str, estimate: Estimate) -> dict[str, Any]:
    return {f"{name}{part}": value for part, value in zip(PARTS, estimate, strict=True)}


def _beside(one: Against, told: Iterable[str]) -> dict[str, Any]:
    """A run's differences from the controls, and for each control "covered" or why not."""
    row: dict[str, Any] = {f"vs_{control}": one.why.get(control, "covered") for control in told}
    for control, found in one.found.items():
        for metric, estimate in found.items():
            row |= _spread(f"{metric}_vs_{control}", estimate)
    return row


def to_latex(groups: Sequence[Group], fronts: Callable[[Group], Sequence[str]]) -> str:
    """A booktabs table a group; runs on the front (LPIPS against forward fraction) in bold, ties all."""
    columns = [c for c in COLUMNS if c.key not in ("speedup_e2e", "method_bytes")]
    parts = []
    for g in groups:
        axes = [name for name in g.varying if name not in ("method", "schedule", "dial")]
        heads = ["run", *map(_tex, axes), *(_arrow(c) for c in columns)]
        bold = set(fronts(g))
        lines = [
            r"\begin{tabular}{l" + "l" * len(axes) + "r" * len(columns) + "}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
        ]
        for run in ordered(g.runs):
            name = _tex(g.label(run))
            cells = [rf"\textbf{{{name}}}" if run.signature in bold else name]
            cells += [_tex(setting(axis(run, key))) for key in axes]
            cells += [re.sub(r"(?<=\d)x$", r"$\\times$", _tex(cell(run, c))) for c in columns]
            lines.append(" & ".join(cells) + r" \\")
        note = f"% {' '.join(g.told.split())}\n" if g.told else ""
        parts.append(note + "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""]))
    return "% needs \\usepackage{booktabs}\n" + "\n".join(parts)


def ordered(runs: Sequence[Run]) -> list[Run]:
    """References first, then from the costliest run to the cheapest."""
    return sorted(runs, key=lambda r: (not r.is_reference, -r["forward_fraction"], r["label"], r.signature))


def axes_of(groups: Sequence[Group]) -> list[str]:
    """Axes with more than one value anywhere."""
    return [name for name in AXES if any(name in g.varying for g in groups)]


def _arrow(column: Column) -> str:
    arrow = {"lower": r" $\downarrow$", "higher": r" $\uparrow$"}.get(column.better, "")
    return _tex(column.title) + arrow


def _tex(text: str) -> str:
    """A text as LaTeX prints it."""
    return " ".join(text.split()).translate(TEX)
