"""References that runs were scored against and that are not among them, and what to type. No torch."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fastcache.catalog import DIALS
from fastcache.report.load import Run
from fastcache.report.words import counted, verb
from fastcache.settings import number, own_reference

MOST = 3  # named in the sentence


def missing(runs: Sequence[Run], roots: Sequence[Path]) -> str | None:
    """Which references are not among the runs, of how many runs they are, and how to have them again; or None."""
    there = {run.signature for run in runs}
    orphans = [run for run in runs if run["reference"] not in there]
    if not orphans:
        return None
    counts = Counter(run["reference"] for run in orphans)
    named = [f"{name} (of {counted(count, 'run')})" for name, count in counts.most_common(MOST)]
    rest = [f"{len(counts) - MOST} more"] if len(counts) > MOST else []
    what = f"reference{'s' * (len(counts) > 1)} {', '.join([*named, *rest])}"
    where = ", ".join(map(str, roots))
    line = f"{what} {verb(len(counts))} not among the finished runs in {where}: their scores stand, what they were "
    it = verb(len(counts), "it", "them")
    line += f"measured against is not shown. Name the folder that holds {it} as well"
    own = [run for run in orphans if own_reference({"reference": "auto"} | run.settings)]
    if own:
        line += f", or type the command of these runs again, which makes {it} and keeps the runs: {_command(own[0])}"
    return line


def _command(run: Run) -> str:
    """The command of a run as far as its folder tells it in few words."""
    choices, where = run.settings.get("choices") or {}, str(run.path.parent)
    words = [f"outputs={where}"] if where != "outputs" else []
    start = "python -m fastcache.run"
    if study := choices.get("experiment"):
        return shlex.join([*start.split(), f"experiment={study}", *words])
    options = run.settings.get("method") or {}
    dial = [f"{key}={number(options[key])}" for key in DIALS if options.get(key) is not None]
    told = [f"model={run['model']}", f"method={choices.get('method', run['method'])}", *dial]
    told.append(f"schedule={run['schedule']}")
    return f"{shlex.join([*start.split(), *told, *words])}, and whatever else it had"
