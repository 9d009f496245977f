"""The parts of index.html that are text and tables: problems, statistics, calibration, protocol. No torch."""

import base64
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from fastcache import fits as saved
from fastcache.errors import UserError
from fastcache.media.fit_plot import draw_fit
from fastcache.report.controls import CHANCE, COMPETE, MEANING, Against, present
from fastcache.report.groups import Group
from fastcache.report.load import Run
from fastcache.report.stats import CONFIDENCE, RESAMPLES, Estimate, Floor, Ranking
from fastcache.report.study import Study
from fastcache.report.tables import COLUMNS, interval
from fastcache.report.words import counted, verb

MOST_FITS = 8


def problems(study: Study) -> str:
    """What could not be read, what is not finished, what must not be compared."""
    rows = [f'<p class="bad">not shown: {escape(text)}</p>' for text in study.found.broken]
    rows += [f"<p>{escape(text)}</p>" for text in study.told()]
    if notes := study.found.notes:
        listed = "".join(f"<li>{escape(text)}</li>" for text in notes)
        told = f"{counted(len(notes), 'run')} {verb(len(notes))} not finished"
        rows.append(f"<details><summary>{told}</summary><ul>{listed}</ul></details>")
    return "\n".join(rows)


def statistics(study: Study) -> str:
    """Per group: differences against the baseline, ranks at equal cost, the noise floor."""
    method = (
        f"Intervals: {CONFIDENCE:.0%} percentile bootstrap over prompts, {RESAMPLES} resamples, seed 0; none from "
        "fewer than three prompts."
    )
    parts = [f'<p class="faint">{method}</p>']
    for i, g in enumerate(study.groups):
        inner = _paired(study, g) + "".join(_ranks(*ranked) for ranked in study.ranks(g)) + _noise(study.noise(g))
        parts.append(f'<div data-group="{i}">{inner}</div>')
    return "\n".join(parts)


def controls(study: Study) -> str:
    """Per group: runs with a dial against the controls at equal compute."""
    parts = [f'<p class="faint">{MEANING} In grey: {CHANCE}. {COMPETE}</p>']
    for i, g in enumerate(study.groups):
        rows = study.controls(g)
        titles = present(rows)
        body = []
        for one in rows:
            cells = [_beside(one, control) for control in titles]
            body.append([escape(g.title(one.run)), f"{one.run['forward_fraction']:.3f}", *cells, str(one.identical)])
        heads = ["run", "forward", *(f"LPIPS, PSNR vs {title}" for title in titles.values())]
        none = "<p>No run with a dial, or no control: method=oracle, method=random, method=reuse, schedule=F-FF.</p>"
        inner = table([*heads, "identical videos"], body) if rows else none
        parts.append(f'<div data-group="{i}">{inner}</div>')
    return "\n".join(parts)


def _beside(one: Against, control: str) -> str:
    """Both metrics of a cell, better in green, worse in red, in grey what may be chance."""
    if why := one.why.get(control):
        return f'<span class="faint">{why}</span>'
    lines = []
    for metric, form, better in (("lpips", "{:+.4f}", -1), ("psnr", "{:+.1f} dB", 1)):
        estimate = one.found[control].get(metric)
        if estimate is not None:
            kind = ("good" if estimate.mean * better > 0 else "bad") if estimate.clear else "faint"
            lines.append(f'<span class="{kind}">{interval(estimate, form)}</span>')
    return "<br>".join(lines)


def _paired(study: Study, g: Group) -> str:
    bases = study.baselines_of(g)
    if not bases:
        return "<p>No baseline: no fixed mask (method=reuse) among these runs; name a run with --baseline.</p>"
    return "".join(_against(study.paired(g), part, base, part is not g) for part, base in bases)


def _against(found: Mapping[str, Mapping[str, Estimate]], g: Group, base: Run, told: bool) -> str:
    rows = []
    for runs in g.lines.values():
        for run in runs:
            pair = [found.get(metric, {}).get(run.signature) for metric in ("lpips", "psnr")]
            if any(pair):
                clear = "yes" if pair[0] is not None and pair[0].clear else "no"
                cost = f"{run['forward_fraction'] - base['forward_fraction']:+.3f}"
                label = escape(g.title(run))
                count = str(pair[0].n if pair[0] else pair[1].n)  # type: ignore[union-attr]
                rows.append([label, cost, interval(pair[0]), clear, interval(pair[1], "{:+.2f}"), count])
    heads = ["run", "forward fraction", "LPIPS", "LPIPS differs", "PSNR, dB", "prompts"]
    where = f"{escape(g.told)}: " if told else ""
    name = escape(g.label(base))
    head = f"<h3>{where}difference from {name} ({base.signature}), prompt by prompt</h3>"
    return head + table(heads, rows)


def _ranks(part: Group, ranking: Ranking) -> str:
    where = f"{escape(part.told)}: " if part.told else ""
    head = f"<h3>{where}methods at equal forward fraction ({ranking.metric.upper()}, interpolated)</h3>"
    if not ranking.at:
        return head + "<p>No two lines reach a common forward fraction.</p>"
    note = (
        '<p class="faint">Lines are interpolated per prompt between neighbouring runs, along the dial for each '
        "schedule (the best schedule counts), fixed masks and fewer steps as their best mixtures; computing everything "
        "ends every line, nothing is extrapolated. Behind: difference from the best line, prompt by prompt; the oracle "
        "is a bound and has no rank.</p>"
    )
    form = "{:.5f}"
    rows = []
    for fraction, ranked in ranking.at.items():
        for one in ranked:
            behind = "-" if one.rank == 1 else interval(one.behind)
            first = f"{fraction:.2f}" if one is ranked[0] else ""
            names = [escape(one.line), escape(one.schedule)]
            rows.append([first, str(one.rank or "bound"), *names, interval(one.value, form), behind])
    return head + note + table(["forward fraction", "rank", "line", "schedule", ranking.metric.upper(), "behind"], rows)


def _noise(floors: Sequence[Floor]) -> str:
    head = "<h3>Noise floor: everything computed, against everything computed</h3>"
    if not floors:
        how = "method=none schedule=FFFF seed=1 reference=SIGNATURE, or the reference again under another outputs="
        return f"{head}<p>Not measured: make {how}, and name both folders.</p>"
    rows = [
        [escape(f.what), *(_shown(v) for v in (f.lpips, f.ssim)), "exact" if f.identical else _shown(f.psnr, 2)]
        for f in floors
    ]
    return head + table(["what", "LPIPS", "SSIM", "PSNR, dB"], rows)


def fits(study: Study) -> str:
    """A picture of each fit that a run used and, but for a study, of the others under outputs/fits."""
    paths = _fit_paths(study)
    cards = [_fit(path) for path in paths[:MOST_FITS]]
    if not cards:
        return "<p>No fit was used or made by these runs.</p>"
    left = len(paths) - MOST_FITS
    rest = f"<p>{left} more {verb(left)} not drawn.</p>" if left > 0 else ""
    return f'<div class="plots fits">{"".join(cards)}</div>{rest}'


def _fit_paths(study: Study) -> list[Path]:
    """Fit files, each once: what runs used, then what lies in the folders."""
    used = [(run.settings.get("rescale") or {}).get("used") for run in study.runs]
    named = [Path(fit["path"]) for fit in used if isinstance(fit, dict) and fit.get("path")]
    made = [path for root in study.roots for path in sorted(root.glob("fits/*.yaml"))] if not study.experiment else []
    return list(dict.fromkeys(path.resolve() for path in [*named, *made] if path.is_file()))


def _fit(path: Path) -> str:
    try:
        fit = saved.load_fit(path)
        samples = saved.load_samples(path)
        with tempfile.TemporaryDirectory() as folder:
            draw_fit(fit, samples, Path(folder) / "fit.png")
            picture = base64.b64encode((Path(folder) / "fit.png").read_bytes()).decode()
    except (UserError, KeyError) as error:
        return f'<p class="bad">{escape(str(path))}: {escape(str(error))}</p>'
    told = escape(f"{saved.describe(fit)}; {path}")
    return f'<figure><img alt="{told}" src="data:image/png;base64,{picture}"><figcaption>{told}</figcaption></figure>'


def protocol(study: Study) -> str:
    """What the columns mean, and the rules of each group; page.js adds the provenance of the chosen runs."""
    meanings = "".join(
        f"<li><b>{c.title}</b> ({c.key}): {escape(c.meaning)}; {c.better} is better</li>" for c in COLUMNS
    )
    parts = [
        f"<ul>{meanings}</ul>",
        "<p>Every number is read from scores.json of a run's folder; chosen runs are listed below with theirs.</p>",
    ]
    for i, g in enumerate(study.groups):
        text = escape(json.dumps(g.protocol, indent=1, ensure_ascii=False))
        parts.append(
            f'<details data-group="{i}"><summary>rules that these runs share</summary><pre>{text}</pre></details>'
        )
    return "\n".join(parts)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of cells that are HTML already."""
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _shown(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
