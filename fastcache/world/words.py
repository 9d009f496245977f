"""The words a prompt may use, and how a prompt is read."""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from fastcache.errors import UserError

COLORS = {
    "red": (0.93, 0.14, 0.12),
    "green": (0.13, 0.76, 0.22),
    "blue": (0.18, 0.36, 0.97),
    "yellow": (0.96, 0.86, 0.14),
    "purple": (0.80, 0.28, 0.86),
    "white": (0.96, 0.96, 0.96),
}
SHAPES = ("circle", "square", "triangle", "cross")
TEXTURES = ("stripes", "dots", "plain")
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "stays": (0, 0)}
SPEEDS = {"slow": 0.75, "fast": 1.5}  # pixels a frame
PLACES = {
    f"{row} {column}".strip(): (x, y)
    for y, row in enumerate(("top", "", "bottom"))
    for x, column in enumerate(("left", "", "right"))
    if row or column
} | {"center": (1, 1)}
MAX_SPRITES = 3

_SPEED_WORDS = {"slow": "slow", "slowly": "slow", "fast": "fast", "quickly": "fast"}
_FILLER = {"a", "an", "the", "at", "in", "and", "with", "background", "over", "to", "it"}
_VERBS = {"moves", "moving", "goes"}
_STILL = {"stays", "still", "rests"}
_OTHER = {"top", "bottom", "center", "on"}
VOCABULARY = sorted({*COLORS, *SHAPES, *TEXTURES, *DIRECTIONS, *_SPEED_WORDS, *_FILLER, *_VERBS, *_STILL, *_OTHER})


@dataclass(frozen=True)
class SpriteWords:
    """What a prompt says of one sprite; None where it leaves the seed to choose."""

    color: str
    shape: str
    direction: str | None = None
    speed: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class PromptWords:
    sprites: tuple[SpriteWords, ...]
    ground_color: str | None = None
    texture: str | None = None


def read_prompt(prompt: str) -> PromptWords:
    """Parse words such as "a red circle at the top left moves right slowly, a blue square stays, on green stripes".

    Sprites are separated by commas or "and"; "on COLOR TEXTURE" ends the prompt and may be left out, as may places,
    directions and speeds. Raises UserError on an unknown word (listing the vocabulary), on no sprite and on more than
    three.
    """
    words = re.findall(r"[a-z']+|,", prompt.lower())
    for word in words:
        if word != "," and word not in VOCABULARY:
            close = get_close_matches(word, VOCABULARY, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise UserError(f"prompt word {word!r} is not known.{hint} The vocabulary: {', '.join(VOCABULARY)}")
    ground = words[words.index("on") + 1 :] if "on" in words else []
    phrases: list[list[str]] = [[]]
    for word in words[: words.index("on")] if "on" in words else words:
        if word in (",", "and"):
            phrases.append([])
        else:
            phrases[-1].append(word)
    sprites = tuple(_sprite(phrase, prompt) for phrase in phrases if phrase)
    if not 1 <= len(sprites) <= MAX_SPRITES:
        raise UserError(
            f"prompt {prompt!r} names {len(sprites)} sprites; 1 to {MAX_SPRITES} expected, "
            'e.g. "a red circle moves left, a blue square stays"'
        )
    color = _one(ground, COLORS, "background color", prompt)
    return PromptWords(sprites, color, _one(ground, TEXTURES, "texture", prompt))


def say(words: PromptWords) -> str:
    """The prompt that ``read_prompt`` reads as ``words``."""
    phrases = []
    for sprite in words.sprites:
        speed = f"{sprite.speed} " if sprite.speed else ""
        place = f" at the {sprite.place}" if sprite.place else ""
        moves = {None: "", "stays": " stays"}.get(sprite.direction, f" moves {sprite.direction}")
        phrases.append(f"a {speed}{sprite.color} {sprite.shape}{place}{moves}")
    if words.ground_color or words.texture:
        phrases[-1] += ", on " + " ".join(w for w in (words.ground_color, words.texture) if w)
    return ", ".join(phrases)


def _sprite(phrase: list[str], prompt: str) -> SpriteWords:
    color, shape = _one(phrase, COLORS, "color", prompt), _one(phrase, SHAPES, "shape", prompt)
    if color is None or shape is None:
        raise UserError(
            f"{' '.join(phrase)!r} in the prompt needs a color ({', '.join(COLORS)}) and a shape ({', '.join(SHAPES)})"
        )
    verb = next((i for i, word in enumerate(phrase) if word in _VERBS), None)
    before, after = (phrase, []) if verb is None else (phrase[:verb], phrase[verb:])
    direction = _one(after, DIRECTIONS, "direction", prompt)
    if any(word in _STILL for word in phrase):
        if verb is not None:
            raise UserError(f"{' '.join(phrase)!r} in the prompt both moves and stays; say one of them")
        direction = "stays"
    elif verb is not None and direction is None:
        raise UserError(f"{' '.join(phrase)!r} in the prompt moves, but not where to: left, right, up or down")
    speed = next((_SPEED_WORDS[word] for word in phrase if word in _SPEED_WORDS), None)
    place = " ".join(word for word in before if word in ("top", "bottom", "left", "right", "center")) or None
    if place is not None and place not in PLACES:
        raise UserError(f"place {place!r} in the prompt is not one of {', '.join(PLACES)}")
    return SpriteWords(color, shape, direction, speed, place)


def _one(words: list[str], known, what: str, prompt: str) -> str | None:
    found = [word for word in words if word in known]
    if len(found) > 1:
        said = " ".join(found)
        raise UserError(f"prompt {prompt!r}: one {what} expected where it says {said!r}; separate sprites by commas")
    return found[0] if found else None
