"""Reading a scene off its first frame: the words say what there is, the picture where it is."""

from dataclasses import replace

import numpy as np
from scipy.ndimage import center_of_mass, label

from fastcache.errors import UserError
from fastcache.world.measure import match_shape
from fastcache.world.scene import RADIUS, SPAN, Scene, Sprite, settle
from fastcache.world.words import COLORS, read_prompt

_LIKE = 0.33  # largest RGB distance of a pixel from a sprite's color
_LEAST = 8  # pixels of a sprite


def read_picture(prompt: str, picture: np.ndarray, rng: np.random.Generator) -> Scene:
    """The scene of a prompt whose sprites start where ``picture`` (uint8 [SIZE, SIZE, 3]) shows them.

    Speeds and directions that the words leave open are drawn from ``rng``: a still picture does not tell them. Raises
    UserError where the picture does not show a sprite of the prompt. Of sprites that look alike the words that place
    them say which is which.
    """
    scene = settle(read_prompt(prompt), rng)
    free = {color: _blobs(picture, color) for color in {sprite.color for sprite in scene.sprites}}
    placed = []
    for sprite in scene.sprites:
        blobs = free[sprite.color]
        if not blobs:
            raise UserError(
                f"the picture shows no {sprite.color} {sprite.shape}, but the prompt {prompt!r} tells of one; "
                "use words that fit the picture, or another picture: image=PATH"
            )
        alike = [blob for blob in blobs if match_shape(*blob) == sprite.shape]
        alike = alike or blobs
        large = [blob for blob in alike if 2 * blob[0].sum() >= alike[0][0].sum()]
        mask, centre = min(large, key=lambda blob: float(np.abs(blob[1] - sprite.start).max()))
        free[sprite.color] = [blob for blob in blobs if blob[0] is not mask]
        placed.append(_at(sprite, centre))
    return replace(scene, sprites=tuple(placed))


def _blobs(picture: np.ndarray, color: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """(mask [SIZE, SIZE], centre (x, y) in pixels) of connected regions of a color, largest first."""
    far = np.linalg.norm(picture.astype(float) / 255 - np.array(COLORS[color]), axis=-1)
    regions, count = label(far < _LIKE)
    masks = [(regions == i + 1).astype(float) for i in range(count)]
    masks = sorted((m for m in masks if m.sum() >= _LEAST), key=lambda m: -m.sum())
    return [(m, np.array(center_of_mass(m))[::-1] + 0.5) for m in masks]


def _at(sprite: Sprite, centre: np.ndarray) -> Sprite:
    x, y = np.clip(centre, RADIUS, RADIUS + SPAN).tolist()
    return replace(sprite, start=(x, y))
