"""Schedules: one letter per denoising step of a chunk. F forces a full step; x and R let the method decide."""

from fastcache.errors import UserError

LETTERS = "FxR"


def parse_schedule(text: str, num_steps: int) -> tuple[bool, ...]:
    """ "FxxF" -> (True, False, False, True): which steps are forced full.

    Raises UserError on a letter outside F, x, R, on a length other than ``num_steps`` and on a first letter other
    than F (a chunk's first step has nothing to reuse).
    """
    text = str(text)
    bad = [c for c in text if c not in LETTERS]
    if bad:
        raise UserError(f"schedule={text}: letter {bad[0]!r} is not F (full), x or R (cacheable); e.g. schedule=FxxF")
    if len(text) != num_steps:
        raise UserError(
            f"schedule={text} has {len(text)} letters; expected {num_steps}, one for each step of the sampler"
        )
    if text[0] != "F":
        raise UserError(
            f"schedule={text} starts with {text[0]}; a chunk's first step has nothing to reuse, it must be F"
        )
    return tuple(c == "F" for c in text)


def ceiling(forced: tuple[bool, ...]) -> float:
    """Highest DiT speed-up if every cacheable step is skipped, the store pass counted: FxxF -> 5/3."""
    return (len(forced) + 1) / (sum(forced) + 1)
