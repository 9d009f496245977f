"""Small clips for the tests of metrics, media and tracking."""

import numpy as np


def scene(frames: int = 6, size: int = 32, seed: int = 0) -> np.ndarray:
    """uint8 [frames, size, size, 3]: a light square moves right by one pixel a frame over a still, textured ground."""
    ground = np.random.default_rng(seed).integers(60, 120, (size, size, 3), dtype=np.uint8)
    clip = np.repeat(ground[None], frames, axis=0)
    for t in range(frames):
        clip[t, 10:18, 6 + t : 14 + t] = (230, 200, 90)
    return clip


def noisy(clip: np.ndarray, amount: int, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(-amount, amount + 1, clip.shape)
    return np.clip(clip + noise, 0, 255).astype(np.uint8)
