"""Training data and starts of the I2V and VACE layouts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastcache.errors import UserError
from fastcache.kv_cache import CausalContext
from fastcache.models.tiny import build, tiny_config
from fastcache.models.tiny_latents import decode, encode
from fastcache.models.weights import save_weights
from fastcache.train import Trainer
from fastcache.training.data import make_batch
from fastcache.training.init import go_on_from, init_tiny
from fastcache.training.recipe import Recipe, flow_loss
from fastcache.world.scene import FRAMES, RADIUS, SIZE, random_scene, wander


def small(layout="t2v"):
    whole = tiny_config(layout)
    return replace(whole, num_layers=3, vace_layers=whole.vace_layers[:2])


@pytest.mark.parametrize("chunks", [0, 2, 7])
def test_batches_of_i2v_show_the_first_frame_and_say_where(chunks):
    rng = np.random.default_rng(4)
    seen_first = 0
    for _ in range(10):
        batch = make_batch(rng, chunks, 3, "i2v")
        image, channels, control = batch.shown
        frames = 3 * chunks or 1
        assert control is None and image.shape == (3, 64, 64) and channels.shape == (3, frames, 16, 16, 16)
        mask, latents = channels.split((4, 12), dim=2)
        grey = encode(torch.full((32, 32, 3), 0.5)[None])
        for i in range(3):
            first = batch.features[i, :, 0].eq(batch_features(0)).all(-1)  # the frames numbered 0
            assert mask[i].eq(first.float()[:, None, None, None]).all()
            assert torch.allclose(latents[i, ~first], grey.expand(int((~first).sum()), -1, -1, -1), atol=1e-6)
            if first.any():
                seen_first += 1
                assert torch.allclose(latents[i, first], batch.latents[i, first].clamp(-9, 9), atol=0.3)
                patch = latents[i, first][0, :, 6:8, 10:12].reshape(-1)  # row 3, column 5
                assert torch.equal(image[i, 8 * 3 + 5, :48], patch)
    assert seen_first or chunks == 0


def batch_features(frame):
    """The features of patch 0 at a frame."""
    from fastcache.world.features import patch_features

    return torch.from_numpy(patch_features(frame, 1))[0]


@pytest.mark.parametrize("chunks", [0, 2, 7])
def test_batches_of_vace_show_the_sprites_where_the_video_has_them(chunks):
    rng = np.random.default_rng(2)
    ended, overlap = 0, []
    for _ in range(12):
        batch = make_batch(rng, chunks, 3, "vace")
        image, channels, control = batch.shown
        frames = 3 * chunks or 1
        assert image is None and channels is None and control.shape == (3, frames, 28, 16, 16)
        inactive, reactive, mask = control.split((12, 12, 4), dim=2)
        there = mask.flatten(2).amax(-1)
        assert there.eq(mask.flatten(2).amin(-1)).all() and set(there.unique().tolist()) <= {0, 1}
        assert control[there == 0].eq(0).all()
        assert (there.diff(dim=1) <= 0).all()  # a control that has ended stays so
        ended += int((there == 0).any(1).sum())
        for i in range(3):
            silhouettes = decode(reactive[i][None]).max(-1) > 60
            sprites = batch.weight[i, :, 0].repeat_interleave(2, 1).repeat_interleave(2, 2).numpy()
            near = sprites > 1.5 * sprites.min()  # the weights mark sprites, two pixels wider than they are
            for f in np.flatnonzero(there[i].numpy()):
                assert silhouettes[f].sum() > 20
                overlap.append((silhouettes[f] & near[f]).sum() / silhouettes[f].sum())
    assert np.mean(overlap) > 0.99
    assert chunks == 0 or ended


def test_the_text_of_vace_tells_nothing_of_places_and_that_of_i2v_where_the_picture_has_them():
    for seed in range(5):
        t2v, i2v, vace = (
            make_batch(np.random.default_rng(seed), 2, 1, layout).text for layout in ("t2v", "i2v", "vace")
        )
        waves = slice(0, 80)
        assert vace[0, :, waves].eq(0).all() and not t2v[0, :, waves].eq(0).all() and not i2v[0, :, waves].eq(0).all()
    grounds = [make_batch(np.random.default_rng(seed), 0, 1, "i2v").text[0, :, 80:].sum() for seed in range(30)]
    assert len(set(map(float, grounds))) > 1  # with and without the background's words


def test_wandering_sprites_stay_in_the_frame_and_leave_their_ways():
    strayed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        scene = random_scene(rng)
        for straight, sprite in zip(scene.sprites, wander(scene, rng).sprites, strict=True):
            track = sprite.track(np.arange(FRAMES))
            assert track.min() >= RADIUS - 1e-9 and track.max() <= SIZE - RADIUS + 1e-9
            assert np.allclose(track[0], straight.start)
            assert np.abs(np.diff(track, axis=0)).max() < 1.5 + 7 * 0.5 + 1e-9
            strayed += np.abs(track - straight.track(np.arange(FRAMES))).max() > 2
    assert strayed > 60


def flow(dit, latent, shown=(None, None, None)):
    image, channels, control = shown
    latent = latent if channels is None else torch.cat((latent, channels), 2)
    text = torch.randn(1, dit.config.text_len, dit.config.text_dim, generator=torch.Generator().manual_seed(2))
    ctx = CausalContext(num_frames=3, frame_seqlen=64)
    with torch.no_grad():
        return dit(latent, torch.tensor([[937.5, 833.3, 625.0]]), text, ctx, image, control)


def started(layout):
    """A text-to-video model of random weights, and one of a layout that goes on from it."""
    torch.manual_seed(1)
    plain, dit = build(small()), build(small(layout))
    init_tiny(plain)
    init_tiny(dit)
    with torch.no_grad():
        for weight in plain.parameters():
            weight.add_(0.02 * torch.randn(weight.shape))
    go_on_from(dit, plain.state_dict())
    return plain, dit


LATENT = torch.randn(1, 3, 12, 16, 16, generator=torch.Generator().manual_seed(3))


def test_vace_starts_as_the_text_to_video_model():
    """Its hints are zero at first, whatever the control."""
    plain, dit = started("vace")
    control = torch.randn(1, 3, 28, 16, 16, generator=torch.Generator().manual_seed(4))
    expected = flow(plain, LATENT)
    assert expected.std() > 0.1
    assert torch.equal(flow(dit, LATENT, (None, None, control)), expected)
    for block, index in zip(dit.vace_blocks, dit.config.vace_layers, strict=True):
        for name, weight in dit.blocks[index].state_dict().items():
            assert torch.equal(block.state_dict()[name], weight)
        torch.nn.init.eye_(block.after_proj.weight)
    assert (flow(dit, LATENT, (None, None, control)) - expected).abs().max() > 1e-2


def test_i2v_starts_as_the_text_to_video_model_but_for_its_image_tokens():
    """The new latent channels start silent; image tokens are read as text is, silent where their values are."""
    plain, dit = started("i2v")
    draw = torch.Generator().manual_seed(4)
    image, channels = torch.randn(1, 64, 64, generator=draw), torch.randn(1, 3, 16, 16, 16, generator=draw)
    expected, got = flow(plain, LATENT), flow(dit, LATENT, (image, channels, None))
    assert (got - expected).abs().max() > 1e-3
    assert torch.equal(got, flow(dit, LATENT, (image, 5 * channels, None)))
    for block in dit.blocks:
        cross = block.cross_attn
        assert torch.equal(cross.k_img.weight, cross.k.weight) and torch.equal(cross.v_img.bias, cross.v.bias)
        torch.nn.init.zeros_(cross.v_img.weight)
        torch.nn.init.zeros_(cross.v_img.bias)
    assert torch.equal(flow(dit, LATENT, (image, channels, None)), expected)


@pytest.mark.parametrize("layout", ["t2v", "i2v", "vace"])
def test_training_goes_on_from_a_text_to_video_model_of_its_size_alone(layout, tmp_path):
    good, other = (build(config).state_dict() for config in (small(), small("i2v")))
    dit = build(small(layout))
    go_on_from(dit, good)
    assert torch.equal(dit.blocks[1].ffn[0].weight, good["blocks.1.ffn.0.weight"])
    short = {name: weight for name, weight in good.items() if name != "head.head.bias"}
    for state, odd in ((other, "patch_embedding.weight"), (short, "head.head.bias"), (good | {"more": LATENT}, "more")):
        with pytest.raises(UserError, match=f"start= must name weights of a tiny text-to-video model; {odd} is not"):
            go_on_from(dit, state)
    path = tmp_path / "small.safetensors"
    save_weights(good, path, torch.float32, {})
    with pytest.raises(UserError, match="start= must name weights"):
        Trainer(Recipe(layout=layout, start=str(path), out=str(tmp_path / "out")))  # of six blocks


def test_an_unknown_layout_is_refused(tmp_path):
    with pytest.raises(UserError, match="layout=flf is not one of t2v, i2v, vace"):
        Trainer(Recipe(layout="flf", out=str(tmp_path)))


@pytest.mark.parametrize("layout", ["i2v", "vace"])
def test_every_new_weight_learns(layout):
    """One step's gradient reaches all of them, but the hints' ways while the hints are zero."""
    dit = build(small(layout))
    init_tiny(dit)
    for block in getattr(dit, "vace_blocks", []):
        torch.nn.init.normal_(block.after_proj.weight, std=0.1)
    torch.nn.init.normal_(dit.head.head.weight, std=0.1)
    batch = make_batch(np.random.default_rng(5), 7, 1, layout)
    assert batch.shown.control is None or batch.shown.control[:, 0].any()
    flow_loss(dit, batch, torch.Generator().manual_seed(0), Recipe(), renoise=False).backward()
    silent = [name for name, weight in dit.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert silent == []
