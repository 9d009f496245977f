"""Estimates against exact counts, and refusals before anything is loaded."""

import pytest
import torch
from command import fastcache

from fastcache import cost, make, memory
from fastcache.cost import Sizes
from fastcache.methods.none import NoCache
from fastcache.models import toy
from fastcache.models.dit import CausalWanDiT
from fastcache.models.wan_sizes import WAN_SIZES

PARAMETERS = {
    "t2v_1_3b": 1_418_996_800,
    "t2v_14b": 14_288_491_584,
    "i2v_14b": 16_394_878_784,
    "vace_1_3b": 2_153_972_032,
    "vace_14b": 17_337_592_896,
}
LATENT = (16, 60, 104)


@pytest.mark.parametrize("size", PARAMETERS)
def test_parameters_of_the_published_sizes_are_counted_exactly(size):
    assert cost.parameters(WAN_SIZES[size]) == PARAMETERS[size]


@pytest.mark.parametrize("layout", ["t2v", "i2v", "vace"])
def test_parameters_of_odd_sizes_are_those_of_the_module(layout):
    config = toy.toy_config(layers=3, layout=layout)
    with torch.device("meta"):
        dit = CausalWanDiT(config)
    assert cost.parameters(config) == sum(p.numel() for p in dit.parameters())


def test_kv_is_counted_by_branch():
    """4680 tokens a chunk and 512 of text, in two tensors of 1536 numbers a block."""
    sizes = Sizes.of(WAN_SIZES["vace_1_3b"], LATENT, 3)
    assert sizes.tokens == 4680
    a_block = 2 * 1536 * 2 * (7 * 4680 + 512)
    assert cost.branch_kv_bytes(sizes, 7, 2) == {"main": 30 * a_block, "vace": 15 * a_block}
    assert cost.kv_bytes(sizes, 7, 2) == 45 * a_block
    assert cost.working_bytes(sizes, 2) == 45 * 2 * 1536 * 2 * 4680
    picture = Sizes.of(WAN_SIZES["i2v_14b"], LATENT, 3)
    assert cost.branch_kv_bytes(picture, 1, 2)["main"] == 40 * 2 * 5120 * 2 * (4680 + 769)


@pytest.mark.parametrize("layout", ["t2v", "vace"])
def test_counted_kv_is_what_the_engines_hold(layout):
    from fastcache import api

    model = api.load_model("toy", layout=layout)
    video = api.generate(model, "a red circle moves", frames=6)
    sizes = Sizes.of(model.dit.config, model.latent_shape, 3)
    assert video.rollout.kv_bytes == cost.kv_bytes(sizes, 2, 4)


def test_phases_follow_each_other_and_the_largest_counts():
    sizes = Sizes.of(WAN_SIZES["t2v_1_3b"], LATENT, 3)
    around = memory.Around(text=5_680_910_336, vae=126_892_531, vae_pixels=480 * 832)
    e = memory.estimate(sizes, 7, 2, NoCache(), around)
    assert e.phases["encoding text"] == 2 * 5_680_910_336 == e.peak
    assert e.phases["rollout"] == e.weights + e.vae + e.kv["main"] + e.forward
    assert 5e9 < e.decoding < 7e9
    assert list(e.phases) == ["encoding text", "rollout", "decoding"]
    far = memory.estimate(sizes, 7, 2, NoCache(), around._replace(elsewhere=True))
    assert far.peak == e.phases["rollout"] < e.peak
    assert memory.estimate(sizes, 14, 2, NoCache(), around).kv["main"] > 1.9 * e.kv["main"]


def test_dry_tells_sizes_without_weights(capsys, tmp_path):
    words = ["model=wan_t2v_14b", "dry=true", "device=cpu", "dtype=bfloat16", "frames=21", f"outputs={tmp_path}"]
    assert fastcache(*words, "prompt=a cat", "num_videos=1") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "parameters 14,288,491,584 in the DiT, 28.58 GB as bfloat16" in told
    assert "K/V main 27.26 GB for 21 frames" in told
    assert "encoding text 11.36 GB" in told
    assert not list(tmp_path.iterdir())


def test_what_cannot_fit_is_refused_before_it_is_loaded(capsys, tmp_path, monkeypatch):
    def absent(*_):
        raise AssertionError("a model was loaded")

    words = ["model=toy", "frames=30", f"outputs={tmp_path}", "method=none"]
    sizes = Sizes.of(toy.toy_config(), toy.LATENT_SHAPE, 3)
    room = memory.estimate(sizes, 5, 4, NoCache(), memory.Around()).peak  # what frames=15 takes
    with monkeypatch.context() as patch:
        patch.setattr(make, "get_model", absent)
        patch.setattr(memory, "available", lambda device: room)
        assert fastcache(*words) == 1
        assert "frames=15 is the most that fits" in capsys.readouterr().err
        patch.setattr(memory, "available", lambda device: 1000)
        assert fastcache(*words) == 1
        error = " ".join(capsys.readouterr().err.split())
        assert "no number of frames fits. Try dtype=bfloat16 or a smaller model" in error
        assert fastcache(*words, "dry=true") == 0
        assert "fits no: model=toy with frames=30 needs about" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(memory, "available", lambda device: None)  # nobody knows: it is tried
    assert fastcache(*words, "frames=3", "num_videos=1") == 0


def test_what_a_machine_has_left_is_read(tmp_path):
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 24000 kB\nMemAvailable:   12000 kB\n")
    assert memory._meminfo(info) == 12000 * 1024
    assert memory._meminfo(tmp_path / "gone") is None
    for name, text in (("memory.max", "1000\n"), ("memory.current", "700\n"), ("memory.stat", "inactive_file 50\n")):
        (tmp_path / name).write_text(text)
    assert memory._cgroup(tmp_path) == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._cgroup(tmp_path) is None
    assert memory.size(2_840_000_000) == "2.84 GB" and memory.size(400) == "0.4 kB"
