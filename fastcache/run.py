"""`python -m fastcache.run`: check the settings, make what is missing, score it, say what came of it.

The one place where everything is wired. Torch is imported once something has to be built.
"""

import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig

from fastcache import __version__, finished, launchers, preflight, scores, terminal
from fastcache.catalog import CONF
from fastcache.config import plan
from fastcache.errors import UserError
from fastcache.results import Folder, read_json, write_json
from fastcache.settings import Settings, engine_reference_of, label, own_reference, reference_of
from fastcache.target import expand
from fastcache.track import job as tracked_job
from fastcache.track import tracked
from fastcache.worker import beside, submit

WORTH = 12  # videos whose scoring and drawing take as long as a second process takes to start


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0 done, 1 refused or failed, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(terminal.help_text())
        return 0
    if "--version" in argv:
        print(f"fastcache {__version__}")
        return 0
    try:
        return carry_out(argv)
    except UserError as error:
        terminal.error(error)
        return 1
    except KeyboardInterrupt:
        terminal.error("interrupted; the same command goes on where it stopped")
        return 130


def carry_out(argv: Sequence[str]) -> int:
    """Check every job, run what is missing, say what came of it. Raises UserError before anything is made."""
    argv, picked = expand(argv)
    if picked:
        terminal.say(picked)
    command = plan(argv)
    if command.jobs is None:
        launch(command.launches[0])
        return 0
    launcher = command.jobs[0].choices.get("hydra/launcher", launchers.BASIC)
    alone = launcher == launchers.BASIC or not command.sweep  # every job runs in this process
    here = alone or launchers.is_here(launcher)
    todo = [preflight.prepare(*job, here) for job in command.jobs]
    if any(s["dry"] for s in todo):
        preflight.dry_all(todo, command.part)
        return 0
    if command.part:
        terminal.say(command.part)
    with beside(spare_cores(todo) if alone else 0, finished.load_metrics, todo[0]):
        preflight.check(todo, local=alone, here=here)
        for line in preflight.reachable(todo):
            terminal.say(line)
        if not command.sweep:
            if not attempt(todo[0]):
                return 1
        elif alone:
            for number, s in enumerate(todo, 1):
                attempt_once(s, f"job {number}/{len(todo)}  ")
        else:
            launch_jobs(command.launches, launcher, len(todo))
    return conclude(todo, command.sweep)


def spare_cores(todo: Sequence[Settings]) -> int:
    """Cores for scoring and drawing beside the videos: none where these are too few to pay for a second process, or
    where metrics run on a GPU, which the videos are timed on."""
    left = [s for s in todo if s["force"] or not Folder.of(s).finished]
    metrics = [node for s in left for node in s["metric"].values()]
    if sum(s["num_videos"] for s in left) < WORTH or any(node.get("device", "cpu") != "cpu" for node in metrics):
        return 0
    return launchers.free_cores(left[0]["device"])


def launch(argv: Sequence[str]) -> None:
    """Hand a sweep to Hydra, whose launcher calls ``job`` for each of its jobs in processes of its own."""
    with patch.object(sys, "argv", ["fastcache", *argv]):
        job()


def launch_jobs(launches: Sequence[Sequence[str]], launcher: str, jobs: int) -> None:
    """Launch a sweep. A worker that is lost takes no more than its job with it: what is left is told at the end."""
    unchecked = patch.object(Sweeper, "validate_batch_is_legal")  # composes every job again; plan has done so
    with launchers.environment(launcher, jobs), unchecked:
        for words in launches:
            try:
                launch(words)
            except Exception as error:
                terminal.error(launchers.lost(launcher, error))


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def job(cfg: DictConfig) -> None:
    """One job of a sweep in a process that a launcher has started."""
    launchers.obey_slurm()
    context = HydraConfig.get()
    terminal.live = False
    attempt_once(preflight.prepare(cfg, context.runtime.choices), f"job {context.job.num + 1}  ")


def attempt_once(s: Settings, title: str) -> None:
    """A job of a sweep; one that failed before is tried again only with retry=true."""
    folder = Folder.of(s)
    former = folder.failure()
    if former and not folder.finished and not s["retry"]:
        terminal.say(f"{label(s)} failed before ({former}); retry=true tries it again")
        return
    attempt(s, title, f"{label(s)}: ", wait=True)


def attempt(s: Settings, title: str = "", who: str = "", wait: bool = False) -> bool:
    """A run whose errors end here: printed in a line, kept in failed.json. Returns whether there were none."""
    folder = Folder.of(s)
    try:
        run(s, title, wait)
    except Exception as error:
        told = (
            str(error)
            if isinstance(error, UserError)
            else f"{type(error).__name__}: {error} (see {folder.path}/run.log)"
        )
        terminal.error(who + told)
        folder.fail(error)
        return False
    return True


def run(s: Settings, title: str = "", wait: bool = False) -> scores.Scores:
    """One run: its reference, the videos that are missing, its scores. What is on disk already is taken from there.
    Where another process is making the same run, the answer is an error or, with ``wait``, what it makes."""
    from fastcache.make import make_videos

    folder = Folder.of(s)
    reference = reference_folder(s, folder)
    twin = engine_folder(s, folder)
    is_reference = reference is folder
    with folder.lock(wait or is_reference, terminal.say):
        former = folder.scores()
        complete = folder.finished and not s["force"]
        if complete and former is not None and scores.up_to_date(former, reference, s["metric"], twin):
            folder.finish()
            return former
        terminal.say(title + terminal.header(s, folder.signature))
        folder.start(s)
        with terminal.logged(folder.path / "run.log"), tracked(s, **_tracking(s, folder, is_reference)) as tracker:
            terminal.LOG.info(terminal.header(s, folder.signature))
            for problem in submit(finished.load_metrics, s).result():
                terminal.say(f"note: {problem}")
            others = [reference] if twin is None else [reference, twin]
            anew = former is not None and former["reference"] != reference.signature
            scored, drawn = {}, []

            def look(idx: int) -> None:
                """A video is there: have it scored and drawn."""
                scored[idx] = submit(finished.score, s, folder, others, idx)
                if anew or not folder.mp4(idx).is_file():
                    drawn.append(submit(finished.render, s, folder, reference, idx))

            for idx in set(range(folder.count)) - set(folder.missing()):
                look(idx)
            if not complete:
                make_videos(s, folder, reference, title, look)
                folder.describe(s)  # with the fit, where one had to be made
            found = [scored[idx].result() for idx in range(folder.count)]
            made = scores.measure(s, folder, reference, found, None if s["force"] else former, twin)
            trace = scores.trace(folder)
            finished.draw_sheet(s, folder, reference, made)
            write_json(folder.path / "trace.json", trace)
            write_json(folder.path / "scores.json", made)
            tracker.log_scores(made, trace)
            for task in drawn:
                task.result()
            tracker.log_media(folder.path / "sheet.png", [folder.mp4(i) for i in range(folder.count)])
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


def engine_folder(s: Settings, folder: Folder) -> Folder | None:
    """The FFFF run on the same engine, made first if need be; None for the default engine."""
    ours = engine_reference_of(s)
    if ours is None:
        return None
    twin = Folder.of(ours)
    if twin.path == folder.path:
        return folder
    if not twin.finished:
        run(ours, wait=True)
    return twin


def _tracking(s: Settings, folder: Folder, is_reference: bool) -> dict[str, Any]:
    kind = "reference" if is_reference else "eval"
    return tracked_job(s, folder.path.name, folder.signature, folder.path, kind)


def conclude(todo: Sequence[Settings], sweep: bool) -> int:
    """The table of what the jobs came to, read from disk, and the exit status."""
    jobs = {Folder.of(s).path: s for s in todo}
    rows: dict[str, scores.Scores] = {}
    reasons, idle, done = [], [], 0
    for s in jobs.values():
        folder = Folder.of(s)
        found = folder.scores()
        if failure := folder.failure():
            reasons.append(f"{label(s)}: {failure}")
        elif folder.finished and found is not None:
            base = Folder.of(reference_of(s)).scores() if own_reference(s) else None
            ours = engine_reference_of(s)
            own = None if ours is None else Folder.of(ours).scores()
            rows |= {row["signature"]: row for row in (base, own, found) if row is not None}
            idle.append(scores.idle_dial(s, found, read_json(folder.path / "trace.json")))
            done += 1
    if rows:
        terminal.table(rows.values())
        idle.insert(0, scores.timing_doubts(rows.values()))
    for sentence in filter(None, idle):
        terminal.say(sentence)
    if sweep:
        why = f" ({'; '.join(reasons)})" if reasons else ""
        terminal.say(f"{done} done, {len(jobs) - done - len(reasons)} left, {len(reasons)} failed{why}")
    if done:
        path = next(iter(jobs))
        terminal.say(f"wrote {path.parent}" if sweep else f"wrote {path}  sheet.png  scores.json  videos/")
    return 0 if done == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
