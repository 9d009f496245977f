"""index.html: one file that needs nothing else and no network. No torch."""

import json
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from fastcache.report import sections
from fastcache.report.atlas import masks
from fastcache.report.clips import Clips, in_order
from fastcache.report.figures import HEATMAPS, heat
from fastcache.report.groups import DIGITS, Group, axis, rounded, setting
from fastcache.report.load import CONTROLS, Run
from fastcache.report.looks import DASHES, Look, looks
from fastcache.report.study import Study
from fastcache.report.tables import COLUMNS, STAR, axes_of, cell, interval, ordered, worst_chunk
from fastcache.report.words import counted, verb
from fastcache.results import write_text

HERE = Path(__file__).parent
CHUNK_SCORES = ("lpips", "psnr", "ssim")


def write_page(study: Study, folder: Path, budget: int) -> Path:
    """Write index.html. ``budget``: bytes that videos may take in it; further videos are links to their files."""
    clips = Clips(budget, folder)
    data = _data(study, clips)
    more = f"{clips.linked} more {verb(clips.linked, 'is a link to a file', 'are links to files')} beside this page"
    machines = sorted({name for g in study.groups for name in g.machines})
    summary = f"{counted(len(study.runs), 'run')} of {study.name}; {', '.join(machines)}"
    parts = {
        "css": _text("page.css"),
        "js": _text("page.js") + _text("details.js").replace('"use strict";\n', ""),
        "summary": escape(summary),
        "problems": sections.problems(study),
        "runs": _table(study),
        "star": STAR,
        "most": str(HEATMAPS),
        "budget": f"{more}: --video-mb was reached." if clips.linked else "",
        "controls": sections.controls(study),
        "masks": masks(study),
        "statistics": sections.statistics(study),
        "fits": sections.fits(study),
        "protocol": sections.protocol(study),
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("</", "<\\/"),
    }
    text = _text("page.html")
    head, *rest = text.split("@")  # @name@ alternates with text
    filled = [head] + [parts[part] if i % 2 == 0 else part for i, part in enumerate(rest)]
    path = folder / "index.html"
    write_text(path, "".join(filled))
    return path


def key(run: Run) -> str:
    """What names a run in a page: a signature may appear with two references."""
    return run.signature if run["reference"] in (run.signature, None) else f"{run.signature}-{run['reference']}"


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _data(study: Study, clips: Clips) -> dict[str, Any]:
    """What page.js draws from. Protocols are kept once each, runs point to theirs."""
    protocols: dict[str, int] = {}
    return {
        "dashes": DASHES,
        "groups": [_group(study, g, clips, protocols) for g in study.groups],
        "protocols": [json.loads(text) for text in protocols],
    }


def _group(study: Study, g: Group, clips: Clips, protocols: dict[str, int]) -> dict[str, Any]:
    usual = Counter(commit for run in g.runs for commit in _commits(run)).most_common(1)
    look = looks(g)
    sampling = {id(run): part.told for part in g.parts for run in part.runs}
    media = {key(run): clips.of(run) for run in in_order(g.compared, study.fronts(g))}
    runs = []
    for run in ordered(g.runs):
        protocol = protocols.setdefault(json.dumps(run["protocol"], sort_keys=True), len(protocols))
        name = g.name(run)
        kind = "reference" if run.is_reference else "noise" if run in g.noise else "run"
        runs.append(
            _run(run, g)
            | {"kind": kind, "line": name, "role": run.role, "sampling": sampling[id(run)]}
            | {"rival": kind == "run" and run.role not in CONTROLS}
            | look.get(name, Look("#000", 0))._asdict()
            | {"protocol": protocol, "clips": media.get(key(run), [])}
            | {"hollow": bool(usual) and usual[0][0] not in _commits(run)}
        )
    axes = {name: list(dict.fromkeys(setting(axis(run, name)) for run in ordered(g.runs))) for name in g.varying}
    return {
        "told": g.told,
        "sampling": g.parts[0].told,
        "axes": axes,
        "ceilings": list(g.ceilings.items()),
        "runs": runs,
    }


def _commits(run: Run) -> set[str]:
    return {str(by.get("commit")).removesuffix("-dirty") for by in run.made_by}


def _run(run: Run, g: Group) -> dict[str, Any]:
    by = run.made_by[0] if run.made_by else {}
    numbers = ("lpips", "psnr", "ssim", "speedup", "forward_fraction", "compute_fraction", "ceiling")
    return {
        "key": key(run),
        "label": g.label(run),
        "signature": run.signature,
        "reference": run["reference"],
        "schedule": run["schedule"],
        "exact": run.scores.get("psnr_why") == "identical",
        "where": g.where(run),
        "axes": {name: setting(axis(run, name)) for name in g.varying},
        **{name: run.scores.get(name) for name in numbers},
        "rank": {name: rounded(run, name) for name in DIGITS},
        "chunks": {name: [_rounded(v) for v in run.series(name)] for name in CHUNK_SCORES},
        "heat": heat(run),
        "commit": str(by.get("commit")),
        "machine": str(by.get("device")),
        "when": run.when,
        "provenance": _provenance(run),
    }


def _provenance(run: Run) -> dict[str, Any]:
    """Where the numbers of a run come from: files, settings, machines."""
    s = run.settings
    keys = ("choices", "method", "engine", "sampler", "schedule", "seed", "frames", "num_videos", "dtype", "device")
    fit = (s.get("rescale") or {}).get("used") or {}
    return {
        "folder": str(run.path),
        "finished": run.when,
        "numbers": f"{run.path}/scores.json",
        "decisions": f"{run.path}/trace.json",
        "reference": run["reference"],
        **{name: s.get(name) for name in keys},
        "weights": (s.get("weights") or {}).get("sha256"),
        "rescale": {name: fit[name] for name in ("name", "coefficients", "degree", "domain", "r2", "n") if name in fit},
    }


def _table(study: Study) -> str:
    """The table of all runs, one body; page.js hides the rows of other protocols."""
    axes = [name for name in axes_of(study.groups) if name not in ("method", "schedule", "dial")]
    baseline = any(study.baselines)
    heads = ["run", *axes, *(_head(c) for c in COLUMNS), "worst chunk"]
    heads += ["LPIPS against the baseline"] * baseline + ["signature"]
    rows = []
    for g in study.groups:
        best, differences = set(study.fronts(g)), study.paired(g).get("lpips", {})
        for run in ordered(g.runs):
            star = " *" if run.signature in best and run in g.rivals else ""
            kind = " (ref)" if run.is_reference else " (noise)" if run in g.noise else ""
            cells = [escape(g.label(run)) + kind + star]
            cells += [escape(setting(axis(run, name))) for name in axes]
            cells += [cell(run, c) for c in COLUMNS] + [worst_chunk(run)]
            cells += [interval(differences.get(run.signature))] * baseline + [escape(run.signature)]
            shown = "".join(f"<td>{text}</td>" for text in cells)
            rows.append(f'<tr data-key="{escape(key(run))}">{shown}</tr>')
    head = "".join(f'<th data-sort="">{text}</th>' for text in heads)
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"


def _head(column: Any) -> str:
    arrow = {"lower": " ↓", "higher": " ↑"}[column.better]
    return f'<span title="{escape(column.meaning)}">{column.title}{arrow}</span>'


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
