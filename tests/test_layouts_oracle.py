"""Each layout's whole forward equals the equations written out in float64."""

import pytest
import torch
from layout_oracle import Oracle

from fastcache.errors import UserError
from fastcache.kv_cache import CausalContext
from fastcache.models import toy
from fastcache.step import Grid

GRID = Grid(2, 4, 4)


def drawn(config, frames=GRID.frames, batch=2):
    draw = torch.Generator().manual_seed(4)
    size = toy.LATENT_SHAPE[1:]
    latent = torch.randn(batch, GRID.frames, config.in_dim, *size, generator=draw)
    t = 1000 * torch.rand(batch, GRID.frames, generator=draw)
    text = torch.randn(batch, config.text_len, config.text_dim, generator=draw)
    text[0, 3:] = 0  # padding takes part
    image = torch.randn(batch, config.image_len, config.image_dim, generator=draw) if config.image_dim else None
    control = torch.randn(batch, frames, config.vace_in_dim, *size, generator=draw) if config.vace_layers else None
    return latent, t, text, image, control


def make(layout, start=0):
    dit = toy.build(toy.toy_config(4, layout=layout))
    dit.vace_scale = (0.7, 1.6)[: len(dit.vace_scale)]
    ctx = CausalContext(num_frames=GRID.frames, frame_seqlen=GRID.tokens_per_frame, cur_start_frame=start)
    return dit, ctx


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("layout", toy.LAYOUTS)
@torch.no_grad()
def test_a_chunk_equals_the_equations(layout, start):
    dit, ctx = make(layout, start)
    latent, t, text, image, control = drawn(dit.config)
    ours = dit(latent, t, text, ctx, image, control)
    expected = Oracle(dit, GRID, start).flow(latent, t, text, image, control)
    assert expected.std() > 0.5
    assert (ours.double() - expected).abs().max() < 2e-5


@torch.no_grad()
def test_tokens_that_a_control_is_short_of_are_zeros():
    dit, ctx = make("vace")
    latent, t, text, image, control = drawn(dit.config, frames=1)
    ours = dit(latent, t, text, ctx, image, control)
    assert (ours.double() - Oracle(dit, GRID, 0).flow(latent, t, text, image, control)).abs().max() < 2e-5


@torch.no_grad()
@pytest.mark.parametrize("layout", ["i2v", "vace"])
def test_the_comparison_can_fail(layout):
    """What the layout adds shows in the flow, tensor by tensor."""
    dit, ctx = make(layout)
    given = drawn(dit.config)
    latent, t, text, image, control = given
    before = dit(latent, t, text, ctx, image, control)
    plain = toy.build(toy.toy_config(4)).state_dict()
    own = [name for name in dit.state_dict() if name not in plain]
    assert len(own) == {"i2v": 4 * 5 + 8, "vace": 2 * (27 + 2) + 1 * 2 + 2}[layout]
    for name in own:
        weight = dit.get_parameter(name)
        kept = weight.clone()
        weight.mul_(-1)
        assert (dit(latent, t, text, ctx, image, control) - before).abs().max() > 1e-3, name
        weight.copy_(kept)


@torch.no_grad()
@pytest.mark.parametrize(("layout", "change", "says"), [
    ("t2v", {"image": torch.zeros(2, 4, 20)}, "this t2v model takes no image"),
    ("i2v", {"image": None}, "this i2v model needs an image"),
    ("i2v", {"latent": torch.zeros(2, 2, 12, 8, 8)}, "the latent has 12 channels; this i2v model takes 28"),
    ("vace", {"control": None}, "the control has 0 channels; this vace model takes 28"),
    ("t2v", {"control": torch.zeros(2, 2, 28, 8, 8)}, "the control has 28 channels; this t2v model takes 0"),
    ("vace", {"control": torch.zeros(2, 3, 28, 8, 8)}, "3 frames of 8x8 and 2 frames of 8x8"),
    ("vace", {"control": torch.zeros(2, 2, 28, 8, 6)}, "2 frames of 8x6"),
])  # fmt: skip
def test_what_a_layout_is_not_shown_is_refused(layout, change, says):
    dit, ctx = make(layout)
    given = dict(zip(("latent", "t", "text", "image", "control"), drawn(dit.config), strict=True)) | change
    with pytest.raises(UserError, match=says):
        dit(given["latent"], given["t"], given["text"], ctx, given["image"], given["control"])
