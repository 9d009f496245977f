"""What a metric gives back, and what every metric refuses."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastcache.errors import UserError

Clip = np.ndarray  # uint8 [T, H, W, 3]


class NotComputable(Exception):
    """A metric that has no value here. The message becomes ``<name>_why`` in scores.json."""


class Score(NamedTuple):
    """A finite number, or None and the reason."""

    value: float | None
    why: str | None = None


def plain(mean: float) -> Score:
    return Score(mean)


@dataclass(frozen=True)
class FrameScores:
    """Per-frame values [T] with their weights [T], and how a weighted mean of them becomes the score.

    The score of any set of frames is ``finish(sum(w * v) / sum(w))``, so clip and chunk follow one rule.
    """

    values: np.ndarray
    weights: np.ndarray
    finish: Callable[[float], Score] = plain
    empty: str = "no frames"  # the reason where the weights sum to zero

    def pool(self, frames: slice = slice(None)) -> Score:
        weights = self.weights[frames]
        total = float(weights.sum())
        if total == 0:
            return Score(None, self.empty)
        return self.finish(float((self.values[frames] * weights).sum() / total))


class Metric(Protocol):
    """Callable on two clips uint8 [T, H, W, 3]; yields (name, per-frame scores) for each number it defines.

    ``names`` lists those numbers and ``protocol()`` says how they are made. Raises UserError on clips of another dtype
    or shape, NotComputable where the numbers do not exist.
    """

    names: tuple[str, ...]

    def __call__(self, video: Clip, reference: Clip) -> Iterator[tuple[str, FrameScores]]: ...

    def protocol(self) -> dict[str, Any]: ...


def check_clips(video: Clip, reference: Clip) -> None:
    """Raise UserError unless both are uint8 [T, H, W, 3] of one shape.

    Only uint8 is taken: a float clip does not say whether it spans [0, 1], [-1, 1] or [0, 255].
    """
    for role, clip in (("video", video), ("reference", reference)):
        dtype, shape = getattr(clip, "dtype", type(clip).__name__), tuple(getattr(clip, "shape", ()))
        if not isinstance(clip, np.ndarray) or dtype != np.uint8 or len(shape) != 4 or shape[-1] != 3 or 0 in shape:
            raise UserError(
                f"the {role} is {dtype} {list(shape)}; metrics take a numpy array uint8 [frames, height, width, 3]: "
                "convert floats in [0, 1] with (clip * 255).round().astype('uint8')"
            )
    if video.shape != reference.shape:
        raise UserError(
            f"the video is {list(video.shape)} and its reference {list(reference.shape)} [frames, height, width, 3]; "
            "both must be one size: score against a reference of the same settings, e.g. reference=auto"
        )


def identical_frames(video: Clip, reference: Clip) -> np.ndarray:
    """bool [T]: which frames agree in every byte."""
    return (video == reference).reshape(len(video), -1).all(axis=1)
