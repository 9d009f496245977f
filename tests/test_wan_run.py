"""A run on small random checkpoints of real Wan layouts, from the command line to the scores."""

import numpy as np
import pytest
from command import fastcache, only, read
from PIL import Image
from wan_parts import LAYOUT_SIZES, save_dit, save_encoders, words

from fastcache.media import write_mp4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = save_encoders(tmp_path_factory.mktemp("wan"))
    for size in LAYOUT_SIZES:
        save_dit(made / f"{size}.safetensors", size)
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(made / "first.png")
    write_mp4(made / "control.mp4", rng.integers(0, 256, (21, 32, 48, 3), np.uint8), 16)
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FASTCACHE_CACHE", str(tmp_path_factory.mktemp("cache")))


SHOWN = {"t2v_1_3b": [], "i2v_14b": ["image=first.png"], "vace_1_3b": ["control=control.mp4"]}


def shown(size, folder):
    return [word.replace("=", f"={folder}/") for word in SHOWN[size]]


# Text alone is run by default too, below.
SIZES = [pytest.param(size, marks=pytest.mark.slow if size != "i2v_14b" else ()) for size in LAYOUT_SIZES]


@pytest.mark.parametrize("size", SIZES)
def test_a_checkpoint_of_each_layout_is_run_and_scored(size, folder, out, monkeypatch):
    told = [*words(size, folder), *shown(size, folder), f"outputs={out}", "num_videos=1"]
    assert fastcache(*told, "method=motioncache", "thresh=0.3") == 0
    run = only(out, "motioncache-*")
    scores = read(run / "scores.json")
    assert scores["psnr"] is None or scores["psnr"] > 0
    assert 0 < scores["compute_fraction"] <= 1
    with np.load(run / "videos" / "0.npz") as file:
        frames = file["frames"]
    assert frames.shape == (21, 32, 48, 3) and frames.std() > 0

    def absent(*_, **__):
        raise AssertionError("the encoder was loaded again")

    monkeypatch.setattr("transformers.UMT5EncoderModel.from_pretrained", absent)
    monkeypatch.setattr("transformers.CLIPVisionModel.from_pretrained", absent)
    assert fastcache(*told, "method=reuse") == 0


def test_encoders_enter_the_signature_by_what_they_hold(folder, out, tmp_path_factory):
    moved = tmp_path_factory.mktemp("moved")
    (moved / "here").symlink_to(folder)
    told = [*words("t2v_1_3b", folder), f"outputs={out}", "num_videos=1", "method=none", "frames=3"]
    assert fastcache(*told) == 0
    assert fastcache(*told, f"model.encoders={moved}/here") == 0
    only(out, "none-*")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["weights=null"], "model=wan_t2v_1_3b needs a checkpoint: weights=PATH"),
        (["model.encoders=null"], "needs text_encoder and tokenizer and vae"),
        (["model.vae=/gone"], "model.vae=/gone: no such folder"),
        (["model.height=40"], "model.height=40: expected a multiple of 16"),
        (["model.size=t2v_2b"], "model.size=t2v_2b is not one of"),
        (["model.vae_dtype=int8"], "vae_dtype=int8 is not one of"),
        (["model.sizes={depth:3}"], "model.sizes: unexpected keyword argument 'depth'"),
        (["prompt=" + "a " * 20], "has 21 tokens; 20 are the most"),
        (["frames=1026"], "frames=1026 is more than the 1024 time positions"),
        (["frames=7"], "frames=7 is not a multiple of 3"),
        (["image=FOLDER/first.png"], "model=wan_t2v_1_3b takes neither image= nor control="),
        (["weights=FOLDER/vace_1_3b.safetensors"], "does not fit this model"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(folder, out, capsys, change, said):
    change = [word.replace("FOLDER", str(folder)) for word in change]
    keys = {word.partition("=")[0] for word in change}
    told = [word for word in words("t2v_1_3b", folder) if word.partition("=")[0] not in keys]
    assert fastcache(*told, *change, f"outputs={out}", "method=none", "num_videos=1") == 1
    error = capsys.readouterr().err
    assert said in " ".join(error.split()) and "Traceback" not in error


@pytest.mark.parametrize(("size", "said"), [("i2v_14b", "image=FILE"), ("vace_1_3b", "control=FILE")])
def test_what_a_model_is_shown_must_be_named(folder, out, capsys, size, said):
    told = [*words(size, folder), f"outputs={out}", "num_videos=1"]
    assert fastcache(*told, "method=none") == 1
    assert f"name one with {said}" in capsys.readouterr().err
    given = shown(size, folder)
    assert fastcache(*told, *given, "rescale=auto", "method=teacache") == 1
    assert "rescale=none" in capsys.readouterr().err


def test_a_missing_extra_is_named(folder, out, capsys, monkeypatch):
    monkeypatch.setattr("fastcache.models.wan.loading.find_spec", lambda name: None if name == "ftfy" else name)
    assert fastcache(*words("t2v_1_3b", folder), f"outputs={out}", "num_videos=1", "method=none") == 1
    error = capsys.readouterr().err
    assert 'need ftfy, not installed here: pip install -e ".[wan]"' in error and "Traceback" not in error


def test_guidance_leads_away_from_the_empty_prompt_of_the_text_encoder(folder, out, capsys):
    told = [*words("t2v_1_3b", folder), "num_videos=1", "method=none", "schedule=FFFF", "frames=3"]
    assert fastcache(*told, "guidance_scale=3", f"outputs={out}") == 0
    assert "not trained for guidance" not in capsys.readouterr().out
    with np.load(only(out, "none-*") / "videos" / "0.npz") as file:
        frames = file["frames"]
    assert fastcache(*told, f"outputs={out}/plain") == 0
    with np.load(only(out / "plain", "none-*") / "videos" / "0.npz") as file:
        assert (file["frames"] != frames).any()
