"""What torch's CPU allocator is asked for while something runs: every allocation, and the peak."""

import os
from collections.abc import Callable
from typing import TypeVar

from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read at the first profile: else it writes of absent GPUs to stderr


def traced(work: Callable[[], T]) -> tuple[T, list[int]]:
    """What ``work()`` returns, and the bytes of each allocation (negative: release) in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        made = work()
    assert record.profiler is not None
    events = record.profiler.kineto_results.events()
    return made, [event.nbytes() for event in events if event.name() == "[memory]"]


def peak_bytes(work: Callable[[], T]) -> tuple[T, int]:
    """What ``work()`` returns, and how far the allocated bytes rose above their level at the start, at most."""
    made, events = traced(work)
    level = peak = 0
    for size in events:
        level += size
        peak = max(peak, level)
    return made, peak
