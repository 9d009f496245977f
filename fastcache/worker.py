"""A second process for what is done with finished videos (finished.py): scoring and drawing then cost a sweep no time.

Where there is none, the same work is done at once in this process; callers see no difference.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from fastcache import terminal

NICE = 5  # videos come first where cores are fewer than they seem
_pool: ProcessPoolExecutor | None = None  # of this process, while ``beside`` lasts


class Task(NamedTuple):
    """A piece of work that has been handed over."""

    future: Future[Any]
    work: Callable[..., Any]
    args: tuple[Any, ...]

    def result(self) -> Any:
        """What the work returned or raised. A second process that was killed takes nothing along: what it has not done
        is done here, and that is said."""
        global _pool
        try:
            return self.future.result()
        except BrokenExecutor:
            if _pool is not None:
                terminal.say("note: the process that scores and draws was ended; its work is done in this one")
                _pool = None
            return self.work(*self.args)


def submit(work: Callable[..., Any], *args: Any) -> Task:
    """Have ``work(*args)`` done, in the order of the calls. In this process it is done, and raises, at once."""
    if _pool is not None:
        with suppress(BrokenExecutor):
            return Task(_pool.submit(work, *args), work, args)
    done: Future[Any] = Future()
    done.set_result(work(*args))
    return Task(done, work, args)


def is_apart() -> bool:
    """Whether there is a second process."""
    return _pool is not None


@contextmanager
def beside(cores: int, first: Callable[..., Any], *args: Any) -> Iterator[None]:
    """Work in a second process on ``cores`` cores; with none to spare, in this process. The second process starts at
    once and on ``first(*args)``, whose result nobody waits for: what it loads will be there when it is needed.

    The second process ends with the block, whatever it is doing, and with the first one, however that ends.
    """
    global _pool
    if cores < 1:
        yield
        return
    before = set(active_children())
    # Python's own helper would warn of semaphores, which it removes, whenever the first process is killed.
    with patch.object(sys, "warnoptions", [*sys.warnoptions, "ignore:resource_tracker"]):
        pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin, initargs=(cores,))
    try:
        # The work is all in this package: whatever was started as __main__ need not be imported again there.
        with _later_interrupts(), patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
            pool.submit(first, *args)
        _pool = pool
        yield
    finally:
        _pool = None
        for child in set(active_children()) - before:
            child.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _later_interrupts() -> Iterator[None]:
    """Ctrl-C waits for the end of the block. A process that is started inside never hears of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _begin(cores: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(cores)  # torch is not imported yet
    with suppress(OSError):
        os.nice(NICE)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
