"""A second process for what is done with videos that are there (finished.py), which then costs a sweep no time.

Where there is none, the same work is done at once in this process; callers see no difference.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from fastcache import terminal

NICE = 5  # videos come first where cores are fewer than they seem
_pool: ProcessPoolExecutor | None = None  # of the first process, while ``beside`` lasts
_started_before: set[BaseProcess] = set()  # what else the first process had started


class Task(NamedTuple):
    """A piece of work that has been handed over. Its future gives what the work returned and what it said."""

    future: Future[tuple[Any, list[str]]]
    work: Callable[..., Any]
    args: tuple[Any, ...]

    def result(self) -> Any:
        """What the work returned or raised. A second process that was killed takes nothing along: what it has not done
        is done here, and that is said."""
        global _pool
        try:
            value, _ = self.future.result()
            _repeat(self.future)
            return value
        except BrokenExecutor:
            if _pool is not None:
                terminal.say("note: the process that scores and draws was ended; its work is done in this one")
                _pool = None
            return self.work(*self.args)

    def done(self) -> bool:
        """Whether ``result`` need not wait for the second process."""
        return self.future.done()


def submit(work: Callable[..., Any], *args: Any) -> Task:
    """Have ``work(*args)`` done, in the order of the calls. In this process it is done, and raises, at once."""
    if _pool is not None:
        with suppress(BrokenExecutor):
            future = _pool.submit(_apart, work, args)
            future.add_done_callback(_repeat)
            return Task(future, work, args)
    done: Future[tuple[Any, list[str]]] = Future()
    done.set_result((work(*args), []))
    return Task(done, work, args)


def is_apart() -> bool:
    """Whether there is a second process."""
    return _pool is not None


@contextmanager
def beside(wanted: bool, first: Callable[..., Any], *args: Any) -> Iterator[None]:
    """Work in a second process, if ``wanted``. It starts at once and on ``first(*args)``, whose result nobody waits
    for: what it loads will be there when it is needed.

    The second process ends with the block, whatever it is doing, and with the first one, however that ends.
    """
    global _pool, _started_before
    if not wanted:
        yield
        return
    _started_before, spawn = set(active_children()), get_context("spawn")
    # Python's own helper would warn of semaphores, which it removes, whenever the first process is killed.
    with patch.object(sys, "warnoptions", [*sys.warnoptions, "ignore:resource_tracker"]):
        pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin)
        _pool = pool
    try:
        # The work is all in this package: whatever was started as __main__ need not be imported again there.
        with _later_interrupts(), patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
            pool.submit(_apart, first, args)
        yield
    finally:
        dismiss()
        pool.shutdown()  # of one that was killed, too


def dismiss() -> None:
    """End the second process, whatever it is doing; what is submitted from now on is done in this one."""
    global _pool
    pool, _pool = _pool, None
    if pool is not None:
        for child in set(active_children()) - _started_before:
            child.terminate()
        pool.shutdown(cancel_futures=True)


def _repeat(future: Future[tuple[Any, list[str]]]) -> None:
    """Say here what was said there, once."""
    if not future.cancelled() and future.exception() is None:
        said = future.result()[1]
        with suppress(IndexError):  # the thread that hears of it first may be saying the last line
            while said:
                terminal.say(said.pop(0))


@contextmanager
def _later_interrupts() -> Iterator[None]:
    """Ctrl-C waits for the end of the block. A process that is started inside never hears of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _begin() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # torch is not imported yet
    with suppress(OSError):
        os.nice(NICE)
    Thread(target=_end_with_parent, daemon=True).start()


def _apart(work: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, list[str]]:
    """Do a piece of work, and keep what it says for the first process, which has the terminal."""
    with terminal.kept() as said:
        return work(*args), said


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
