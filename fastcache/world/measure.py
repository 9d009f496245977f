"""Is the video right? Sprite positions, colours and shapes of a generated video against what its prompt implies."""

from dataclasses import dataclass

import numpy as np

from fastcache.world.render import coverage
from fastcache.world.scene import RADIUS, SIZE, Scene
from fastcache.world.words import COLORS, SHAPES

TOLERANCE = 2 * SIZE / 48  # pixels: 2 px of a 48-pixel frame, scaled to this world's frame
_WINDOW = 10  # pixels around the implied centre that are searched
_Y, _X = np.mgrid[0:SIZE, 0:SIZE] + 0.5


@dataclass(frozen=True)
class Sighting:
    """One sprite in one frame: ``error`` in pixels between found and implied centre (inf: nothing of its colour)."""

    frame: int
    error: float
    color_right: bool
    shape_right: bool

    @property
    def near(self) -> bool:
        return self.error <= TOLERANCE


def look(video: np.ndarray, scene: Scene, frames=(1, 10, 20)) -> list[Sighting]:
    """Check every sprite of ``scene`` that no other one hides in uint8 ``video`` [T, SIZE, SIZE, 3] at ``frames``."""
    sightings = []
    for frame in frames:
        centres = [sprite.track(np.array([frame]))[0] for sprite in scene.sprites]
        picture = video[frame].astype(float) / 255
        for i in range(len(centres)):
            if any(np.abs(centres[i] - other).max() < 2.0 * RADIUS for j, other in enumerate(centres) if j != i):
                continue  # touching: neither centroid nor shape can be read off the pixels
            sightings.append(_sight(picture, frame, scene, i, centres))
    return sightings


def _sight(picture: np.ndarray, frame: int, scene: Scene, i: int, centres: list[np.ndarray]) -> Sighting:
    sprite, implied = scene.sprites[i], centres[i]
    mask = _alike(picture, sprite.color, scene.ground_color)
    reach = np.hypot(_X - implied[0], _Y - implied[1])
    mask = mask * (reach <= _WINDOW)
    for j, other in enumerate(centres):
        if j != i:  # a pixel counts for the sprite whose implied centre is nearest
            mask = mask * (reach < np.hypot(_X - other[0], _Y - other[1]))
    if mask.sum() < 8:
        return Sighting(frame, float("inf"), False, False)
    found = np.array([(mask * _X).sum(), (mask * _Y).sum()]) / mask.sum()
    color = picture[np.hypot(_X - found[0], _Y - found[1]) < 2].mean(0)
    nearest = min(COLORS, key=lambda name: float(np.abs(color - np.array(COLORS[name])).sum()))
    error = float(np.hypot(*(found - implied)))
    return Sighting(frame, error, nearest == sprite.color, match_shape(mask, found) == sprite.shape)


def _alike(picture: np.ndarray, color: str, ground: str) -> np.ndarray:
    """Share of ``color`` in each pixel, taken as a mix of it and the dim background; 0 where it is neither."""
    bright, dim = np.array(COLORS[color]), 0.05 + 0.25 * np.array(COLORS[ground])
    axis = bright - dim
    share = ((picture - dim) @ axis) / (axis @ axis)
    aside = np.linalg.norm(picture - dim - share[..., None] * axis, axis=-1)
    return np.clip(2 * share - 0.8, 0, 1) * (aside < 0.35)


def match_shape(mask: np.ndarray, centre: np.ndarray) -> str:
    """The shape whose outline, at the best of a few sizes and offsets, overlaps the mask most."""
    best, answer = -1.0, SHAPES[0]
    for shape in SHAPES:
        for radius in RADIUS * np.array([0.9, 1.0, 1.1]):
            for dx in (-0.5, 0.0, 0.5):
                for dy in (-0.5, 0.0, 0.5):
                    drawn = coverage(shape, _X - centre[0] - dx, _Y - centre[1] - dy, radius)
                    overlap = np.minimum(mask, drawn).sum() / np.maximum(mask, drawn).sum()
                    if overlap > best:
                        best, answer = overlap, shape
    return answer


def summary(sightings: list[Sighting]) -> dict[str, float]:
    """Shares of sightings that are near, of the right colour, of the right shape, and the median error in pixels."""
    if not sightings:
        raise ValueError("no sprite could be looked at: every one is hidden by another")
    return {
        "n": len(sightings),
        "near": float(np.mean([s.near for s in sightings])),
        "color": float(np.mean([s.color_right for s in sightings])),
        "shape": float(np.mean([s.shape_right for s in sightings])),
        "median_error_px": float(np.median([s.error for s in sightings])),
    }
