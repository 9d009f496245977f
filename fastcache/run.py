"""`python -m fastcache.run`: check the settings, make what is missing (job.py), say what came of it.

Torch is imported once something has to be built.
"""

import gc
import sys
from collections.abc import Sequence
from unittest.mock import patch

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig

from fastcache import __version__, finished, launchers, preflight, scores, terminal
from fastcache.catalog import CONF
from fastcache.config import plan
from fastcache.errors import UserError
from fastcache.job import attempt, attempt_once, finishing
from fastcache.metrics.score import use_threads
from fastcache.results import Folder, read_json
from fastcache.settings import Settings, engine_reference_of, label, own_reference, reference_of, resolve
from fastcache.target import expand
from fastcache.worker import beside, dismiss, is_apart, submit

WORTH = 4  # videos whose scoring and drawing take as long as a second process takes to start


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
    if alone:
        launchers.leave_a_core()
    todo = [resolve(*job) for job in command.jobs]
    dry = any(s["dry"] for s in todo)
    with beside(alone and not dry and worth_a_process(todo), finished.warm_up, todo[0]), finishing() as errors:
        for s in todo:
            preflight.place(s, "" if here else launcher)
        if dry:
            preflight.dry_all(todo, command.part)
            return 0
        if command.part:
            terminal.say(command.part)
        if not worth_a_process(todo):
            dismiss()
        elif is_apart():
            submit(use_threads, max(1, launchers.free_cores(todo[0]["device"])))
        preflight.check(todo, local=alone, here=here)
        for line in preflight.reachable(todo):
            terminal.say(line)
        if not command.sweep:
            attempt(todo[0])
        elif alone:
            for number, s in enumerate(todo, 1):
                attempt_once(s, f"job {number}/{len(todo)}  ")
        else:
            launch_jobs(command.launches, launcher, len(todo))
    if errors and not command.sweep:
        return 1
    return max(conclude(todo, command.sweep), bool(errors))  # an error may be that of a reference, which is no job


def worth_a_process(todo: Sequence[Settings]) -> bool:
    """Whether to score and draw in a second process: where a core is free, not where what is left to do takes less time
    than that takes to start, nor where metrics run on a GPU, which the videos are timed on. Before devices are known,
    nothing is done."""
    left = [s for s in todo if s["force"] or not Folder.of(s).finished]
    metrics = [node for s in left for node in s["metric"].values()]
    if sum(s["num_videos"] for s in left) < WORTH or any(node.get("device", "cpu") != "cpu" for node in metrics):
        return False
    return launchers.free_cores(left[0]["device"]) > 0


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
    with finishing():
        attempt_once(preflight.place(resolve(cfg, context.runtime.choices)), f"job {context.job.num + 1}  ")


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
    status = main()
    gc.freeze()  # else Python looks for garbage among all that torch has brought: half a second
    sys.exit(status)
