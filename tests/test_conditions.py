"""What I2V and VACE models are shown reaches the frames it belongs to, in the passes it belongs to, and no others."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastcache import api
from fastcache.condition import Condition
from fastcache.errors import UserError
from fastcache.methods.none import NoCache
from fastcache.models import tiny_shown, toy
from fastcache.noise import Noise
from fastcache.sample import rollout
from fastcache.sampler import FewStep

FRAMES, SIZE = 9, (16, 16)
NUMBERS = toy.LATENT_SHAPE[0]
PROMPT = "a red circle stays"


@pytest.fixture(scope="module")
def models():
    return {layout: toy.load(layout=layout) for layout in toy.LAYOUTS}


@pytest.fixture
def model(models, request):
    model = models[request.param]
    model.dit.set_kv_engines(lambda branch: api.VanillaKVCacheEngine())
    model.dit.prepare = type(model.dit).prepare.__get__(model.dit)
    return model


i2v = pytest.mark.parametrize("model", ["i2v"], indirect=True)
vace = pytest.mark.parametrize("model", ["vace"], indirect=True)


def roll(model, condition, frames=FRAMES, sampler=None):
    sampler = sampler or FewStep()
    return rollout(model, {"pos": NoCache()}, sampler, (True,) * 4, condition, frames, Noise(0).of(0)).latents


def noted(model):
    """(chunk, stores, latent, control) of every forward the DiT is prepared for."""
    seen, prepare = [], model.dit.prepare

    def looked(latent, t, context, ctx, control):
        seen.append((ctx.chunk_idx, ctx.store_kv, latent.clone(), None if control is None else control.clone()))
        return prepare(latent, t, context, ctx, control)

    model.dit.prepare = looked
    return seen


def picture(seed):
    return np.random.default_rng(seed).integers(0, 256, (*SIZE, 3), np.uint8)


def video(seed, frames=FRAMES):
    return np.random.default_rng(seed).integers(0, 256, (frames, *SIZE, 3), np.uint8)


@i2v
def test_the_mask_shows_frame_0_of_the_first_chunk_alone(model):
    seen = noted(model)
    condition = model.condition(PROMPT, 0, FRAMES, image=picture(1))
    roll(model, condition)
    assert len(seen) == 15 and condition.channels.shape == (1, FRAMES, 4 + NUMBERS, 8, 8)
    for chunk_idx, _, latent, _ in seen:
        given = latent[:, :, NUMBERS:]
        assert torch.equal(given, condition.channels[:, 3 * chunk_idx : 3 * chunk_idx + 3])
        mask = given[0, :, :4]
        assert mask[1:].eq(0).all() and mask[0].eq(float(chunk_idx == 0)).all()
    shown = toy.picture_latents(picture(1)[None])[0]
    assert torch.equal(seen[0][2][0, 0, NUMBERS + 4 :], shown)


@i2v
def test_channels_for_store_passes_are_used_in_no_other(model):
    seen = noted(model)
    condition = model.condition(PROMPT, 0, FRAMES)
    ones = condition.channels.clone()
    ones[:, :, :4] = 1
    same = roll(model, condition)
    assert torch.equal(roll(model, replace(condition, store_channels=condition.channels)), same)
    del seen[:]
    other = roll(model, replace(condition, store_channels=ones))
    for chunk_idx, store, latent, _ in seen:
        span = slice(3 * chunk_idx, 3 * chunk_idx + 3)
        assert torch.equal(latent[:, :, NUMBERS:], (ones if store else condition.channels)[:, span])
    assert torch.equal(other[:, :3], same[:, :3])  # nothing had been stored yet
    assert (other - same)[:, 3:].abs().max() > 1e-3


@i2v
def test_a_store_pass_that_does_not_happen_needs_no_channels(model):
    condition = model.condition(PROMPT, 0, FRAMES)
    sampler = FewStep(store="reuse_last")
    odd = replace(condition, store_channels=torch.full_like(condition.channels, 9.0))
    assert torch.equal(roll(model, condition, sampler=sampler), roll(model, odd, sampler=sampler))


@i2v
def test_the_picture_counts_both_ways(model):
    """Through the channels joined to the latent, and through cross-attention to the image tokens."""
    one, two = (model.condition(PROMPT, 0, FRAMES, image=picture(seed)) for seed in (1, 2))
    base = roll(model, one)
    for changed in (replace(one, image_embeds=two.image_embeds), replace(one, channels=two.channels)):
        assert (roll(model, changed) - base).abs().max() > 1e-2


@i2v
def test_channels_of_too_few_frames_are_refused(model):
    condition = model.condition(PROMPT, 0, 6)
    with pytest.raises(UserError, match="channels are of 6 latent frames, the video of 9"):
        roll(model, condition)
    longer = model.condition(PROMPT, 0, 12)
    assert torch.equal(roll(model, longer), roll(model, model.condition(PROMPT, 0, FRAMES)))


@vace
def test_the_control_is_cut_to_the_chunk(model):
    seen = noted(model)
    condition = model.condition(PROMPT, 0, FRAMES, control=video(1))
    roll(model, condition)
    assert len(seen) == 15
    for chunk_idx, _, _, control in seen:
        assert torch.equal(control, condition.control[:, 3 * chunk_idx : 3 * chunk_idx + 3])


@vace
@pytest.mark.parametrize("length", [1, 4, 6, 8])
def test_frames_that_a_control_is_short_of_are_zeros(model, length):
    seen = noted(model)
    whole = model.condition(PROMPT, 0, FRAMES, control=video(1))
    padded = whole.control.clone()
    padded[:, length:] = 0
    short = roll(model, replace(whole, control=whole.control[:, :length]))
    assert all(control.shape[1] == 3 for *_, control in seen)
    assert torch.equal(short, roll(model, replace(whole, control=padded)))
    assert torch.equal(short, roll(model, model.condition(PROMPT, 0, FRAMES, control=video(1, length))))
    assert (short - roll(model, whole)).abs().max() > 1e-3


@vace
def test_a_control_beyond_the_video_is_not_read(model):
    expected = roll(model, model.condition(PROMPT, 0, 6, control=video(1, 6)), frames=6)
    longer = video(1, 6), video(2, 30)
    condition = model.condition(PROMPT, 0, 6, control=np.concatenate(longer))
    assert torch.equal(roll(model, condition, frames=6), expected)
    uncut = replace(condition, control=torch.cat((condition.control, torch.full_like(condition.control, 9.0)), 1))
    assert torch.equal(roll(model, uncut, frames=6), expected)


@vace
@pytest.mark.parametrize("frame", [0, 2, 3, 8])
def test_the_control_of_a_later_chunk_changes_no_earlier_one(model, frame):
    first = video(1)
    second = first.copy()
    second[frame] = 255 - second[frame]
    chunk = frame // 3 * 3
    one, two = (roll(model, model.condition(PROMPT, 0, FRAMES, control=control)) for control in (first, second))
    assert torch.equal(one[:, :chunk], two[:, :chunk])
    assert (one - two)[:, chunk : chunk + 3].abs().max() > 1e-3


@pytest.mark.parametrize(("model", "given", "says"), [
    ("t2v", "image", "image= is given, but model=toy takes none; leave it out"),
    ("t2v", "control", "control= is given, but model=toy takes none; leave it out"),
    ("i2v", "control", "takes none; it takes image="),
    ("vace", "image", "takes none; it takes control="),
], indirect=["model"])  # fmt: skip
def test_a_model_takes_what_its_layout_reads(model, given, says):
    with pytest.raises(UserError, match=says):
        model.condition(PROMPT, 0, FRAMES, **{given: picture(0)})


@pytest.mark.parametrize("model", toy.LAYOUTS, indirect=True)
def test_bare_prompt_embeddings_are_a_condition_of_text(model):
    embeds = model.encode_prompt(PROMPT, 0)
    if not model.needs:
        assert torch.equal(roll(model, embeds), roll(model, Condition(embeds)))
        return
    with pytest.raises(UserError, match="needs an image|has 0 channels"):
        roll(model, embeds)


def test_frames_of_pixels():
    model = toy.load()
    assert [model.pixel_frames(frames) for frames in (1, 3, 21)] == [1, 3, 21]
    model.frames_per_latent = 4  # Wan: 81 frames are 21 latent ones
    assert [model.pixel_frames(frames) for frames in (1, 3, 21)] == [1, 9, 81]


def test_the_tiny_models_are_shown_wans_channels():
    """I2V: [mask | image latent], grey where nothing is shown; VACE: [inactive | reactive | mask], all reactive."""
    prompt = "a red circle at the center stays, on green stripes"
    image = tiny_shown.first_frame(prompt, 3)
    condition = tiny_shown.show_image(prompt, 3, 6, image)
    shown = tiny_shown.encode(torch.from_numpy(image)[None].float() / 255)[0]
    grey = tiny_shown.encode(torch.full((32, 32, 3), 0.5)[None])[0]
    assert condition.channels.shape == (1, 6, 16, 16, 16)
    assert condition.channels[0, :, :4].sum((1, 2, 3)).tolist() == [4 * 256, 0, 0, 0, 0, 0]
    assert torch.equal(condition.channels[0, 0, 4:], shown)
    assert all(torch.allclose(condition.channels[0, f, 4:], grey, atol=1e-6) for f in range(1, 6))
    assert condition.image_embeds.shape == (1, 64, 48 + 16)
    token = condition.image_embeds[0, 8 * 5 + 2]  # patch row 5, column 2
    assert torch.equal(token[:48].view(12, 2, 2), shown[:, 10:12, 4:6])
    assert token[48:].nonzero().flatten().tolist() == [5, 8 + 2]

    control = tiny_shown.layout_video(prompt, 3, 4)
    condition = tiny_shown.show_control(prompt, 3, 6, control)
    assert condition.control.shape == (1, 6, 28, 16, 16)
    inactive, reactive, mask = condition.control[0, :4].split((12, 12, 4), dim=1)
    assert torch.allclose(inactive, grey.expand_as(inactive), atol=1e-6) and mask.eq(1).all()
    assert torch.equal(reactive, tiny_shown.encode(torch.from_numpy(control).float() / 255))
    assert condition.control[0, 4:].eq(0).all()
