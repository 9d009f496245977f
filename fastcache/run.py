"""`python -m fastcache.run`: check the settings, make what is missing, score it, say what came of it.

The one place where everything is wired. Torch is imported once something has to be built.
"""

import logging
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from fastcache import preflight, scores, terminal
from fastcache.catalog import CONF
from fastcache.config import plan
from fastcache.errors import UserError
from fastcache.results import Folder, write_json
from fastcache.settings import Settings, label, reference_of
from fastcache.track import tracked

LOG = logging.getLogger("fastcache")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0 done, 1 refused or failed, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(terminal.help_text())
        return 0
    try:
        command = plan(argv)
        if command.jobs is None:
            launch(command.argv)
            return 0
        todo = [preflight.prepare(*job) for job in command.jobs]
        if any(s["dry"] for s in todo):
            for s in todo:
                preflight.dry(s)
            return 0
        launcher = command.jobs[0].choices.get("hydra/launcher", "basic")
        preflight.check(todo, local=launcher == "basic")
    except UserError as error:
        terminal.error(error)
        return 1
    try:
        launch(command.argv)
    except KeyboardInterrupt:
        terminal.error("interrupted; the same command goes on where it stopped")
        return 130
    return conclude(todo, command.sweep)


def launch(argv: Sequence[str]) -> None:
    """Hand the command line to Hydra, which calls ``job`` once, or once a job in whatever processes it launches."""
    with patch.object(sys, "argv", ["fastcache", *argv]):
        job()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def job(cfg: DictConfig) -> None:
    """One job. Its errors end here: they are printed, kept in failed.json, and the sweep goes on."""
    context = HydraConfig.get()
    sweep = context.mode == RunMode.MULTIRUN
    s = preflight.prepare(cfg, context.runtime.choices)
    folder = Folder.of(s)
    former = folder.failure()
    if sweep and former and not folder.finished and not s["retry"]:
        terminal.say(f"{label(s)} failed before ({former}); retry=true tries it again")
        return
    try:
        run(s, f"job {context.job.num + 1}  " if sweep else "")
    except Exception as error:
        message = preflight.describe_error(error)
        terminal.error(f"{label(s)}: {message}" if sweep else message)
        fail(folder, error, message)


def run(s: Settings, title: str = "") -> scores.Scores:
    """One run: its reference, the videos that are missing, its scores. What is on disk already is taken from there."""
    from fastcache.make import draw_sheet, get_metrics, make_videos, render

    folder = Folder.of(s)
    reference = reference_folder(s, folder)
    is_reference = reference is folder
    with folder.lock(wait=is_reference):
        former = folder.scores()
        complete = folder.finished and not s["force"]
        if complete and former is not None and scores.up_to_date(former, reference, s["metric"]):
            return former
        terminal.say(title + terminal.header(s, folder.signature))
        tracking = dict(s["tracking"], name=folder.path.name, id=folder.signature, dir=folder.path)
        kind = "reference" if is_reference else "eval"
        folder.start(s)
        with logged(folder), tracked(s, **tracking, job_type=kind) as tracker:
            LOG.info(terminal.header(s, folder.signature))
            metrics = get_metrics(s)
            for problem in load_metrics(metrics):
                terminal.say(f"note: {problem}")
            if not complete:
                make_videos(s, folder, reference, title)
            made = scores.measure(s, folder, reference, metrics, None if s["force"] else former)
            trace = scores.trace(folder)
            for idx in range(folder.count):
                if not folder.mp4(idx).is_file() or (former and former["reference"] != reference.signature):
                    render(s, folder, reference, idx)
            draw_sheet(s, folder, reference, made)
            tracker.log_scores(made, trace)
            tracker.log_media(folder.path / "sheet.png", [folder.mp4(i) for i in range(folder.count)])
            write_json(folder.path / "trace.json", trace)
            write_json(folder.path / "scores.json", made)
            folder.finish()
    return made


def reference_folder(s: Settings, folder: Folder) -> Folder:
    """What ``s`` is scored against: a named run, itself, or the FFFF run of its settings, made first if need be."""
    external = preflight.external_reference(s)
    if external is not None:
        return folder if external.path == folder.path else external
    ours = reference_of(s)
    reference = Folder.of(ours)
    if reference.path == folder.path:
        return folder
    if not reference.finished:
        run(ours)
    return reference


def load_metrics(metrics: dict) -> list[str]:
    """Load networks before the videos are made; a sentence for each metric that cannot be had here."""
    from fastcache.metrics.score import prepare

    return prepare(list(metrics.values()))


def fail(folder: Folder, error: Exception, message: str) -> None:
    """Keep what went wrong where the run would have been."""
    kept = {"error": message, "type": type(error).__name__, "traceback": traceback.format_exception(error)}
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_json(folder.path / "failed.json", kept | {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
    except OSError as problem:
        terminal.error(f"{folder.path}/failed.json cannot be written: {problem}")


@contextmanager
def logged(folder: Folder) -> Iterator[None]:
    """run.log for the time of a run: its messages, its warnings (shown as well), the traceback of its failure."""
    handler = logging.FileHandler(folder.path / "run.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False

    def show(message: Warning | str, *_: object, **__: object) -> None:
        LOG.warning(str(message))
        terminal.say(f"warning: {message}")

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show  # type: ignore[assignment]
            yield
    except Exception:
        LOG.exception("failed")
        raise
    finally:
        LOG.removeHandler(handler)
        handler.close()


def conclude(todo: Sequence[Settings], sweep: bool) -> int:
    """The table of what the jobs came to, read from disk, and the exit status."""
    folders = {Folder.of(s).path: (s, Folder.of(s)) for s in todo}
    rows: dict[str, scores.Scores] = {}
    reasons = []
    for s, folder in folders.values():
        found = folder.scores()
        if folder.finished and found is not None:
            base = Folder.of(reference_of(s)).scores() if s["reference"] == "auto" else None
            rows |= {row["signature"]: row for row in (base, found) if row is not None}
        elif failure := folder.failure():
            reasons.append(f"{label(s)}: {failure}")
    done = sum(folder.signature in rows for _, folder in folders.values())
    if rows:
        terminal.table(rows.values())
    if sweep:
        left = len(folders) - done - len(reasons)
        text = f"{done} done, {left} left, {len(reasons)} failed"
        terminal.say(text + (f" ({'; '.join(reasons)})" if reasons else ""))
    if done:
        path = next(iter(folders)) if len(folders) == 1 else next(iter(folders)).parent
        terminal.say(f"wrote {path}" + ("  sheet.png  scores.json  videos/" if len(folders) == 1 else ""))
    return 0 if done == len(folders) else 1


if __name__ == "__main__":
    sys.exit(main())
