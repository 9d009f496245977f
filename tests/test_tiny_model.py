"""The bundled model shows what its prompts say, and its papers are in order."""

import re

import numpy as np
import pytest
import yaml

from fastcache import api, catalog
from fastcache.models.tiny import WEIGHTS
from fastcache.models.tiny_latents import decode
from fastcache.models.weights import file_hash
from fastcache.training import quality
from fastcache.world.measure import summary
from fastcache.world.words import COLORS


@pytest.fixture(scope="module")
def model():
    return api.load_model("tiny_t2v")


@pytest.mark.parametrize("count", [1, pytest.param(16, marks=pytest.mark.slow)])
def test_videos_follow_their_prompts(model, count: int) -> None:
    """The card's measurement in small, on other videos than a lucky one: positions, colours, shapes."""
    verdict = summary(quality.sightings(model, count))
    assert verdict["n"] >= 3 * count
    assert verdict["near"] >= 0.95 and verdict["color"] >= 0.97 and verdict["shape"] >= 0.9


def test_videos_are_no_blanks_stills_or_noise(model) -> None:
    case = quality.unseen(model, 4)[3]
    video = decode(quality.generate(model, case)).astype(float)
    assert video.std() > 20
    assert np.abs(np.diff(video, axis=0)).max(axis=(1, 2, 3)).min() > 40, f"nothing moves in {case.prompt!r}"
    rough = np.abs(np.diff(video, axis=2)).mean()
    assert (
        rough
        < 0.5 * np.abs(np.diff(np.random.default_rng(0).permutation(video.ravel()).reshape(video.shape), axis=2)).mean()
    )


@pytest.mark.parametrize("texture", ["stripes", "dots", "plain"])
def test_the_background_is_as_told(model, texture: str) -> None:
    """Colour from the words; stripes vary along rows only, dots both ways, plain hardly at all."""
    video = api.generate(model, f"a white circle at the center stays, on green {texture}", seed=3, frames=3).frames
    picture = video[1].astype(float)
    edge = np.concatenate([picture[:6].reshape(-1, 3), picture[-6:].reshape(-1, 3)]).mean(0)
    nearest = max(
        COLORS, key=lambda name: float(np.corrcoef(edge, np.array(COLORS[name]))[0, 1]) if name != "white" else -1
    )
    assert nearest == "green"
    top = picture[:8, :, 1]
    across, down = top.mean(0).std(), top.mean(1).std()
    if texture == "plain":
        assert across < 6 and down < 6
    elif texture == "stripes":
        assert across > 8 and down < 0.5 * across
    else:
        assert across > 3 and down > 3


def test_card_weights_and_shipped_fit_belong_together() -> None:
    weights = WEIGHTS / "tiny_t2v.safetensors"
    assert weights.stat().st_size <= 12_000_000
    told = re.search(r"sha256 `([0-9a-f]{64})`", (WEIGHTS / "tiny_t2v.md").read_text())
    fit = yaml.safe_load((catalog.CONF / "rescale" / "tiny_t2v.yaml").read_text())
    assert told and told[1] == file_hash(weights) == fit["fitted_on"]["weights"]
    for picture in re.findall(r"\]\((\w+\.png)\)", (WEIGHTS / "tiny_t2v.md").read_text()):
        assert (WEIGHTS / picture).is_file()
