"""Clips for the eye: enlarged, side by side, as mp4."""

from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fastcache.errors import UserError
from fastcache.media.text import FAINT, INK, PAPER, Colour, centred
from fastcache.results import written_aside

Clip = np.ndarray  # uint8 [T, H, W, 3]

GAIN = 4  # differences are shown this much stronger
PANEL = 256  # least height of a panel, px
STRIP, GAP = 30, 8  # px: a line of text, the space between panels


def enlarge(frames: Clip, height: int) -> Clip:
    """Repeat pixels by the smallest integer factor that makes [T, H, W, 3] at least ``height`` high."""
    factor = max(1, -(-height // frames.shape[1]))
    return frames.repeat(factor, axis=2).repeat(factor, axis=1)  # whole rows last: several times as fast


def difference(run: Clip, reference: Clip) -> Clip:
    """Absolute difference, GAIN times as strong, uint8."""
    return np.minimum(np.abs(run.astype(np.int16) - reference) * GAIN, 255).astype(np.uint8)


def write_mp4(path: Path | str, frames: Clip, fps: float = 8) -> Path:
    """H.264 (yuv420p, so that browsers play it) of uint8 [T, H, W, 3]; an odd row or column is doubled.

    The file appears complete or not at all. Raises UserError on frames of another kind.
    """
    import av

    check(frames)
    odd = [size % 2 for size in frames.shape[1:3]]
    if any(odd):  # np.pad copies even where there is nothing to add
        frames = np.pad(frames, ((0, 0), (0, odd[0]), (0, odd[1]), (0, 0)), mode="edge")
    rate, quality = Fraction(fps).limit_denominator(1000), {"crf": "14", "preset": "ultrafast"}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"movflags": "+faststart"}
    with written_aside(path) as aside, av.open(str(aside), "w", format="mp4", options=options) as container:
        stream = container.add_stream("libx264", rate=rate, options=quality)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
    return path


def side_by_side(run: Clip, reference: Clip, label: str = "run", reference_label: str = "FFFF") -> Clip:
    """reference | run | difference on one clock, each enlarged to at least 256 px and labelled: uint8 [T, h, w, 3].

    Raises UserError where the two differ in size.
    """
    check(run, reference)
    panels = [enlarge(clip, PANEL) for clip in (reference, run, difference(run, reference))]
    count, height, width, _ = panels[0].shape
    titles = (f"reference {reference_label}", label, f"difference ×{GAIN}")
    canvas = np.full((count, STRIP + height + STRIP, GAP + 3 * (width + GAP), 3), 255, np.uint8)
    for column, (title, panel) in enumerate(zip(titles, panels, strict=True)):
        across = slice(GAP + column * (width + GAP), (column + 1) * (width + GAP))
        canvas[:, :STRIP, across] = _strip(title, width, 17, INK, bold=True)
        canvas[:, STRIP : STRIP + height, across] = panel
    for t in range(count):
        canvas[t, STRIP + height :] = _strip(f"frame {t} of 0–{count - 1}", canvas.shape[2], 14, FAINT)
    return canvas


@lru_cache(maxsize=512)
def _strip(text: str, width: int, size: int, colour: Colour, bold: bool = False) -> np.ndarray:
    """A line of text on paper: uint8 [STRIP, width, 3]. Every video of a run has the same."""
    picture = Image.new("RGB", (width, STRIP), PAPER)
    centred(ImageDraw.Draw(picture), text, width / 2, STRIP / 2, width, size, colour, bold)
    return np.asarray(picture)


def check(*clips: Clip) -> None:
    """Raise UserError unless all are uint8 [T, H, W, 3] of one shape."""
    for clip in clips:
        if not isinstance(clip, np.ndarray) or clip.dtype != np.uint8 or clip.ndim != 4 or clip.shape[-1] != 3:
            raise UserError("frames must be a numpy array uint8 [frames, height, width, 3]")
        if 0 in clip.shape:
            raise UserError(f"frames of {list(clip.shape)} [frames, height, width, 3] hold no picture")
    if len({clip.shape for clip in clips}) > 1:
        sizes = " and ".join(str(list(clip.shape)) for clip in clips)
        raise UserError(f"run and reference are {sizes} [frames, height, width, 3]; both must be one size")
