"""From words to a whole scene: what the prompt leaves open is drawn from a seed, overlaps kept rare."""

from dataclasses import dataclass, replace

import numpy as np

from fastcache.world.words import COLORS, DIRECTIONS, PLACES, SHAPES, SPEEDS, TEXTURES, PromptWords, SpriteWords

SIZE = 32  # pixels, both ways
FRAMES = 21
RADIUS = 4.5  # pixels
SPAN = SIZE - 2 * RADIUS  # a sprite's centre moves within [RADIUS, RADIUS + SPAN] and bounces at the ends


@dataclass(frozen=True)
class Sprite:
    """One sprite as the text tells it: ``start`` (x, y) of its centre in pixels, ``velocity`` in pixels a frame."""

    color: str
    shape: str
    start: tuple[float, float]
    velocity: tuple[float, float]

    def track(self, frames: np.ndarray) -> np.ndarray:
        """Centres [T, 2] (x, y) in pixels at the given frame numbers, bounces included."""
        return bounce(np.array(self.start) + np.array(self.velocity) * np.asarray(frames, float)[:, None])


@dataclass(frozen=True)
class Wanderer(Sprite):
    """A sprite whose track no words tell: it sways by ``sway`` (x, y) pixels, at ``pace`` radians a frame."""

    sway: tuple[float, float] = (0.0, 0.0)
    pace: tuple[float, float] = (0.0, 0.0)
    phase: tuple[float, float] = (0.0, 0.0)

    def track(self, frames: np.ndarray) -> np.ndarray:
        t = np.asarray(frames, float)[:, None]
        swing = np.sin(np.array(self.phase) + np.array(self.pace) * t) - np.sin(self.phase)
        return bounce(np.array(self.start) + np.array(self.velocity) * t + np.array(self.sway) * swing)


@dataclass(frozen=True)
class Scene:
    sprites: tuple[Sprite, ...]  # later ones are drawn on top
    ground_color: str
    texture: str


def bounce(position: np.ndarray) -> np.ndarray:
    """Fold an unbounded coordinate into [RADIUS, RADIUS + SPAN], reflecting at both ends."""
    folded = np.mod(position - RADIUS, 2 * SPAN)
    return RADIUS + np.minimum(folded, 2 * SPAN - folded)


def settle(words: PromptWords, rng: np.random.Generator, tries: int = 24) -> Scene:
    """Draw what the words leave open; of ``tries`` drafts the one whose sprites come least close is kept."""
    count = len(words.sprites)
    directions = [sprite.direction or rng.choice(list(DIRECTIONS)) for sprite in words.sprites]
    heading = np.array([DIRECTIONS[d] for d in directions], float)
    speed = np.stack([_speeds(sprite, rng, tries) for sprite in words.sprites], 1)
    velocity = heading[None] * speed[:, :, None]
    start = np.stack([_starts(sprite, heading[i], rng, tries) for i, sprite in enumerate(words.sprites)], 1)
    track = bounce(start[:, :, None] + velocity[:, :, None] * np.arange(FRAMES)[:, None])  # [tries, sprites, T, 2]
    gap = np.full(tries, np.inf)
    for a in range(count):
        for b in range(a):
            gap = np.minimum(gap, np.abs(track[:, a] - track[:, b]).max(-1).min(-1))
    free = np.flatnonzero(gap >= 2.2 * RADIUS)
    best = int(free[0]) if len(free) else int(np.argmax(gap))
    sprites = tuple(
        Sprite(sprite.color, sprite.shape, tuple(start[best, i].tolist()), tuple(velocity[best, i].tolist()))
        for i, sprite in enumerate(words.sprites)
    )
    ground = words.ground_color or str(rng.choice(list(COLORS)))
    return Scene(sprites, ground, words.texture or str(rng.choice(TEXTURES)))


def _speeds(sprite: SpriteWords, rng: np.random.Generator, tries: int) -> np.ndarray:
    if sprite.speed:
        return np.full(tries, SPEEDS[sprite.speed])
    return rng.choice(list(SPEEDS.values()), tries)


def _starts(sprite: SpriteWords, heading: np.ndarray, rng: np.random.Generator, tries: int) -> np.ndarray:
    """In the stated third of the frame both ways; unstated, where there is room to move as told before a bounce."""
    roomy = np.where(heading > 0, 0, np.where(heading < 0, 2, rng.integers(0, 3, (tries, 2))))
    cell = roomy if sprite.place is None else np.array(PLACES[sprite.place])
    return RADIUS + SPAN * (cell + rng.random((tries, 2))) / 3


def random_words(rng: np.random.Generator) -> PromptWords:
    """A random prompt of the training distribution: one to three sprites, mostly of different colors."""
    count = int(rng.choice([1, 2, 3], p=[0.25, 0.4, 0.35]))
    colors = list(rng.permutation(list(COLORS))[:count])
    if count > 1 and rng.random() < 0.08:
        colors[1] = colors[0]
    still = rng.random(count) < 0.3
    sprites = tuple(
        SpriteWords(
            str(color),
            str(rng.choice(SHAPES)),
            "stays" if still[i] else str(rng.choice(["left", "right", "up", "down"])),
            None if rng.random() < 0.5 else str(rng.choice(list(SPEEDS))),
            None if rng.random() < 0.6 else str(rng.choice(list(PLACES))),
        )
        for i, color in enumerate(colors)
    )
    return PromptWords(sprites, str(rng.choice(list(COLORS))), str(rng.choice(TEXTURES)))


def random_scene(rng: np.random.Generator) -> Scene:
    return settle(random_words(rng), rng)


def wander(scene: Scene, rng: np.random.Generator) -> Scene:
    """The scene with sprites that sway about their ways at random."""
    sprites = tuple(
        Wanderer(
            s.color,
            s.shape,
            s.start,
            s.velocity,
            tuple(rng.uniform(2, 7, 2).tolist()),
            tuple(rng.uniform(0.15, 0.5, 2).tolist()),
            tuple(rng.uniform(0, 2 * np.pi, 2).tolist()),
        )
        for s in scene.sprites
    )
    return replace(scene, sprites=sprites)
