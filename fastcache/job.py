"""One run: its reference, the videos that are missing, and their finishing, which the next run need not wait for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from fastcache import finished, preflight, terminal
from fastcache.errors import UserError
from fastcache.results import Busy, Folder
from fastcache.scores import up_to_date
from fastcache.settings import Settings, engine_reference_of, label, reference_of
from fastcache.worker import Task, submit


class Unfinished(NamedTuple):
    """A run whose videos are there. ``hold``: its lock. ``task``: what is still done with them."""

    s: Settings
    folder: Folder
    who: str
    hold: ExitStack
    task: Task


BEHIND = 1  # runs that may be unfinished when the next one begins
_unfinished: list[Unfinished] = []  # in the order of their videos
_errors: list[Exception] = []


@contextmanager
def finishing() -> Iterator[list[Exception]]:
    """A block of attempts, at whose end every run is finished. Gives the errors that they end in."""
    _errors.clear()
    try:
        yield _errors
        settle(0)
    except BaseException:
        settle(0)  # what an interrupt comes upon is done first; a second one ends that, too
        raise
    finally:
        while _unfinished:
            _unfinished.pop().hold.close()


def attempt_once(s: Settings, title: str) -> None:
    """A job of a sweep; one that failed before is tried again only with retry=true."""
    folder = Folder.of(s)
    if _is_unfinished(folder):
        settle(0)
    former = folder.failure()
    if former and not folder.finished and not s["retry"]:
        terminal.say(f"{label(s)} failed before ({former}); retry=true tries it again")
        return
    attempt(s, title, f"{label(s)}: ", wait=True)


def attempt(s: Settings, title: str = "", who: str = "", wait: bool = False) -> None:
    """A run whose errors end here: printed in a line, kept in failed.json. It may be finished later, by ``settle``."""
    try:
        run(s, title, who, wait)
    except Exception as error:
        _fail(s, who, error)


def settle(most: int | None = None) -> None:
    """See to the runs that have been finished by now; given ``most``, wait until no more are unfinished."""
    while _unfinished and (_unfinished[0].task.done() or (most is not None and len(_unfinished) > most)):
        s, _, who, hold, task = _unfinished[0]
        try:
            task.result()
        except Exception as error:
            _fail(s, who, error)
        _unfinished.pop(0)
        hold.close()


def _fail(s: Settings, who: str, error: Exception) -> None:
    folder = Folder.of(s)
    told = (
        str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error} (see {folder.path}/run.log)"
    )
    terminal.error(who + told)
    folder.fail(error)
    _errors.append(error)


def run(s: Settings, title: str = "", who: str = "", wait: bool = False) -> None:
    """Make a run: its reference and the videos that are missing, and have it finished. What is on disk already is taken
    from there. Where another process is making the same run, that is an error or, with ``wait``, waited for."""
    from fastcache.make import make_videos

    folder = Folder.of(s)
    settle(0 if s["force"] or _is_unfinished(folder) else BEHIND)
    reference = reference_folder(s, folder)
    twin = engine_folder(s, folder)
    with ExitStack() as hold:
        try:
            hold.enter_context(folder.lock())
        except Busy:
            settle(0)  # to wait for others with locks in hand would be to wait for those who wait for these
            hold.enter_context(folder.lock(wait or reference is folder, terminal.say))
        former = folder.scores()
        complete = folder.finished and not s["force"]
        if complete and former is not None and up_to_date(former, reference, s["metric"], twin):
            folder.finish()
            return
        terminal.say(title + terminal.header(s, folder.signature))
        folder.start(s)
        anew = former is not None and former["reference"] != reference.signature
        order = finished.Order(s, folder, reference, twin, anew)
        begun = submit(finished.begin, order)

        def ready() -> None:
            if not _unfinished:
                begun.result()  # what is loaded for the first run should not slow its videos down

        def look(idx: int) -> None:
            settle()
            if begun.done():
                begun.result()  # an error there ends the run here
            submit(finished.look, order, idx)

        try:
            with terminal.logged(folder.path / "run.log"):
                terminal.LOG.info(terminal.header(s, folder.signature))
                for idx in sorted(set(range(folder.count)) - set(folder.missing())):
                    look(idx)
                if not complete:
                    make_videos(s, folder, reference, title, ready, look)
                    folder.describe(s)  # with the fit, where one had to be made
        except BaseException:
            submit(finished.abandon, order).result()
            raise
        task = submit(finished.conclude, order, None if s["force"] else former)
        _unfinished.append(Unfinished(s, folder, who, hold.pop_all(), task))
    settle()


def reference_folder(s: Settings, folder: Folder) -> Folder:
    """What ``s`` is scored against: a named run, itself, or the FFFF run of its settings, made first if need be."""
    external = preflight.external_reference(s)
    if external is not None:
        return folder if external.path == folder.path else external
    return _made(reference_of(s), folder)


def engine_folder(s: Settings, folder: Folder) -> Folder | None:
    """The FFFF run on the same engine, made first if need be; None for the default engine."""
    ours = engine_reference_of(s)
    return None if ours is None else _made(ours, folder)


def _made(ours: Settings, folder: Folder) -> Folder:
    """The folder of a reference: ``folder`` itself, or one whose videos are there after this."""
    reference = Folder.of(ours)
    if reference.path == folder.path:
        return folder
    if not reference.finished and not _is_unfinished(reference):
        run(ours, who=f"{label(ours)}: ", wait=True)
    return reference


def _is_unfinished(folder: Folder) -> bool:
    return any(left.folder.path == folder.path for left in _unfinished)
