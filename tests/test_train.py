"""Training: teacher forcing is the cached rollout in one forward, a stop loses nothing, and the loss falls."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from fastcache.errors import UserError
from fastcache.forwards import allocate
from fastcache.kv_cache import CausalContext, VanillaKVCacheEngine
from fastcache.models.tiny import LAYOUTS, build, load, tiny_config
from fastcache.models.tiny_latents import decode, encode
from fastcache.models.weights import save_weights
from fastcache.train import Trainer, main
from fastcache.training.data import make_batch
from fastcache.training.forcing import forward
from fastcache.training.init import init_tiny
from fastcache.training.muon import Muon, orthogonalise
from fastcache.training.recipe import Recipe, flow_loss


def initialised(layout="t2v"):
    torch.manual_seed(0)
    model = build(small(layout))
    init_tiny(model)
    for block in getattr(model, "vace_blocks", []):  # hints start at zero, which would hide the control
        torch.nn.init.normal_(block.after_proj.weight, std=0.1)
    return model.eval().requires_grad_(False)


def small(layout):
    """Three blocks, two of VACE."""
    whole = tiny_config(layout)
    return replace(whole, num_layers=3, vace_layers=whole.vace_layers[:2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_teacher_forcing_equals_the_cached_rollout(layout) -> None:
    """All chunks at once, clean past beside noisy present, is chunk by chunk through the engine with store passes."""
    dit = initialised(layout)
    batch = make_batch(np.random.default_rng(0), 3, 1, layout)
    t = torch.tensor([[1000.0] * 3 + [937.5] * 3 + [625.0] * 3])
    noisy = batch.latents + torch.randn(batch.latents.shape, generator=torch.Generator().manual_seed(1))
    draw = torch.Generator().manual_seed(2)
    first, second = (
        [None if x is None else torch.randn(x.shape, generator=draw) for x in batch.shown] for _ in range(2)
    )
    image, channels, control = first
    together = forward(dit, batch.latents[:, :-3], noisy, t, batch.text, dit_features(9), *first)
    dit.set_kv_engines(lambda branch: VanillaKVCacheEngine())
    allocate(dit, "pos", 1, 9 * 64)
    for chunk in range(3):
        own = slice(3 * chunk, 3 * chunk + 3)
        where = dict(cache_engines=dit.kv_cache_engines, cur_start_frame=3 * chunk, num_frames=3, frame_seqlen=64)

        def joined(latent, own=own):
            return latent[:, own] if channels is None else torch.cat((latent[:, own], channels[:, own]), 2)

        shown = image, None if control is None else control[:, own]
        with torch.inference_mode():
            alone = dit(joined(noisy), t[:, own], batch.text, CausalContext(**where, chunk_size=3, is_ar=True), *shown)
            store = CausalContext(**where, chunk_size=3, is_ar=True, store_kv=True)
            dit(joined(batch.latents), torch.zeros(1, 3), batch.text, store, *shown)
        assert torch.allclose(alone, together[:, own], atol=3e-5), chunk
    if layout != "t2v":
        other = forward(dit, batch.latents[:, :-3], noisy, t, batch.text, dit_features(9), *second)
        assert (other - together).abs().max() > 1e-3  # what is shown is read


def dit_features(frames: int) -> torch.Tensor:
    from fastcache.world.features import patch_features

    return torch.from_numpy(patch_features(0, frames)).view(1, frames, 64, -1)


def test_latents_are_pixels_in_another_basis() -> None:
    pixels = torch.rand(1, 3, 32, 32, 3, generator=torch.Generator().manual_seed(0))
    frames = decode(encode(pixels))
    assert np.abs(frames.astype(float) - 255 * pixels[0].numpy()).max() <= 0.51
    batch = make_batch(np.random.default_rng(0), 0, 64)
    assert abs(float(batch.latents.mean())) < 0.2 and 0.8 < float(batch.latents.std()) < 1.2


def test_batches_are_addressed_and_weighted() -> None:
    a, b = (make_batch(np.random.default_rng(3), 2, 2) for _ in range(2))
    assert torch.equal(a.latents, b.latents) and a.latents.shape == (2, 6, 12, 16, 16)
    assert float(a.weight.mean()) == pytest.approx(1, abs=1e-5) and float(a.weight.max() / a.weight.min()) > 2.5


@pytest.mark.parametrize("renoise", [False, True])
def test_the_loss_of_a_perfect_prediction_is_zero(renoise: bool, monkeypatch) -> None:
    """flow = noise - x0 at the noise that was added; of a re-noised input too, towards the true x0."""
    batch = make_batch(np.random.default_rng(0), 2, 1)

    def perfect(dit, clean, noisy, t, text, features, *shown):
        return (noisy - batch.latents) / (t / 1000)[:, :, None, None, None]

    monkeypatch.setattr("fastcache.training.recipe.forward", perfect)
    loss = flow_loss(None, batch, torch.Generator().manual_seed(0), Recipe(), renoise)
    assert float(loss) < 1e-10


def test_muon_orthogonalises_and_descends() -> None:
    grad = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(grad, steps=6))
    assert values.min() > 0.5 and values.max() < 1.5
    target = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
    weight = torch.nn.Parameter(torch.zeros(24, 16))
    optimizer = Muon([weight], lr=0.2)
    for _ in range(60):
        loss = (weight - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2 * float(target.square().mean())


@pytest.mark.slow
def test_a_stopped_training_goes_on_where_it_was(tmp_path) -> None:
    def trainer(out: str) -> Trainer:
        return Trainer(Recipe(minutes=1e6, out=str(tmp_path / out), frames=4, frames_until=1.0))

    whole, part = trainer("whole"), trainer("part")
    whole.run(until=6)
    part.run(until=3)
    again = trainer("part")
    assert again.iteration == 3 and again.seconds > 0
    again.run(until=6)
    for a, b in zip(whole.average.values(), again.average.values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_weights_that_do_not_fit_are_refused(tmp_path) -> None:
    state = build(tiny_config()).state_dict()
    good, short, odd = (tmp_path / f"{name}.safetensors" for name in ("good", "short", "odd"))
    save_weights(state, good, torch.float16, {"note": {"a": 1}})
    assert load(good).dit.config.dim == 192
    short.write_bytes(good.read_bytes()[:100_000])
    with pytest.raises(UserError, match="complete"):
        load(short)
    state["head.modulation"] = torch.zeros(1, 2, 8)
    del state["patch_embedding.bias"]
    save_weights(state, odd, torch.float16, {})
    with pytest.raises(UserError, match=r"head.modulation is \[1, 2, 8\].*patch_embedding.bias is missing"):
        load(odd)
    with pytest.raises(UserError, match="no such file"):
        load(tmp_path / "none.safetensors")


def test_help_lists_every_key_and_its_default(capsys):
    main(["--help"])
    told = capsys.readouterr().out
    assert "minutes=90.0" in told and all(f"\n  {field.name}=" in told for field in fields(Recipe))
