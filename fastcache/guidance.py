"""The rules of classifier-free guidance's settings, for the command line and for Python alike."""

import math
from numbers import Real
from typing import Any

from fastcache.errors import UserError

DECISIONS = ("separate", "shared")


def check(scale: Any, negative_prompt: str | None = None, decisions: str = "separate") -> float:
    """The scale as a float. Raises UserError unless it is finite and 1 or more (1: no guidance), the decisions are
    ``separate`` or ``shared``, and a negative prompt comes with guidance."""
    number = isinstance(scale, Real) and not isinstance(scale, bool)
    if not number or not math.isfinite(scale) or scale < 1:
        raise UserError(f"guidance_scale={scale}: expected a number, 1 or more (1: no guidance); e.g. guidance_scale=5")
    if decisions not in DECISIONS:
        raise UserError(f"guidance_decisions={decisions} is not one of {', '.join(DECISIONS)}")
    if negative_prompt is not None and scale == 1:
        raise UserError("negative_prompt= is used by guidance alone; add guidance_scale=5, or leave it out")
    return float(scale)
