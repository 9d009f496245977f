"""Schedules: one letter per denoising step of a chunk. F forces a full step; x and R let the method decide; - leaves
the step out of the sampler: fewer-step sampling, each remaining step at its own noise level with its own noise."""

from fastcache.errors import UserError

LETTERS = "FxR-"

Schedule = tuple[bool | None, ...]
"""By step: True computed in full, False left to the method, None left out."""


def parse_schedule(text: str, num_steps: int) -> Schedule:
    """ "FxxF" -> (True, False, False, True), "F-FF" -> (True, None, True, True).

    Raises UserError on a letter outside F, x, R and -, on a length other than ``num_steps`` and on a first letter other
    than F (a chunk's first step has nothing to reuse).
    """
    text = str(text)
    bad = [c for c in text if c not in LETTERS]
    if bad:
        raise UserError(
            f"schedule={text}: letter {bad[0]!r} is not F (full), x or R (cacheable) or - (left out); "
            "e.g. schedule=FxxF"
        )
    if len(text) != num_steps:
        raise UserError(
            f"schedule={text} has {len(text)} letters; expected {num_steps}, one for each step of the sampler"
        )
    if text[0] != "F":
        raise UserError(
            f"schedule={text} starts with {text[0]}; a chunk's first step has nothing to reuse, it must be F"
        )
    return tuple(None if c == "-" else c == "F" for c in text)


def next_step(forced: Schedule, i: int) -> int:
    """The step after step i, those that are left out passed over; the number of steps after the last."""
    return next((j for j in range(i + 1, len(forced)) if forced[j] is not None), len(forced))


def ceiling(forced: Schedule) -> float:
    """Highest DiT speed-up if every cacheable step is skipped, the store pass counted: FxxF -> 5/3."""
    return (len(forced) + 1) / (forced.count(True) + 1)
