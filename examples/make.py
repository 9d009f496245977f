"""Draws this folder's inputs: python -m examples.make (in the repository)

first_frame.png is a first frame for an I2V model, control.mp4 a control video for a VACE model. Both are enlarged for
the eye; a run reduces them to the model's size.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from fastcache.media import write_mp4
from fastcache.media.video import enlarge
from fastcache.models.tiny_shown import first_frame
from fastcache.world.render import draw_layout
from fastcache.world.scene import FRAMES, Scene, Wanderer

HERE = Path(__file__).resolve().parent
SIZE = 256  # pixels

FIRST_FRAME = "a red circle at the left moves right, a yellow triangle at the top right stays, on blue stripes"
CONTROL = "a red circle, a white cross, on green plain"


def control() -> np.ndarray:
    """uint8 [FRAMES, 32, 32, 3]: a circle goes round, a cross sways beside it. No words of a prompt could tell that."""
    circle = Wanderer("red", "circle", (11.0, 22.0), (0.0, 0.0), (6.0, 6.0), (0.3, 0.3), (0.0, np.pi / 2))
    cross = Wanderer("white", "cross", (26.0, 16.0), (0.0, 0.0), (0.0, 7.0), (0.0, 0.3), (0.0, 0.0))
    video = draw_layout(Scene((circle, cross), "green", "plain"), np.arange(FRAMES))
    return (video * 255).round().astype(np.uint8)


def main() -> None:
    picture = enlarge(first_frame(FIRST_FRAME, 0)[None], SIZE)[0]
    Image.fromarray(picture).save(HERE / "first_frame.png", optimize=True)
    write_mp4(HERE / "control.mp4", enlarge(control(), SIZE))


if __name__ == "__main__":
    main()
