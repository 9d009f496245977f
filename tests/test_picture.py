"""Reading a scene off its first frame, on rendered pictures and on those that a user might bring."""

import numpy as np
import pytest

from fastcache.errors import UserError
from fastcache.models import tiny_shown
from fastcache.world.picture import read_picture
from fastcache.world.render import draw_unsaid, render
from fastcache.world.scene import RADIUS, SPAN, random_words, settle
from fastcache.world.words import read_prompt, say

NEAR = 0.6  # px


def rendered(scene, rng):
    unsaid = draw_unsaid(scene, rng)
    frame, _ = render(scene, unsaid, [0])
    return (frame[0].clip(0, 1) * 255).round().astype(np.uint8), unsaid


def apart(scene):
    starts = np.array([sprite.start for sprite in scene.sprites])
    gaps = np.abs(starts[:, None] - starts[None]).max(-1) + 99 * np.eye(len(starts))
    return gaps.min() > 2.2 * RADIUS


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_sprites_are_found_where_they_were_drawn(count):
    """Random scenes whose sprites do not touch; what the words leave open is drawn from another seed."""
    seed = checked = 0
    errors = []
    while checked < count:
        seed += 1
        prompt = say(random_words(np.random.default_rng(seed)))
        scene = settle(read_prompt(prompt), np.random.default_rng(seed))
        if not apart(scene):
            continue
        checked += 1
        picture, unsaid = rendered(scene, np.random.default_rng((seed, 1)))
        found = read_picture(prompt, picture, np.random.default_rng(seed + 10_000))
        assert (found.ground_color, found.texture) == (scene.ground_color, scene.texture)
        centres = [
            np.clip(s.start + shift, RADIUS, RADIUS + SPAN)
            for s, shift in zip(scene.sprites, unsaid.shift, strict=True)
        ]
        looks = [(s.color, s.shape) for s in scene.sprites]
        assert [(s.color, s.shape) for s in found.sprites] == looks
        taken = set()
        for sprite in found.sprites:  # of those that look alike any may be meant
            gaps = [
                np.abs(np.array(sprite.start) - centre).max() if look == (sprite.color, sprite.shape) else np.inf
                for centre, look in zip(centres, looks, strict=True)
            ]
            taken.add(int(np.argmin(gaps)))
            errors.append(min(gaps))
        assert len(taken) == len(looks)
    assert max(errors) < NEAR, np.sort(errors)[-10:]


def test_the_words_tell_where_sprites_go_and_the_picture_where_they_are():
    prompt = "a red circle at the top left moves right slowly, on green stripes"
    scene = settle(read_prompt(prompt), np.random.default_rng(0))
    picture, _ = rendered(scene, np.random.default_rng(1))
    elsewhere = "a red circle at the bottom right moves up quickly, on green stripes"
    found = read_picture(elsewhere, picture, np.random.default_rng(5)).sprites[0]
    assert np.abs(np.array(found.start) - scene.sprites[0].start).max() < NEAR + 0.4
    assert found.velocity == (0.0, -1.5)


@pytest.mark.parametrize("seed", range(6))
def test_two_sprites_of_a_color_are_told_apart_by_their_shapes(seed):
    prompt = "a red cross at the left moves up, a red square at the right moves down, on blue plain"
    scene = settle(read_prompt(prompt), np.random.default_rng(seed))
    picture, _ = rendered(scene, np.random.default_rng((seed, 1)))
    swapped = "a red square moves down, a red cross moves up, on blue plain"
    cross, square = scene.sprites
    first, second = read_picture(swapped, picture, np.random.default_rng(9)).sprites
    for found, drawn in ((first, square), (second, cross)):
        assert np.abs(np.array(found.start) - drawn.start).max() < NEAR + 0.4
        assert found.velocity[0] == 0 and np.sign(found.velocity[1]) == np.sign(drawn.velocity[1])


@pytest.mark.parametrize("seed", range(6))
def test_of_sprites_that_look_alike_the_words_say_which_is_which(seed):
    left, right = "a white circle at the left moves up", "a white circle at the right stays"
    for prompt in (f"{left}, {right}, on blue dots", f"{right}, {left}, on blue dots"):
        scene = settle(read_prompt(prompt), np.random.default_rng(seed))
        picture, _ = rendered(scene, np.random.default_rng((seed, 1)))
        found = read_picture(prompt, picture, np.random.default_rng(seed + 100)).sprites
        for a, b in zip(found, scene.sprites, strict=True):
            assert np.abs(np.array(a.start) - b.start).max() < NEAR + 0.4


def test_specks_of_the_color_are_no_sprites():
    prompt = "a red circle moves left"
    picture = tiny_shown.first_frame("a red circle at the right stays, on blue plain", 0)
    picture[2:5, 2:6] = picture.reshape(-1, 3)[picture[..., 0].argmax()]
    for seed in range(6):
        (sprite,) = read_picture(prompt, picture, np.random.default_rng(seed)).sprites
        assert sprite.start[0] > 20


@pytest.mark.parametrize(("prompt", "missing"), [
    ("a green circle moves left", "green circle"), ("a red circle stays, a red square stays", "red square"),
    ("a yellow cross at the top stays", "yellow cross"),
])  # fmt: skip
def test_words_that_do_not_fit_the_picture_are_refused_in_a_sentence(prompt, missing):
    shown = tiny_shown.first_frame("a red circle at the center stays, on blue plain", 0)
    with pytest.raises(UserError, match=f"the picture shows no {missing}, but the prompt '{prompt}' tells of one"):
        tiny_shown.show_image(prompt, 0, 3, shown)


def test_a_picture_without_sprites_is_refused_and_so_is_a_photograph():
    gradient = np.linspace(0, 255, 32 * 32 * 3).reshape(32, 32, 3).astype(np.uint8)
    for picture in (np.zeros((32, 32, 3), np.uint8), np.full((32, 32, 3), 128, np.uint8), gradient):
        with pytest.raises(UserError, match="use words that fit the picture, or another picture: image=PATH"):
            tiny_shown.show_image("a green cross moves left", 0, 3, picture)


def test_a_sprite_at_the_border_starts_inside():
    """A user's sprite may stick out; where the model moves sprites it cannot."""
    picture = np.full((32, 32, 3), 20, np.uint8)
    picture[0:5, 28:32] = (237, 36, 31)
    (sprite,) = read_picture("a red square moves left", picture, np.random.default_rng(0)).sprites
    assert sprite.start == (RADIUS + SPAN, RADIUS)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_drawn_first_frame_belongs_to_the_prompt_and_the_seed(seed):
    prompt = "a purple triangle moves right, a white square stays"
    picture = tiny_shown.first_frame(prompt, seed)
    assert picture.shape == (32, 32, 3) and picture.dtype == np.uint8
    assert (tiny_shown.first_frame(prompt, seed) == picture).all()
    assert (tiny_shown.first_frame(prompt, seed + 3) != picture).any()
    scene = settle(read_prompt(prompt), np.random.default_rng(seed))
    found = tiny_shown.shown_scene(prompt, seed, picture)
    for a, b in zip(found.sprites, scene.sprites, strict=True):
        assert np.abs(np.array(a.start) - b.start).max() < NEAR + 0.4
        assert a.velocity == b.velocity
