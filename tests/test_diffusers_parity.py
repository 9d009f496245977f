"""The DiT against diffusers' Wan transformers on random weights, converted both ways."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_toys import CONFIGS
from diffusers import WanTransformer3DModel, WanVACETransformer3DModel
from torch import Tensor

from fastcache.checkpoints.convert import convert, diffusers_config, write
from fastcache.kv_cache import CausalContext
from fastcache.models import toy
from fastcache.models.dit import CausalWanDiT
from fastcache.models.weights import load_checkpoint

FRAMES, HEIGHT, WIDTH, BATCH = 3, 8, 6, 2
SCALES = (0.7, 1.3)
TOLERANCE = 1e-5


def theirs(layout: str) -> type:
    return WanVACETransformer3DModel if layout == "vace" else WanTransformer3DModel


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    """Latents, text and image tokens, control, and a timestep for each video of the batch."""
    draw = torch.Generator().manual_seed(3)
    shapes = {
        "latent": (BATCH, FRAMES, 36, HEIGHT, WIDTH),
        "text": (BATCH, 512, 24),
        "image": (BATCH, 257, 20),
        "control": (BATCH, FRAMES, 96, HEIGHT, WIDTH),
    }
    drawn = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    drawn["text"][0, 9:] = 0  # padding past a short prompt takes part in attention
    return drawn | {"t": torch.tensor([937.5, 312.25])}


def our_flow(dit: CausalWanDiT, layout: str, given: dict[str, Tensor]) -> Tensor:
    ctx = CausalContext(num_frames=FRAMES, frame_seqlen=HEIGHT * WIDTH // 4)
    image = given["image"] if layout == "i2v" else None
    control = given["control"] if layout == "vace" else None
    latent = given["latent"][:, :, : dit.config.in_dim]
    if layout == "vace":
        dit.vace_scale = SCALES
    return dit(latent, given["t"][:, None].expand(-1, FRAMES), given["text"], ctx, image, control)


def their_flow(model: Any, layout: str, given: dict[str, Tensor]) -> Tensor:
    """diffusers puts channels before frames and takes one timestep a video."""
    more: dict[str, Tensor] = {}
    if layout == "i2v":
        more["encoder_hidden_states_image"] = given["image"]
    if layout == "vace":
        more["control_hidden_states"] = given["control"].transpose(1, 2)
        more["control_hidden_states_scale"] = torch.tensor(SCALES)
    latent = given["latent"][:, :, : model.config.in_channels].transpose(1, 2)
    return model(latent, given["t"], given["text"], **more).sample.transpose(1, 2)


def their_model(layout: str) -> Any:
    """Every parameter random, as toy.build draws ours."""
    options = {k: v for k, v in diffusers_config(CONFIGS[layout].to_dict()).items() if k != "_class_name"}
    model = theirs(layout)(**options).eval()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            gain = "norm" in name and name.endswith("weight")
            weight.copy_(float(gain) + toy.WEIGHT_STD * torch.randn(weight.shape, generator=draw))
    return model


def assert_equal(ours: Tensor, reference: Tensor) -> None:
    assert reference.std() > 0.5  # says something
    assert (ours - reference).abs().max() < TOLERANCE


@pytest.mark.parametrize("layout", CONFIGS)
@torch.no_grad()
def test_our_weights_in_diffusers(tmp_path: Path, layout: str, inputs) -> None:
    dit = toy.build(CONFIGS[layout])
    write(dit.state_dict(), CONFIGS[layout].to_dict(), tmp_path / "wan", "diffusers")
    model = theirs(layout).from_pretrained(tmp_path / "wan").eval()
    assert_equal(our_flow(dit, layout, inputs), their_flow(model, layout, inputs))


@pytest.mark.parametrize("layout", CONFIGS)
@torch.no_grad()
def test_weights_of_diffusers_here(tmp_path: Path, layout: str, inputs) -> None:
    model = their_model(layout)
    model.save_pretrained(tmp_path / "pipeline" / "transformer")
    reference = their_flow(model, layout, inputs)
    dit = load_checkpoint(tmp_path / "pipeline")
    assert dit.config == CONFIGS[layout]
    assert_equal(our_flow(dit, layout, inputs), reference)
    convert(tmp_path / "pipeline", tmp_path / "original", "original")
    assert_equal(our_flow(load_checkpoint(tmp_path / "original"), layout, inputs), reference)


@pytest.mark.parametrize("layout", CONFIGS)
@torch.no_grad()
def test_the_comparison_can_fail(layout: str, inputs) -> None:
    """A single odd tensor of any kind shows in the flow, so parity speaks of every one of them."""
    dit = toy.build(CONFIGS[layout])
    reference = our_flow(dit, layout, inputs)
    kinds = {".".join(part for part in name.split(".") if not part.isdecimal()): name for name in dit.state_dict()}
    assert len(kinds) > 30
    for name in kinds.values():
        weight = dit.get_parameter(name)
        kept = weight.clone()
        weight.mul_(-1)
        assert (our_flow(dit, layout, inputs) - reference).abs().max() > 10 * TOLERANCE, name
        weight.copy_(kept)
