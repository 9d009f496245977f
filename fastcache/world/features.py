"""Numbers for words and patches, made so that a text token and the patch its sprite is on have a large dot product.

A point bouncing in a box of length SPAN is a standing wave: with w_k = pi k / SPAN, cos(w u(t)) = cos(w (u0 + v t)).
The patch at u carries cos(w u) {1, cos(w s t), -sin(w s t)} for each speed s, the text {cos(w u0)} or
{cos(w u0), +-sin(w u0)} in the slot of its own speed: their product sums to sum_k cos(w u) cos(w u(t)), which peaks
where the sprite is at time t, although the text is constant over the video.
"""

import numpy as np

from fastcache.world.scene import RADIUS, SIZE, SPAN, Scene
from fastcache.world.words import COLORS, MAX_SPRITES, SHAPES, SPEEDS, TEXTURES

WAVES = np.pi * np.arange(1, 9) / SPAN
PATCH = 4  # pixels of a patch, both ways
PATCHES = SIZE // PATCH
WAVE_DIM = 2 * len(WAVES) * (1 + 2 * len(SPEEDS))
PATCH_DIM = WAVE_DIM + 2 * PATCHES + 8
TEXT_LEN = MAX_SPRITES + 3  # sprites, background, two rows of padding
TEXT_DIM = WAVE_DIM + MAX_SPRITES + 1 + len(COLORS) + len(SHAPES) + len(TEXTURES) + 1 + 4 * len(SPEEDS)


def patch_features(start_frame: int, frames: int) -> np.ndarray:
    """Features [frames * PATCHES * PATCHES, PATCH_DIM] of where and when each patch is; frame-major, row, column."""
    t = start_frame + np.arange(frames)[:, None]
    u = PATCH * (np.arange(PATCHES) + 0.5) - RADIUS
    still = np.cos(np.outer(u, WAVES))  # [P, K]
    axis = [np.broadcast_to(still, (frames, *still.shape))]
    for speed in SPEEDS.values():
        angle = t * (WAVES * speed)  # [frames, K]
        axis += [still * np.cos(angle)[:, None], -still * np.sin(angle)[:, None]]
    wave = np.concatenate(axis, -1)  # [frames, P, K * (1 + 2 speeds)]
    one = np.eye(PATCHES)
    clock = np.concatenate([f(t / length) for length in (1.0, 3.0, 9.0, 27.0) for f in (np.sin, np.cos)], -1)
    shape = (frames, PATCHES, PATCHES)
    parts = [
        np.broadcast_to(wave[:, None], (*shape, wave.shape[-1])),  # x
        np.broadcast_to(wave[:, :, None], (*shape, wave.shape[-1])),  # y
        np.broadcast_to(one[None, None], (*shape, PATCHES)),
        np.broadcast_to(one[None, :, None], (*shape, PATCHES)),
        np.broadcast_to(clock[:, None, None], (*shape, clock.shape[-1])),
    ]
    return np.concatenate(parts, -1).reshape(-1, PATCH_DIM).astype(np.float32)


def text_features(scene: Scene, motion: bool = True, ground: bool = True) -> np.ndarray:
    """Token features [TEXT_LEN, TEXT_DIM] of a scene: a row a sprite, one for the background, then zero rows.

    Without ``motion`` nothing is told of where sprites are and how they move (a control video shows it), without
    ``ground`` nothing of the background's color and texture (a picture shows them).
    """
    rows = np.zeros((TEXT_LEN, TEXT_DIM), np.float32)
    colors, speeds = list(COLORS), list(SPEEDS.values())
    flags = rows[:, WAVE_DIM:]
    for i, sprite in enumerate(scene.sprites):
        for axis in range(2 if motion else 0):
            _wave(rows[i, axis * WAVE_DIM // 2 :], sprite.start[axis] - RADIUS, sprite.velocity[axis], speeds)
        flags[i, i] = 1
        at = MAX_SPRITES + 1
        flags[i, at + colors.index(sprite.color)] = 1
        flags[i, at + len(colors) + SHAPES.index(sprite.shape)] = 1
        if not motion:
            continue
        at += len(colors) + len(SHAPES) + len(TEXTURES)
        if not any(sprite.velocity):
            flags[i, at] = 1
        for axis, v in enumerate(sprite.velocity):
            if v:
                flags[i, at + 1 + speeds.index(abs(v)) * 4 + 2 * axis + (v > 0)] = 1
    under = flags[len(scene.sprites)]
    under[MAX_SPRITES] = 1
    if ground:
        under[MAX_SPRITES + 1 + colors.index(scene.ground_color)] = 1
        under[MAX_SPRITES + 1 + len(colors) + len(SHAPES) + TEXTURES.index(scene.texture)] = 1
    return rows


def _wave(out: np.ndarray, u0: float, velocity: float, speeds: list[float]) -> None:
    k = len(WAVES)
    cos, sin = np.cos(WAVES * u0), np.sin(WAVES * u0)
    if not velocity:
        out[:k] = cos
        return
    at = k + 2 * k * speeds.index(abs(velocity))
    out[at : at + k] = cos
    out[at + k : at + 2 * k] = np.sign(velocity) * sin
