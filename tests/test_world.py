"""The procedural world: prompts, scenes, drawings, and the eye that judges generated videos."""

import numpy as np
import pytest

from fastcache.errors import UserError
from fastcache.world import features, measure, render, scene, words

EXAMPLE = "a red circle at the top left moves right slowly, a blue square stays, on green stripes"


def drawn(seed: int):
    rng = np.random.default_rng(seed)
    one = scene.random_scene(rng)
    video, covered = render.render(one, render.draw_unsaid(one, rng), np.arange(scene.FRAMES))
    return one, (video.clip(0, 1) * 255).round().astype(np.uint8), covered


def test_a_prompt_is_read_into_its_words() -> None:
    read = words.read_prompt(EXAMPLE)
    assert read.sprites[0] == words.SpriteWords("red", "circle", "right", "slow", "top left")
    assert read.sprites[1] == words.SpriteWords("blue", "square", "stays", None, None)
    assert (read.ground_color, read.texture) == ("green", "stripes")


def test_a_direction_is_no_place() -> None:
    assert words.read_prompt("a red circle moves left").sprites[0].place is None
    assert words.read_prompt("a red circle at the left moves right").sprites[0].place == "left"


@pytest.mark.parametrize("seed", range(40))
def test_saying_and_reading_a_prompt_are_inverse(seed: int) -> None:
    said = scene.random_words(np.random.default_rng(seed))
    assert words.read_prompt(words.say(said)) == said


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("a red cirlce moves left", "circle"),
        ("a pink square", "vocabulary"),
        ("", "0 sprites"),
        ("a red circle, a blue square, a green cross, a white circle", "4 sprites"),
        ("a circle moves left", "color"),
        ("a red circle blue square", "separate"),
        ("a red circle moves", "where"),
        ("a red circle moves left and stays", "color"),
        ("a red circle stays moves left", "both"),
        ("a red circle at the top top", "place"),
    ],
)
def test_a_prompt_that_cannot_be_read_says_why(prompt: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        words.read_prompt(prompt)


def test_an_unknown_word_lists_the_vocabulary() -> None:
    with pytest.raises(UserError) as caught:
        words.read_prompt("a red dragon moves left")
    assert all(word in str(caught.value) for word in ("circle", "purple", "stripes", "left"))


def test_what_is_said_is_kept_and_the_rest_follows_the_seed() -> None:
    read = words.read_prompt(EXAMPLE)
    a, b, c = (scene.settle(read, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert a == b and a != c
    for settled in (a, c):
        assert settled.sprites[0].velocity == (words.SPEEDS["slow"], 0)
        assert settled.sprites[1].velocity == (0, 0)
        assert max(settled.sprites[0].start) < scene.RADIUS + scene.SPAN / 3
        assert (settled.ground_color, settled.texture) == ("green", "stripes")


@pytest.mark.parametrize(
    ("direction", "axis", "sign"), [("left", 0, -1), ("right", 0, 1), ("up", 1, -1), ("down", 1, 1)]
)
def test_a_sprite_is_seen_to_move_as_told(direction: str, axis: int, sign: int) -> None:
    """Where the place is left open, a slow sprite goes the stated way from the first frame to the last."""
    read = words.read_prompt(f"a slow red circle moves {direction}, a blue square stays")
    for seed in range(20):
        track = scene.settle(read, np.random.default_rng(seed)).sprites[0].track(np.arange(scene.FRAMES))
        assert (sign * np.diff(track[:, axis]) > 0).all()


def test_a_track_bounces_inside_the_frame() -> None:
    track = scene.Sprite("red", "circle", (20.0, 10.0), (1.5, 0.0)).track(np.arange(100))
    low, high = scene.RADIUS, scene.RADIUS + scene.SPAN
    assert track.min() >= low and track.max() <= high
    steps = np.diff(track[:, 0])
    assert (np.abs(steps) <= 1.5 + 1e-9).all() and (steps > 0).any() and (steps < 0).any()
    assert np.isclose(np.abs(steps), 1.5).mean() > 0.8 and (track[:, 1] == 10).all()


def test_text_and_patch_features_meet_where_the_sprite_is() -> None:
    """The dot product of a sprite's text row with the patches of a frame peaks at the sprite's patch or next to it (the
    standing waves mirror the outermost patches onto their neighbours), at any time."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(60):
        one, frame = scene.random_scene(rng), int(rng.integers(scene.FRAMES))
        wave = features.WAVE_DIM
        match = features.patch_features(frame, 1)[:, :wave] @ features.text_features(one)[0, :wave]
        row, column = divmod(int(match.argmax()), features.PATCHES)
        x, y = one.sprites[0].track(np.array([frame]))[0]
        hits.append(max(abs((column + 0.5) * 4 - x), abs((row + 0.5) * 4 - y)) <= 6)
    assert np.mean(hits) > 0.6  # by chance: 0.15


def test_text_features_tell_scenes_apart() -> None:
    read = words.read_prompt(EXAMPLE)
    base = features.text_features(scene.settle(read, np.random.default_rng(0)))
    for changed in ("blue circle", "red cross", "red circle at the right"):
        other = words.read_prompt(EXAMPLE.replace("red circle", changed, 1).replace(" at the top left", "", 1))
        assert not np.array_equal(base, features.text_features(scene.settle(other, np.random.default_rng(0))))
    assert not base[3:].any()


def test_the_eye_finds_true_videos_right() -> None:
    found = [s for seed in range(32) for s in measure.look(drawn(seed)[1], drawn(seed)[0])]
    verdict = measure.summary(found)
    assert verdict["n"] > 100 and verdict["near"] == verdict["color"] == 1 and verdict["shape"] > 0.99


def test_the_eye_is_not_fooled() -> None:
    """Shifted, recoloured, reshaped and empty videos of known scenes are seen for what they are."""
    shifted, recoloured, reshaped, empty = [], [], [], []
    for seed in range(16):
        one, video, _ = drawn(seed)
        shifted += measure.look(np.roll(video, 3, axis=2), one)
        recoloured += measure.look(video[..., [1, 2, 0]], one)
        unsaid = render.draw_unsaid(one, np.random.default_rng(seed))
        swapped = {"circle": "cross", "cross": "circle", "square": "triangle", "triangle": "square"}
        sprites = tuple(scene.Sprite(s.color, swapped[s.shape], s.start, s.velocity) for s in one.sprites)
        other, _ = render.render(scene.Scene(sprites, one.ground_color, one.texture), unsaid, np.arange(21))
        reshaped += measure.look((other.clip(0, 1) * 255).astype(np.uint8), one)
        empty += measure.look(np.full_like(video, 40), one)
    assert measure.summary(shifted)["near"] < 0.1
    assert measure.summary(recoloured)["color"] < 0.4
    assert measure.summary(reshaped)["shape"] < 0.05
    assert not any(s.near or s.color_right for s in empty)


def test_scenes_are_addressed_by_their_seed() -> None:
    a, b = drawn(5), drawn(5)
    assert a[0] == b[0] and np.array_equal(a[1], b[1])


def test_background_stands_still_but_for_the_lamp() -> None:
    one, video, covered = drawn(3)
    free = covered.max(0) == 0
    change = np.abs(np.diff(video[:, free].astype(int), axis=0))
    assert free.any() and np.quantile(change, 0.95) <= 8
