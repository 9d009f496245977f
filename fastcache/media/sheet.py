"""The contact sheet: one picture that shows where in a video a run departs from its reference, and at what cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fastcache.errors import UserError
from fastcache.media import text
from fastcache.media.text import ALERT, FAINT, INK, PAPER
from fastcache.media.video import GAIN, Clip, check, difference, enlarge
from fastcache.results import written_aside

PANEL = 160  # least height of a picture, px
WIDEST = 320  # larger pictures are shrunk to this width, px
MAX_COLUMNS = 10
MARGIN, GUTTER, NAMES, LINE = 20, 8, 118, 30  # px; NAMES is the width of the row names
LETTER = 22
LOWER_IS_BETTER = ("LPIPS",)

LETTER_FILL = {"F": (44, 78, 122), "P": (150, 180, 214), "R": (229, 233, 238)}
LETTER_INK = {"F": PAPER, "P": INK, "R": INK}


@dataclass(frozen=True)
class SheetVideo:
    """One video of a contact sheet; per-chunk lists are in chunk order.

    ``frames_of_chunk`` adds up to T. ``letters`` has one trace per chunk ("FPRF"); ``values`` maps "PSNR", "SSIM" or
    "LPIPS" to one number per chunk, None where PSNR is infinite (identical) or the score is not to be had.
    """

    title: str
    run: Clip  # uint8 [T, H, W, 3]
    reference: Clip | None  # None where the run is itself the reference
    frames_of_chunk: Sequence[int]
    letters: Sequence[str] = ()
    fractions: Sequence[float] = ()  # compute fraction per chunk
    values: dict[str, Sequence[float | None]] = field(default_factory=dict)


def contact_sheet(path: Path | str, videos: Sequence[SheetVideo], title: str, subtitle: str = "") -> Path:
    """Write the PNG: for each video the rows reference, run, difference; a column per chunk (its middle frame), under
    it the trace and the scores of the chunk, the worst chunk in red. At most ten columns, evenly picked.

    Raises UserError without videos and where a run and its reference differ in size.
    """
    if not videos:
        raise UserError("a contact sheet needs at least one video")
    blocks = [_block(video) for video in videos]
    width = max(760, *(block.width for block in blocks))
    parts = [_head(width, title, subtitle), *blocks, _foot(width)]
    sheet = Image.new("RGB", (width, sum(part.height for part in parts)), PAPER)
    top = 0
    for part in parts:
        sheet.paste(part, (0, top))
        top += part.height
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside:
        sheet.save(aside, format="PNG", compress_level=1)  # half the time of the default, a quarter larger
    return path


def _head(width: int, title: str, subtitle: str) -> Image.Image:
    head = Image.new("RGB", (width, 76 if subtitle else 50), PAPER)
    draw = ImageDraw.Draw(head)
    text.left(draw, title, MARGIN, 28, width - 2 * MARGIN, 22, bold=True)
    if subtitle:
        text.left(draw, subtitle, MARGIN, 58, width - 2 * MARGIN, 15, FAINT)
    return head


def _foot(width: int) -> Image.Image:
    """The legend."""
    foot = Image.new("RGB", (width, 46), PAPER)
    draw = ImageDraw.Draw(foot)
    x = float(MARGIN)
    for letter, meaning in (("F", "step computed in full"), ("P", "partly"), ("R", "reused or forecast")):
        _letter(draw, letter, x, 23)
        draw.text((x + 26, 23), meaning, INK, text.font(14), anchor="lm")
        x += 48 + draw.textlength(meaning, text.font(14))
    draw.text((x, 23), "one letter per denoising step", FAINT, text.font(14), anchor="lm")
    worst = "red: worst chunk"
    x += 22 + draw.textlength("one letter per denoising step", text.font(14))
    draw.text((x, 23), worst, ALERT, text.font(14), anchor="lm")
    return foot


def _block(video: SheetVideo) -> Image.Image:
    """Title, chunk heads, rows of pictures, trace and scores of one video."""
    columns, shown = _picked(video.frames_of_chunk)
    rows = _rows(video, shown)
    width, height = next(iter(rows.values()))[0].size
    captions = bool(video.letters) + bool(video.fractions) + len(video.values)
    top = 66
    bottom = top + len(rows) * (height + GUTTER)
    block = Image.new("RGB", (_x(len(columns), width) + MARGIN, bottom + LINE * captions + 12), PAPER)
    draw = ImageDraw.Draw(block)
    draw.line((MARGIN, 2, block.width - MARGIN, 2), fill=(205, 209, 215))
    text.left(draw, video.title, MARGIN, 22, block.width - 2 * MARGIN, 17)
    for column, (chunk, frame) in enumerate(zip(columns, shown, strict=True)):
        middle = _x(column, width) + width / 2
        text.centred(draw, f"chunk {chunk} · frame {frame}", middle, 50, width, 14, FAINT)
    for row, (name, pictures) in enumerate(rows.items()):
        y = top + row * (height + GUTTER)
        _name(draw, name, y + height / 2)
        for column, picture in enumerate(pictures):
            block.paste(picture, (_x(column, width), y))
    _captions(draw, video, columns, bottom + LINE // 2, width)
    return block


def _picked(frames_of_chunk: Sequence[int]) -> tuple[list[int], list[int]]:
    """The chunks shown and the middle frame of each."""
    chunks = len(frames_of_chunk)
    columns = sorted({round(c) for c in np.linspace(0, chunks - 1, min(chunks, MAX_COLUMNS))})
    starts = np.cumsum([0, *frames_of_chunk])
    return columns, [int(starts[c] + frames_of_chunk[c] // 2) for c in columns]


def _rows(video: SheetVideo, shown: list[int]) -> dict[str, list[Image.Image]]:
    """Row name -> pictures, top to bottom."""
    run = video.run[shown]
    if video.reference is None:
        check(video.run)
        return {"reference": _thumbnails(run)}
    check(video.run, video.reference)
    reference = video.reference[shown]
    clips = {"reference": reference, "run": run, f"difference ×{GAIN}": difference(run, reference)}
    return {name: _thumbnails(clip) for name, clip in clips.items()}


def _captions(draw: ImageDraw.ImageDraw, video: SheetVideo, columns: list[int], y: int, width: int) -> None:
    """The lines under the pictures, from height ``y`` on: trace, computed share, one line for each score."""
    middles = {chunk: _x(column, width) + width / 2 for column, chunk in enumerate(columns)}
    if video.letters:
        _name(draw, "trace", y)
        for chunk, middle in middles.items():
            _trace(draw, video.letters[chunk], middle, y, width)
        y += LINE
    if video.fractions:
        _name(draw, "computed", y)
        for chunk, middle in middles.items():
            text.centred(draw, f"{100 * video.fractions[chunk]:.0f} %", middle, y, width, 15)
        y += LINE
    for name, values in video.values.items():
        worst = _worst(name, values)
        _name(draw, f"{name} {'↓' if name in LOWER_IS_BETTER else '↑'}", y)
        for chunk, middle in middles.items():
            bad = chunk == worst
            text.centred(draw, _number(name, values[chunk]), middle, y, width, 15, ALERT if bad else INK, bold=bad)
        y += LINE


def _worst(name: str, values: Sequence[float | None]) -> int | None:
    """The chunk with the worst value; None where no two chunks differ."""
    known = {chunk: value for chunk, value in enumerate(values) if value is not None}
    if len(set(values)) < 2 or not known:
        return None
    pick = max if name in LOWER_IS_BETTER else min
    return pick(known, key=lambda chunk: known[chunk])


def _number(name: str, value: float | None) -> str:
    if name == "PSNR":
        return "identical" if value is None else f"{value:.1f} dB"
    return "-" if value is None else f"{value:.3f}"


def _x(column: int, width: int) -> int:
    """Left edge of a column."""
    return MARGIN + NAMES + column * (width + GUTTER)


def _name(draw: ImageDraw.ImageDraw, name: str, y: float) -> None:
    """The name of a row, in the middle of its height."""
    text.left(draw, name, MARGIN, y, NAMES - 8, 15, bold=True)


def _thumbnails(frames: Clip) -> list[Image.Image]:
    """Pictures of one size: small frames enlarged by pixel repetition, wide ones shrunk."""
    pictures = [Image.fromarray(frame) for frame in enlarge(frames, PANEL)]
    width, height = pictures[0].size
    if width <= WIDEST:
        return pictures
    size = (WIDEST, max(1, round(height * WIDEST / width)))
    return [picture.resize(size, Image.Resampling.LANCZOS) for picture in pictures]


def _trace(draw: ImageDraw.ImageDraw, letters: str, middle: float, y: float, width: int) -> None:
    """The letters in boxes, or as plain text where there are too many."""
    if LETTER * len(letters) > width:
        text.centred(draw, letters, middle, y, width, 14)
        return
    for place, letter in enumerate(letters):
        _letter(draw, letter, middle + LETTER * (place - len(letters) / 2) + 1, y)


def _letter(draw: ImageDraw.ImageDraw, letter: str, x: float, y: float) -> None:
    """A boxed letter, its left edge at ``x``, its middle at the height ``y``."""
    box = (x, y - 10, x + 19, y + 9)
    draw.rounded_rectangle(box, 3, fill=LETTER_FILL.get(letter, PAPER), outline=(150, 156, 166))
    draw.text((x + 10, y), letter, LETTER_INK.get(letter, INK), text.font(13, True), anchor="mm")
