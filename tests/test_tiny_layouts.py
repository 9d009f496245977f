"""The bundled I2V and VACE models do what they are shown, and their papers are in order."""

import re

import numpy as np
import pytest

from fastcache import api
from fastcache.models.tiny import WEIGHTS
from fastcache.models.tiny_latents import decode
from fastcache.models.tiny_shown import first_frame, layout_video
from fastcache.models.weights import file_hash
from fastcache.training import quality
from fastcache.world.measure import look, summary
from fastcache.world.scene import FRAMES

PROMPT = "a red circle moves right, a blue square stays, on green stripes"


@pytest.fixture(scope="module", params=["tiny_i2v", pytest.param("tiny_vace", marks=pytest.mark.slow)])
def model(request):
    return api.load_model(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 16])
def test_sprites_are_where_they_are_shown(model, count: int) -> None:
    """I2V: where the first frame and the words lead; VACE: where the control shows them, swaying or straight."""
    verdict = summary(quality.sightings(model, count))
    assert verdict["n"] >= 3 * count
    assert verdict["near"] >= 0.95 and verdict["color"] >= 0.97 and verdict["shape"] >= 0.9
    assert verdict["median_error_px"] < 0.8


def test_i2v_keeps_the_first_frame_and_its_background() -> None:
    found = quality.kept(api.load_model("tiny_i2v"), 1)
    assert found["first"] > 24 and found["background"] > 28


def test_a_drawn_first_frame_needs_no_reading() -> None:
    """Two sprites of one color may touch in it; what was drawn is known."""
    model, prompt = api.load_model("tiny_i2v"), "a slow yellow square moves up, a fast yellow circle moves up"
    for seed in range(40):
        assert model.condition(prompt, seed, 3).image_embeds is not None


def test_another_picture_gives_another_video() -> None:
    """The words are the same: what differs is read off the picture."""
    model = api.load_model("tiny_i2v")
    pictures = [first_frame(PROMPT, seed) for seed in (1, 2)]
    videos = [api.generate(model, PROMPT, schedule="FFFF", frames=3, image=p).frames.astype(float) for p in pictures]
    for i, own in enumerate(videos):
        near, far = (np.square(own[0] - pictures[j].astype(float)).mean() for j in (i, 1 - i))
        assert near < 0.2 * far


@pytest.mark.slow
def test_sprites_leave_the_way_of_the_words_for_that_of_the_control() -> None:
    """A control that contradicts the words wins: the words say right, the control stays."""
    model = api.load_model("tiny_vace")
    stays = PROMPT.replace("moves right", "stays")
    control = layout_video(stays, 5, FRAMES)
    scene = quality.settle(quality.read_prompt(stays), np.random.default_rng(5))
    verdict = summary(look(api.generate(model, PROMPT, schedule="FFFF", seed=5, control=control).frames, scene))
    assert verdict["near"] == 1


@pytest.mark.parametrize("name", ["tiny_i2v", "tiny_vace"])
def test_card_and_weights_belong_together(name: str) -> None:
    weights, card = WEIGHTS / f"{name}.safetensors", (WEIGHTS / f"{name}.md").read_text()
    assert weights.stat().st_size <= 15_000_000
    told = re.search(r"sha256 `([0-9a-f]{64})`", card)
    assert told and told[1] == file_hash(weights)
    for picture in re.findall(r"\]\((\w+\.png)\)", card):
        assert (WEIGHTS / picture).is_file()


@pytest.mark.slow
def test_a_video_of_a_case_is_decoded_whole(model) -> None:
    case = quality.unseen(model, 1)[0]
    assert decode(quality.generate(model, case)).shape == (FRAMES, 32, 32, 3)
