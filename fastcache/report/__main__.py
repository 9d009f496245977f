"""`python -m fastcache.report [outputs...]`: a table here; one page, figures, CSV and LaTeX in report/. No torch."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from fastcache import terminal
from fastcache.errors import UserError
from fastcache.report import figures, tables
from fastcache.report.controls import CHANCE, COMPETE, MEANING, Against, present
from fastcache.report.groups import Group
from fastcache.report.load import Run, load
from fastcache.report.markdown import to_markdown
from fastcache.report.page import write_page
from fastcache.report.study import Study
from fastcache.report.tables import STAR
from fastcache.report.words import counted, verb
from fastcache.results import check_writable, write_text

EXAMPLES = """\
examples:
  python -m fastcache.report                                   the runs in outputs/
  python -m fastcache.report a/ b/ --to report                 the runs of two folders
  python -m fastcache.report --experiment pareto               the runs of a study, wherever they were made first
  python -m fastcache.report --baseline "reuse FxxF"           differences against a run
  python -m fastcache.report --wandb entity/project            a W&B report of the same runs
"""
MOST_ROWS = 100  # of a table on a terminal


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0 done, 1 refused or something was broken."""
    args = _arguments(argv)
    roots = [Path(name).expanduser() for name in args.outputs or ["outputs"]]
    try:
        budget = _budget(args.video_mb)
        if args.experiment:
            from fastcache.report.experiment import folders

            found = load(folders(shlex.split(args.experiment), roots))
        else:
            found = load(roots)
        study = Study(roots, found, args.baseline, args.experiment, not args.no_timing)
        for problem in study.found.broken:
            terminal.error(problem)
        if not study.runs:
            raise UserError("nothing is left to report")
        tell(study)
        write(study, Path(args.to).expanduser(), budget)
        if args.wandb:
            from fastcache.report.publish import publish

            terminal.say(f"W&B report: {publish(study, args.wandb)}")
    except UserError as error:
        terminal.error(error)
        return 1
    return 1 if study.found.broken else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m fastcache.report",
        description="Tables, figures and one page from finished runs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("outputs", nargs="*", help="folders of runs, or runs (default: outputs)")
    parser.add_argument("--experiment", metavar="NAME", help='only the runs of a study ("pareto method=oracle": of it)')
    parser.add_argument("--to", metavar="DIR", default="report", help="where the report goes (default: report)")
    parser.add_argument("--baseline", metavar="RUN", help="signature, folder name or label (default: a fixed mask)")
    parser.add_argument("--no-timing", action="store_true", help="leave speed-ups out, of runs made beside other work")
    parser.add_argument("--video-mb", metavar="MB", default="24", help="videos in the page, MB (default: 24)")
    parser.add_argument(
        "--wandb", metavar="ENTITY/PROJECT", nargs="?", const="fastcache", help="build a W&B report too"
    )
    return parser.parse_args(argv)


def _budget(text: str) -> int:
    """Bytes of a number of MB. Raises UserError on anything else."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise UserError(f"--video-mb {text}: expected a number, 0 or more; e.g. --video-mb 24, or 0 for links alone")
    return int(value * 1e6)


def tell(study: Study) -> None:
    """One table a protocol, the cheapest run last, then what has to be known to read them."""
    for g in study.groups:
        if len(study.groups) > 1:
            terminal.say(f"\n{g.told}")
        best = set(study.fronts(g))
        kept = sorted(g.runs, key=lambda r: (r.signature not in best, r in g.compared))[:MOST_ROWS]
        terminal.table(run.scores | {"label": _label(g, run, best)} for run in kept)
        if len(kept) < len(g.runs):
            left = counted(len(g.runs) - len(kept), "more run")
            terminal.say(f"{left}, the front is shown: all are in table.csv")
        for part, base in study.baselines_of(g):
            where = f"{part.told}: " if part is not g else ""
            terminal.say(f"{where}baseline {part.label(base)} ({base.signature})")
    terminal.say(f"* {STAR}")
    shown = [g for g in study.groups if _controls(study, g)]
    if shown:
        _explain([one for g in shown for one in study.controls(g)])
    for line in study.told():
        terminal.say(line)
    if notes := study.found.notes:
        terminal.say(f"{len(notes)} not finished: {'; '.join(notes[:3])}{'; ...' if len(notes) > 3 else ''}")


def _controls(study: Study, g: Group) -> bool:
    """LPIPS and PSNR of runs with a dial, minus those of each control at equal compute; whether there was anything."""
    rows = study.controls(g)
    if not rows:
        return False
    terminal.say(f"\nagainst controls at equal compute{f', {g.told}' if g.told else ''}: LPIPS, PSNR in dB")
    titles = present(rows)
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    made.add_column("run", no_wrap=True)
    for title in ("forward", *(f"vs {title}" for title in titles.values())):
        made.add_column(title, justify="right", no_wrap=True)
    for one in rows[:MOST_ROWS]:
        cells = [one.why.get(c) or f"{_pair(one, c, 'lpips')} {_pair(one, c, 'psnr')}" for c in titles]
        made.add_row(g.title(one.run), f"{one.run['forward_fraction']:.3f}", *cells)
    terminal.show_whole(made)
    if len(rows) > MOST_ROWS:
        left = len(rows) - MOST_ROWS
        terminal.say(f"{counted(left, 'more run')} {verb(left)} in table.csv")
    return True


def _explain(rows: Sequence[Against]) -> None:
    """What the numbers of these tables mean."""
    terminal.say(f"{MEANING} In parentheses: {CHANCE}. {COMPETE}")
    if count := sum(one.identical for one in rows):
        videos = f"{counted(count, 'video')} {verb(count)} identical to {verb(count, 'its', 'their')} reference"
        terminal.say(f"{videos}: LPIPS 0, and 100 dB in these differences.")


def _pair(one: Against, control: str, metric: str) -> str:
    """A difference; in parentheses where its interval holds 0 or there is none."""
    estimate = one.found[control].get(metric)
    if estimate is None:
        return "-"
    text = f"{estimate.mean:+.4f}" if metric == "lpips" else f"{estimate.mean:+.1f}"
    return f" {text} " if estimate.clear else f"({text})"


def _label(g: Group, run: Run, best: set[str]) -> str:
    star = " *" if run.signature in best and run in g.rivals else ""
    return g.label(run) + star


def write(study: Study, folder: Path, budget: int) -> None:
    """Everything that goes into the folder. Raises UserError where it cannot be written."""
    check_writable(str(folder), name="--to ")
    for i, g in enumerate(study.groups):
        figures.draw(g, folder, "" if len(study.groups) == 1 else f"{i + 1}-")
    write_text(folder / "table.csv", tables.to_csv(study.groups, study.paired, study.controls))
    write_text(folder / "table.md", to_markdown(study))
    write_text(folder / "table.tex", tables.to_latex(study.groups, study.fronts))
    path = write_page(study, folder, budget)
    terminal.say(f"wrote {path}  table.csv  table.md  table.tex  figures as PNG and SVG")


if __name__ == "__main__":
    sys.exit(main())
