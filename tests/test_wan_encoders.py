"""What surrounds a real Wan DiT, on tiny random instances of the very classes."""

import warnings

import numpy as np
import pytest
import torch
from wan_parts import save_encoders

from fastcache import encoders
from fastcache.errors import UserError
from fastcache.models.wan.conditions import all_given, control_channels, first_frame_channels
from fastcache.models.wan.image import MEAN, STD, ImageEncoder, preprocess
from fastcache.models.wan.text import PromptEncoder, clean
from fastcache.models.wan.vae import VideoVAE, pixel_frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_encoders(tmp_path_factory.mktemp("wan"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTCACHE_CACHE", str(tmp_path))
    return tmp_path


def prompts(folder, text_len=12, text_dim=24, dtype=torch.float32):
    return PromptEncoder(folder / "text_encoder", folder / "tokenizer", text_len, text_dim, dtype, "cpu")


def absent(*_, **__):
    raise AssertionError("the encoder was loaded again")


def test_prompts_are_cleaned_as_wan_does():
    assert clean("  a\n cat &amp;amp; dog \u00e2\u20ac\u2122s  ") == "a cat & dog 's"


def test_embeddings_are_those_of_the_padded_masked_encoder_with_zero_rows_past_the_prompt(folder):
    from transformers import UMT5EncoderModel

    rows = prompts(folder)("the red  cat moves")
    assert rows.shape == (1, 12, 24)
    ids = torch.tensor([[4, 5, 9, 10, 1] + [0] * 7])
    model = UMT5EncoderModel.from_pretrained(folder / "text_encoder").eval()
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state[:, :5]
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(rows[:, :5], expected, atol=1e-5, rtol=0)
    assert not rows[:, 5:].any()


def test_a_prompt_is_encoded_once_for_all_processes(folder, monkeypatch):
    first = prompts(folder)
    first.prepare(["a cat", "the cat", "a  cat "])
    assert len(list(first.kept.path("a cat").parent.iterdir())) == 2
    monkeypatch.setattr("transformers.UMT5EncoderModel.from_pretrained", absent)
    again = prompts(folder)
    assert torch.equal(again("a cat"), first("a cat"))
    with pytest.raises(UserError, match="loaded again"):  # another dtype is another embedding
        prompts(folder, dtype=torch.bfloat16)("a cat")
    assert prompts(folder, dtype=torch.float16).dtype == torch.bfloat16


def test_other_weights_make_other_embeddings(folder, tmp_path):
    import shutil

    from transformers import UMT5EncoderModel

    other = shutil.copytree(folder, tmp_path / "other")
    model = UMT5EncoderModel.from_pretrained(other / "text_encoder")
    with torch.no_grad():
        model.encoder.final_layer_norm.weight.mul_(2)
    model.save_pretrained(other / "text_encoder")
    torch.testing.assert_close(prompts(other)("a cat"), 2 * prompts(folder)("a cat"))


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_embeddings_are_made_again_and_said(folder, damage):
    first = prompts(folder)
    rows = first("a cat")
    path = first.kept.path("a cat")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-7]
    else:
        content[-7] ^= 0x40
    path.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match="is damaged"):
        assert torch.equal(prompts(folder)("a cat"), rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(prompts(folder)("a cat"), rows)


def test_prompts_and_encoders_that_do_not_fit_are_refused(folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="13 tokens; 12 are the most"):
        prompts(folder)("a " * 12)
    assert prompts(folder)("a " * 11).shape == (1, 12, 24)
    with pytest.raises(UserError, match="rows of 24; the DiT reads 32"):
        prompts(folder, text_dim=32)("a cat")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="text_encoder=.*empty cannot be loaded as UMT5EncoderModel"):
        PromptEncoder(tmp_path / "empty", folder / "tokenizer", 12, 24, torch.float32, "cpu")("a cat")


def test_an_encoder_with_weights_missing_is_refused(folder, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    part = shutil.copytree(folder / "text_encoder", tmp_path / "part")
    state = load_file(part / "model.safetensors")
    del state["encoder.block.1.layer.0.SelfAttention.q.weight"]
    save_file(state, part / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks weights of UMT5EncoderModel.*block.1.layer.0.SelfAttention.q.weight"):
        PromptEncoder(part, folder / "tokenizer", 12, 24, torch.float32, "cpu")("a cat")


def test_pictures_are_squashed_and_normalised():
    image = np.zeros((28, 56, 3), np.uint8)
    image[:, 28:] = 255
    pixels = preprocess(image, 28)
    assert pixels.shape == (1, 3, 28, 28)  # the whole width survives
    black, white = (torch.tensor([(v - m) / s for m, s in zip(MEAN, STD, strict=True)]) for v in (0, 1))
    torch.testing.assert_close(pixels[0, :, 3, 2], black)
    torch.testing.assert_close(pixels[0, :, 3, -3], white)


def test_image_tokens_are_the_layer_before_the_last_and_kept(folder, monkeypatch):
    from transformers import CLIPVisionModel

    image = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    tokens = ImageEncoder(folder / "image_encoder", 5, 32, torch.float32, "cpu")(image)
    model = CLIPVisionModel.from_pretrained(folder / "image_encoder").eval()
    seen = []
    model.encoder.layers[1].register_forward_hook(lambda _m, _i, out: seen.append(out))  # 2 of 3 blocks
    with torch.inference_mode():
        model(pixel_values=preprocess(image, 28))
    expected = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    torch.testing.assert_close(tokens, expected, atol=1e-6, rtol=0)
    monkeypatch.setattr("transformers.CLIPVisionModel.from_pretrained", absent)
    assert torch.equal(ImageEncoder(folder / "image_encoder", 5, 32, torch.float32, "cpu")(image), tokens)
    with pytest.raises(UserError, match="gives 5 tokens of 32; the DiT reads 257 of 1280"):
        ImageEncoder(folder / "image_encoder", 257, 1280, torch.float32, "cpu")(image)


def test_image_encoders_saved_by_older_programs_load(folder, tmp_path):
    """Their weights carry the prefix vision_model., as those of the published folders do."""
    import shutil

    from safetensors.torch import load_file, save_file

    old = shutil.copytree(folder / "image_encoder", tmp_path / "old")
    state = {
        f"vision_model.{k.removeprefix('vision_model.')}": v for k, v in load_file(old / "model.safetensors").items()
    }
    save_file(state, old / "model.safetensors", metadata={"format": "pt"})
    image = np.full((32, 48, 3), 200, np.uint8)
    a, b = (ImageEncoder(f, 5, 32, torch.float32, "cpu")(image) for f in (folder / "image_encoder", old))
    assert torch.equal(a, b)


def test_latents_are_normalised_with_wans_constants_and_come_back(folder):
    from diffusers import AutoencoderKLWan

    vae, model = VideoVAE(folder / "vae", torch.float32, "cpu"), AutoencoderKLWan.from_pretrained(folder / "vae").eval()
    pixels = torch.randn(5, 3, 32, 48).clamp(-1, 1)
    latents = vae.encode(pixels)
    assert latents.shape == (1, 2, 16, 4, 6)
    with torch.inference_mode():
        mu = model.encode(pixels.movedim(1, 0)[None]).latent_dist.mode()
        shown = model.decode(mu).sample
    torch.testing.assert_close(latents[:, :, 0], (mu[:, 0] + 0.7571) / 2.8184)
    torch.testing.assert_close(latents[:, :, 15], (mu[:, 15] + 0.2921) / 1.9160)
    frames = vae.decode(latents)
    assert frames.shape == (5, 32, 48, 3) and frames.dtype == np.uint8 and frames.std() > 0
    expected = ((shown[0].clamp(-1, 1) + 1) * 127.5).permute(1, 2, 3, 0).numpy()
    assert np.abs(frames - expected).max() < 0.51
    assert pixel_frames(21) == 81


def test_the_first_frame_is_told_by_mask_and_latent(folder):
    vae = VideoVAE(folder / "vae", torch.float32, "cpu")
    image = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    channels = first_frame_channels(vae, image, 3)
    assert channels.shape == (1, 3, 20, 4, 6)
    assert (channels[:, 0, :4] == 1).all() and not channels[:, 1:, :4].any()
    video = torch.zeros(9, 3, 32, 48)
    video[0] = torch.from_numpy(image).permute(2, 0, 1) / 127.5 - 1
    assert torch.equal(channels[:, :, 4:], vae.encode(video))
    stored = all_given(channels)
    assert (stored[:, :, :4] == 1).all() and torch.equal(stored[:, :, 4:], channels[:, :, 4:])


def test_a_control_video_fills_96_channels_and_zeros_follow_it(folder):
    vae = VideoVAE(folder / "vae", torch.float32, "cpu")
    control = np.random.default_rng(0).integers(0, 256, (9, 32, 48, 3), np.uint8)
    context = control_channels(vae, control, 3)
    assert context.shape == (1, 3, 96, 4, 6)
    video = torch.from_numpy(control).permute(0, 3, 1, 2) / 127.5 - 1
    assert torch.equal(context[:, :, :16], vae.encode(torch.zeros(9, 3, 32, 48)))
    assert torch.equal(context[:, :, 16:32], vae.encode(video))
    assert (context[:, :, 32:] == 1).all()
    assert torch.equal(control_channels(vae, np.concatenate((control, control)), 3), context)
    short = control_channels(vae, control[:6], 3)
    assert not short[:, 2].any()
    assert torch.equal(short[:, :2], control_channels(vae, control[:5], 2))


def test_a_vae_of_another_form_is_refused(tmp_path):
    from diffusers import AutoencoderKLWan

    AutoencoderKLWan(base_dim=4, num_res_blocks=1, z_dim=8).save_pretrained(tmp_path / "vae")
    with pytest.raises(UserError, match="has 8 channels and strides 8 and 4; the VAE of Wan2.1 has 16"):
        VideoVAE(tmp_path / "vae", torch.float32, "cpu").decode(torch.zeros(1, 1, 16, 4, 4))


def test_tiles_give_the_same_size(folder):
    latents = torch.randn(1, 1, 16, 40, 34)
    whole = VideoVAE(folder / "vae", torch.float32, "cpu").decode(latents)
    tiled = VideoVAE(folder / "vae", torch.float32, "cpu", tiling=True).decode(latents)
    assert whole.shape == tiled.shape == (1, 320, 272, 3)


def test_folders_are_found_together_or_one_by_one(folder, tmp_path):
    together = encoders.find({"encoders": str(folder)})
    assert set(together) == set(encoders.NAMES)
    mine = tmp_path / "mine"
    mine.mkdir()
    assert encoders.find({"encoders": str(folder), "vae": str(mine)})["vae"] == mine
    assert encoders.beside({"encoders": None}, folder)["encoders"] == str(folder)
    assert encoders.beside({"encoders": None}, tmp_path)["encoders"] is None
    with pytest.raises(UserError, match="no such folder"):
        encoders.find({"vae": str(tmp_path / "gone")})
    with pytest.raises(UserError, match="holds none of the folders"):
        encoders.find({"encoders": str(tmp_path)})
    with pytest.raises(UserError, match="model=wan_x needs text_encoder and vae; .*model.encoders=DIR"):
        encoders.needed({"encoders": None, "tokenizer": str(mine)}, ("text_encoder", "tokenizer", "vae"), "wan_x")
    before = encoders.hashes({"vae": str(mine)})
    (mine / "config.json").write_text("{}")
    assert encoders.hashes({"vae": str(mine)}) != before
    assert encoders.parameters(folder / "vae") > 100_000 and encoders.parameters(mine) == 0
