"""Draw a scene. What no word and no text token tells (jitter, contrast, lamp) is drawn here, from its own seed."""

from dataclasses import dataclass, replace

import numpy as np

from fastcache.world.scene import FRAMES, RADIUS, SIZE, SPAN, Scene
from fastcache.world.words import COLORS

PERIOD = 8  # pixels of a texture
_Y, _X = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32) + 0.5


@dataclass(frozen=True)
class Unsaid:
    """Everything the text leaves to the model: the reason why later denoising steps and earlier chunks matter."""

    shift: np.ndarray  # [sprites, 2] pixels added to the whole track
    scale: np.ndarray  # [sprites] radius factor
    contrast: float
    lamp: np.ndarray  # [FRAMES] brightness factor of the background, a slow random walk


def draw_unsaid(scene: Scene, rng: np.random.Generator, frames: int = FRAMES) -> Unsaid:
    count = len(scene.sprites)
    lamp = np.empty(frames)
    level = rng.normal(0, 0.12)
    for t in range(frames):
        lamp[t] = 1 + level
        level = 0.9 * level + rng.normal(0, 0.045)
    return Unsaid(rng.uniform(-0.4, 0.4, (count, 2)), rng.uniform(0.92, 1.08, count), rng.uniform(0.6, 1.4), lamp)


def as_drawn(scene: Scene, unsaid: Unsaid) -> Scene:
    """The scene with its sprites starting where the first frame has them, not where the text put them."""
    drawn = []
    for sprite, shift in zip(scene.sprites, unsaid.shift, strict=True):
        x, y = (np.array(sprite.start) + shift).clip(RADIUS, RADIUS + SPAN).tolist()
        drawn.append(replace(sprite, start=(x, y)))
    return replace(scene, sprites=tuple(drawn))


def coverage(shape: str, x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    """Anti-aliased coverage in [0, 1] of a shape centred on its area centroid, at pixel offsets x, y from it."""
    ax, ay = np.abs(x), np.abs(y)
    if shape == "circle":
        distance = np.sqrt(x * x + y * y) - radius
    elif shape == "square":
        distance = np.maximum(ax, ay) - 0.9 * radius
    elif shape == "triangle":  # equilateral, tip up
        distance = np.maximum(0.866 * ax - 0.5 * y, y) - 0.66 * radius
    else:  # cross
        arm, half = 0.36 * radius, 1.02 * radius
        distance = np.minimum(np.maximum(ax - half, ay - arm), np.maximum(ax - arm, ay - half))
    return np.clip(0.5 - distance, 0, 1)


def background(scene: Scene, unsaid: Unsaid) -> np.ndarray:
    """Static texture [SIZE, SIZE, 3] in [0, 1] before the lamp."""
    px, py, half = _X % PERIOD, _Y % PERIOD, PERIOD / 2
    if scene.texture == "stripes":
        light = np.clip(np.minimum(px, half - px) + 0.5, 0, 1) + np.clip(px - PERIOD + 0.5, 0, 1)
    elif scene.texture == "dots":
        light = np.clip(2.8 - np.hypot(px - half, py - half), 0, 1)
    else:
        light = np.full_like(_X, 0.35)
    color = np.array(COLORS[scene.ground_color])
    return 0.05 + color * (0.12 + 0.28 * unsaid.contrast * light[..., None])


def render(scene: Scene, unsaid: Unsaid, frames) -> tuple[np.ndarray, np.ndarray]:
    """Frames [T, SIZE, SIZE, 3] in [0, 1], float32, at the given numbers, and the sprites' coverage [T, SIZE, SIZE]."""
    frames = np.asarray(frames)
    video = background(scene, unsaid)[None] * unsaid.lamp[frames][:, None, None, None]
    covered = np.zeros((len(frames), SIZE, SIZE))
    for i, sprite in enumerate(scene.sprites):
        centre = sprite.track(frames) + unsaid.shift[i]
        x, y = _X[None] - centre[:, 0, None, None], _Y[None] - centre[:, 1, None, None]
        alpha = coverage(sprite.shape, x, y, RADIUS * unsaid.scale[i])
        video = video + alpha[..., None] * (np.array(COLORS[sprite.color]) - video)
        covered = np.maximum(covered, alpha)
    return video.astype(np.float32), covered.astype(np.float32)


def draw_layout(scene: Scene, frames) -> np.ndarray:
    """A control video of a scene: each sprite's silhouette in its own color on black, [T, SIZE, SIZE, 3] in [0, 1]."""
    frames = np.asarray(frames)
    video = np.zeros((len(frames), SIZE, SIZE, 3))
    for sprite in scene.sprites:
        centre = sprite.track(frames)
        alpha = coverage(sprite.shape, _X[None] - centre[:, 0, None, None], _Y[None] - centre[:, 1, None, None], RADIUS)
        video += alpha[..., None] * (np.array(COLORS[sprite.color]) - video)
    return video.astype(np.float32)
