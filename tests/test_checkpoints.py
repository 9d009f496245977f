"""Every known writer's checkpoint becomes the same DiT, mapped from its files."""

import gc
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_toys import CONFIGS, WRITERS, inner_model, sharded, state
from safetensors.torch import save_file

from fastcache.checkpoints.__main__ import main
from fastcache.checkpoints.convert import convert
from fastcache.checkpoints.names import to_diffusers, to_original
from fastcache.checkpoints.reading import read
from fastcache.models.config import DiTConfig
from fastcache.models.dit import CausalWanDiT
from fastcache.models.wan_sizes import WAN_SIZES
from fastcache.models.weights import checkpoint_config, load_checkpoint

WRITTEN = {  # parameters and tensors of the published models, as the original classes have them
    "t2v_1_3b": (1_418_996_800, 825),
    "t2v_14b": (14_288_491_584, 1095),
    "i2v_14b": (16_394_878_784, 1303),
    "vace_1_3b": (2_153_972_032, 1264),
    "vace_14b": (17_337_592_896, 1331),
}


def assert_holds(dit: CausalWanDiT, weights: dict[str, torch.Tensor]) -> None:
    found = dit.state_dict()
    assert found.keys() == weights.keys()
    for name in weights:
        assert torch.equal(found[name], weights[name]), name


def mapped(folder: Path) -> list[range]:
    """Addresses that files under ``folder`` back, as the kernel tells them."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    return [range(*(int(part, 16) for part in line.split()[0].split("-"))) for line in lines]


@pytest.mark.slow
def test_the_meta_device_needs_no_compiler() -> None:
    code = (
        "import sys, torch; from fastcache.models import toy\n"
        "with torch.device('meta'): toy.CausalWanDiT(toy.toy_config(layout='vace'))\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", WAN_SIZES)
def test_published_sizes_have_the_published_counts(name: str) -> None:
    with torch.device("meta"):
        tensors = CausalWanDiT(WAN_SIZES[name]).state_dict().values()
    assert (sum(t.numel() for t in tensors), len(tensors)) == WRITTEN[name]


@pytest.mark.parametrize("layout", CONFIGS)
@pytest.mark.parametrize("writer", WRITERS)
def test_weights_come_back_bit_equal(tmp_path, writer: str, layout: str) -> None:
    path = WRITERS[writer](tmp_path, layout)
    dit = load_checkpoint(path, CONFIGS[layout])
    assert_holds(dit, state(layout))
    assert dit.config == CONFIGS[layout] and not dit.training
    assert not any(p.requires_grad for p in dit.parameters())
    inferred = checkpoint_config(read(path), heads=4)
    assert inferred == CONFIGS[layout]


@pytest.mark.parametrize("part, seed", [("generator", 1), ("generator_ema", 0), ("auto", 0)])
def test_one_of_several_models_is_chosen_by_name(tmp_path, part: str, seed: int) -> None:
    path = WRITERS["self_forcing"](tmp_path, "t2v")
    assert_holds(load_checkpoint(path, CONFIGS["t2v"], part=part), state("t2v", seed))
    assert read(path, part).part == ("generator.model" if part == "generator" else "generator_ema.model")


def test_a_teacher_beside_the_student_is_left_alone(tmp_path) -> None:
    path = WRITERS["fastgen_flat"](tmp_path, "vace")
    assert_holds(load_checkpoint(path, CONFIGS["vace"], part="teacher"), inner_model("vace"))
    unnamed = tmp_path / "unnamed.safetensors"
    save_file(state("t2v") | {f"teacher.{n}": t for n, t in inner_model("t2v").items()}, unnamed)
    assert_holds(load_checkpoint(unnamed, CONFIGS["t2v"], part="teacher"), inner_model("t2v"))


def test_names_map_one_to_one_and_swap_the_norms() -> None:
    for layout in CONFIGS:
        theirs = {to_diffusers(name): name for name in state(layout)}
        assert len(theirs) == len(state(layout))
        assert all(to_original(there) == here for there, here in theirs.items())
    assert to_diffusers("blocks.7.norm3.bias") == "blocks.7.norm2.bias"
    assert to_original("blocks.7.norm3.bias") == "blocks.7.norm2.bias"
    assert to_diffusers("vace_blocks.0.before_proj.weight") == "vace_blocks.0.proj_in.weight"
    assert to_diffusers("head.modulation") == "scale_shift_table"
    assert to_original("proj_out.bias") == "head.head.bias"
    assert to_original("blocks.3.attn2.norm_added_k.weight") == "blocks.3.cross_attn.norm_k_img.weight"
    assert to_diffusers("token_features.proj.weight") == "token_features.proj.weight"


def test_sizes_are_read_off_the_tensors(tmp_path) -> None:
    config = DiTConfig(**CONFIGS["t2v"].to_dict() | {"dim": 256, "num_heads": 2, "num_layers": 1})
    weights = {name: torch.zeros(t.shape) for name, t in CausalWanDiT(config).state_dict().items()}
    save_file(weights, tmp_path / "two_heads.safetensors")
    assert load_checkpoint(tmp_path / "two_heads.safetensors").config == config
    assert load_checkpoint(tmp_path / "two_heads.safetensors", heads=4).config == replace(config, num_heads=4)
    auto = load_checkpoint(tmp_path / "two_heads.safetensors", precision="wan_autocast")
    assert auto.config.precision == "wan_autocast"


def test_config_json_tells_what_tensors_do_not(tmp_path) -> None:
    odd = replace(CONFIGS["vace"], vace_layers=(0, 3), num_heads=2, eps=1e-5)
    weights = CausalWanDiT(odd).state_dict()
    save_file(weights, tmp_path / "odd.safetensors")
    for to in ("diffusers", "original"):
        config = replace(odd, vace_layers=(0, 2))  # evenly spread, as without config.json
        assert checkpoint_config(read(tmp_path / "odd.safetensors"), heads=2) == replace(config, eps=1e-6)
        convert(tmp_path / "odd.safetensors", tmp_path / to, to, heads=2)
        text = (tmp_path / to / "config.json").read_text()
        text = re.sub(r"(\"vace_layers\": \[\s*0,\s*)2", r"\g<1>3", text).replace("1e-06", "1e-05")
        (tmp_path / to / "config.json").write_text(text)
        assert load_checkpoint(tmp_path / to).config == odd


@pytest.mark.parametrize("layout", CONFIGS)
@pytest.mark.parametrize("shard", [10**9, 60_000])
def test_conversion_there_and_back_is_exact(tmp_path, layout: str, shard: int) -> None:
    source = WRITERS["self_forcing"](tmp_path, layout)
    there = convert(source, tmp_path / "there", "diffusers", heads=4, shard=shard)
    assert (len(there) > 3) == (shard < 10**9)
    convert(tmp_path / "there", tmp_path / "back", "original")
    assert read(tmp_path / "there").writer_names == "diffusers"
    assert read(tmp_path / "back").writer_names == "original"
    for folder in ("there", "back"):
        dit = load_checkpoint(tmp_path / folder)
        assert dit.config == CONFIGS[layout]
        assert_holds(dit, state(layout))


def test_the_converter_is_a_command(tmp_path, capsys) -> None:
    source = WRITERS["self_forcing"](tmp_path, "i2v")
    assert main([str(source)]) == 0
    told = capsys.readouterr().out
    count = sum(t.numel() for t in state("i2v").values())
    assert "Wan I2V (dim 48" in told and f"{count:,} parameters" in told and "generator_ema" in told
    assert main([str(source), str(tmp_path / "out"), "to=diffusers", "heads=4", "part=generator"]) == 0
    assert_holds(load_checkpoint(tmp_path / "out"), inner_model("i2v"))
    assert main([str(source), str(tmp_path / "out"), "to=diffusers", "heads=4"]) == 1
    assert "not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize("writer", ["self_forcing", "wan_file", "wan_folder", "diffusers_pipeline", "fastgen_nested"])
def test_parameters_stay_mapped_to_the_files(tmp_path, writer: str) -> None:
    path = WRITERS[writer](tmp_path, "vace")
    dit = load_checkpoint(path, CONFIGS["vace"])
    narrow = load_checkpoint(path, CONFIGS["vace"], dtype=torch.bfloat16)
    places = mapped(tmp_path)
    for name, parameter in dit.named_parameters():
        assert any(parameter.data_ptr() in place for place in places), name
    for name, parameter in narrow.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert not any(parameter.data_ptr() in place for place in places), name


def own_bytes() -> int:
    """Memory of this process that no file backs."""
    gc.collect()
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.parametrize("name", ["large.safetensors", "large.pt"])
def test_no_second_copy_in_memory(tmp_path, name: str) -> None:
    config = DiTConfig(**CONFIGS["t2v"].to_dict() | {"dim": 384, "ffn_dim": 2048, "num_heads": 4})
    weights = {n: torch.ones(t.shape) for n, t in CausalWanDiT(config).state_dict().items()}
    size = sum(t.nbytes for t in weights.values())
    assert size > 40_000_000
    save_file(weights, tmp_path / name) if "safe" in name else torch.save({"generator": weights}, tmp_path / name)
    del weights
    before = own_bytes()
    wide = load_checkpoint(tmp_path / name, config)
    assert sum(float(p.sum()) for p in wide.parameters()) * 4 == size  # every page was read
    assert own_bytes() - before < 0.1 * size
    before = own_bytes()
    narrow = load_checkpoint(tmp_path / name, config, dtype=torch.bfloat16)
    assert next(narrow.parameters()).dtype == torch.bfloat16
    assert own_bytes() - before < 0.6 * size


def test_the_precision_map_keeps_time_in_float32_unrounded(tmp_path) -> None:
    save_file(state("t2v"), tmp_path / "a.safetensors")
    config = replace(CONFIGS["t2v"], precision="wan_autocast")
    dit = load_checkpoint(tmp_path / "a.safetensors", config, dtype=torch.bfloat16)
    assert torch.equal(dit.time_projection[1].weight, state("t2v")["time_projection.1.weight"])
    assert torch.equal(dit.blocks[1].modulation, state("t2v")["blocks.1.modulation"])
    assert dit.blocks[1].ffn[0].weight.dtype == dit.patch_embedding.weight.dtype == torch.bfloat16


def test_an_index_may_be_named_and_shards_need_none(tmp_path) -> None:
    index = sharded(state("t2v"), tmp_path, "part", 3)
    assert_holds(load_checkpoint(index, CONFIGS["t2v"]), state("t2v"))
    index.unlink()
    assert_holds(load_checkpoint(tmp_path, CONFIGS["t2v"]), state("t2v"))


def test_tensors_that_no_model_reads_are_passed_over(tmp_path) -> None:
    extra = {"blocks.0.attn2.norm_added_q.weight": torch.ones(48), "rope.freqs_cos": torch.ones(2)}
    save_file({to_diffusers(n): t for n, t in state("t2v").items()} | extra, tmp_path / "old.safetensors")
    assert_holds(load_checkpoint(tmp_path / "old.safetensors", CONFIGS["t2v"]), state("t2v"))


def test_a_file_larger_than_memory_is_mapped(tmp_path) -> None:
    rows = 1 + os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 2 // 4_000_000
    header = {"patch_embedding.weight": {"dtype": "F32", "shape": [rows, 1_000_000]}}
    header["patch_embedding.weight"]["data_offsets"] = [0, rows * 4_000_000]
    text = json.dumps(header).encode()
    with (tmp_path / "huge.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + rows * 4_000_000)  # a hole: it takes no room on the disk
        file.seek(-4, os.SEEK_END)
        file.write(b"\x00\x00\x80\x3f")
    huge = read(tmp_path / "huge.safetensors").tensors["patch_embedding.weight"]
    assert huge.shape == (rows, 1_000_000) and huge[-1, -1] == 1 and huge[0, 0] == 0


def test_changing_a_mapped_parameter_leaves_the_file_alone(tmp_path) -> None:
    for writer in ("wan_file", "self_forcing"):
        path = WRITERS[writer](tmp_path, "t2v")
        before = path.read_bytes()
        dit = load_checkpoint(path, CONFIGS["t2v"])
        dit.head.modulation.zero_()
        assert path.read_bytes() == before
