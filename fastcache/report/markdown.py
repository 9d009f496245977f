"""The tables of a report as Markdown, for notes and logs: every run, every difference with its interval. No torch."""

from collections.abc import Iterator

from fastcache.report.controls import COMPETE, MEANING, Against, present
from fastcache.report.groups import Group, axis, setting
from fastcache.report.study import Study
from fastcache.report.tables import COLUMNS, cell, interval, ordered
from fastcache.report.words import counted

FORMS = {"lpips": "{:+.4f}", "psnr": "{:+.1f}"}


def to_markdown(study: Study) -> str:
    """A table of runs for each protocol, and one of the controls where there are any."""
    counts = sorted({run["num_videos"] for run in study.runs})
    videos = " or ".join([*map(str, counts[:-1]), counted(counts[-1], "video")])
    lines = [f"{counted(len(study.runs), 'run')} of {study.name}, {videos} each.", ""]
    for g in study.groups:
        lines += [f"### {g.told}", ""] if g.told else []
        lines += [*_runs(g), ""]
        if rows := study.controls(g):
            lines += [*_controls(g, rows), ""]
    lines += [f"- {line}" for line in study.told()]
    return "\n".join(lines).rstrip() + "\n"


def _runs(g: Group) -> Iterator[str]:
    axes = [name for name in g.varying if name not in ("method", "schedule", "dial")]
    columns = [c for c in COLUMNS if c.key not in ("speedup_e2e", "ceiling", "method_bytes")]
    columns = [c for c in columns if c.key != "speedup" or any(run["speedup"] is not None for run in g.compared)]
    yield _row(["run", *axes, *(c.title for c in columns)])
    yield _row(["---"] * (1 + len(axes)) + ["---:"] * len(columns))
    for run in ordered(g.runs):
        name = g.label(run) + (" (reference)" if run.is_reference else "")
        yield _row([name, *(setting(axis(run, key)) for key in axes), *(cell(run, c) for c in columns)])


def _controls(g: Group, rows: list[Against]) -> Iterator[str]:
    """Differences in PSNR (dB) and LPIPS, run - control."""
    titles = present(rows)
    yield f"{MEANING} {COMPETE}"
    yield ""
    yield _row(["run", "forward", *(f"{m} vs {title}" for title in titles.values() for m in ("PSNR", "LPIPS"))])
    yield _row(["---"] + ["---:"] * (1 + 2 * len(titles)))
    for one in rows:
        cells = []
        for control in titles:
            for metric in ("psnr", "lpips"):
                known = one.found.get(control, {}).get(metric)
                cells.append(one.why[control] if control in one.why else interval(known, FORMS[metric]))
        yield _row([g.title(one.run), f"{one.run['forward_fraction']:.3f}", *cells])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
