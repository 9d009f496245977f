"""Legible text on pictures."""

import importlib.util
from functools import cache
from pathlib import Path

from PIL import ImageDraw, ImageFont

Colour = tuple[int, int, int]
PAPER, INK, FAINT, ALERT = (255, 255, 255), (25, 28, 34), (110, 116, 126), (190, 30, 45)


@cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """DejaVu Sans as matplotlib ships it, found without importing matplotlib; Pillow's own font where it is missing."""
    spec = importlib.util.find_spec("matplotlib")
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "mpl-data" / "fonts" / "ttf" / name
        if path.is_file():
            return ImageFont.truetype(str(path), size)
    return ImageFont.load_default(size)


def fitting(draw: ImageDraw.ImageDraw, text: str, width: float, size: int, bold: bool) -> tuple[str, int]:
    """Shrink the font down to 11 px, then cut the text, until it fits ``width``."""
    text = " ".join(text.split())
    while size > 11 and draw.textlength(text, font(size, bold)) > width:
        size -= 1
    if draw.textlength(text, font(size, bold)) > width:
        while text and draw.textlength(text + "…", font(size, bold)) > width:
            text = text[:-1]
        text += "…"
    return text, size


def centred(
    draw: ImageDraw.ImageDraw,
    text: str,
    x: float,
    y: float,
    width: float,
    size: int,
    colour: Colour = INK,
    bold: bool = False,
) -> None:
    """Write ``text`` in the height ``y`` with its middle at ``x``, made to fit ``width`` px."""
    text, size = fitting(draw, text, width, size, bold)
    draw.text((x, y), text, colour, font(size, bold), anchor="mm")


def left(
    draw: ImageDraw.ImageDraw,
    text: str,
    x: float,
    y: float,
    width: float,
    size: int,
    colour: Colour = INK,
    bold: bool = False,
) -> None:
    """Write ``text`` in the height ``y`` with its start at ``x``, made to fit ``width`` px."""
    text, size = fitting(draw, text, width, size, bold)
    draw.text((x, y), text, colour, font(size, bold), anchor="lm")
