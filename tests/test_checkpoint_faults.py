"""Checkpoints that cannot be used say why, and run nothing."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from checkpoint_toys import CONFIGS, SIZES, WRITERS, inner_model, sharded, state
from command import fastcache, only
from omegaconf import OmegaConf
from safetensors.torch import save_file

from fastcache.checkpoints import hashing
from fastcache.checkpoints.__main__ import main
from fastcache.checkpoints.convert import convert
from fastcache.checkpoints.hashing import checkpoint_hash, file_hash
from fastcache.errors import UserError
from fastcache.models import tiny
from fastcache.models.config import DiTConfig
from fastcache.models.dit import CausalWanDiT
from fastcache.models.wan_sizes import WAN_SIZES
from fastcache.models.weights import load_checkpoint

T2V = CONFIGS["t2v"]


def said(path: Path, config: DiTConfig | None = T2V, **options) -> str:
    with pytest.raises(UserError) as error:
        load_checkpoint(path, config, **options)
    return str(error.value)


class Runs:
    """Unpickled without care, it makes a folder."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_pickle_that_would_run_code_is_refused(tmp_path) -> None:
    path, trace = tmp_path / "evil.pt", tmp_path / "ran"
    torch.save({"generator": state("t2v"), "hook": Runs(trace)}, path)
    message = said(path)
    assert "can run any code" in message and "posix.mkdir" in message and "state_dict()" in message
    assert not trace.exists()
    pickle.loads(pickle.dumps(Runs(trace)))
    assert trace.exists()  # it would have


def test_a_pickled_configuration_is_named(tmp_path) -> None:
    torch.save({"generator": state("t2v"), "config": OmegaConf.create({"a": 1})}, tmp_path / "a.pt")
    assert "omegaconf.dictconfig.DictConfig" in said(tmp_path / "a.pt")


def test_damaged_files(tmp_path) -> None:
    whole = WRITERS["self_forcing"](tmp_path, "t2v").read_bytes()
    wan = WRITERS["wan_file"](tmp_path, "t2v").read_bytes()
    cases = {
        "cut.pt": (whole[: len(whole) // 2], "complete"),
        "tail.pt": (whole[:-30], "complete"),
        "cut.safetensors": (wan[:-1000], "complete"),
        "header.safetensors": (wan[:500], "complete"),
        "empty.pt": (b"", "complete"),
        "text.safetensors": (b"not weights", "neither safetensors nor a torch checkpoint"),
        "pointer.pt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        "plain.pt": (pickle.dumps({"generator": 1}), "cannot be mapped"),
    }
    for name, (content, says) in cases.items():
        (tmp_path / name).write_bytes(content)
        message = said(tmp_path / name)
        assert says in message and str(tmp_path / name) in message, message
    torch.save(state("t2v"), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "torch.save(" in said(tmp_path / "old.pt")


def test_a_torch_file_too_large_to_map(tmp_path, monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise RuntimeError("unable to mmap 57000000000 bytes from file <x>: Cannot allocate memory (12)")

    path = WRITERS["self_forcing"](tmp_path, "t2v")
    monkeypatch.setattr(torch, "load", refuse)
    message = said(path)
    assert "larger than what this machine lets torch map" in message and "to=original" in message


def test_numbers_of_an_unknown_kind(tmp_path) -> None:
    header = json.dumps({"a": {"dtype": "U16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    assert "holds U16 numbers" in said(tmp_path / "a.safetensors")


def test_folders(tmp_path) -> None:
    assert "no such file or folder" in said(tmp_path / "nowhere")
    assert "holds no checkpoint" in said(tmp_path)
    for name in ("a", "b"):
        save_file(state("t2v"), tmp_path / f"{name}.safetensors")
    message = said(tmp_path)
    assert "a.safetensors, b.safetensors" in message and f"weights={tmp_path / 'a.safetensors'}" in message


def test_shards(tmp_path) -> None:
    index = sharded(state("t2v"), tmp_path, "x", 7)
    first = tmp_path / "x-00001-of-00007.safetensors"
    kept = first.read_bytes()
    first.unlink()
    assert "lacks 1 of its 7 shards: x-00001" in said(tmp_path)
    save_file({"patch_embedding.weight": state("t2v")["patch_embedding.weight"]}, first)
    assert "no shard holds it" in said(tmp_path)
    first.write_bytes(kept)
    index.unlink()
    (tmp_path / "x-00007-of-00007.safetensors").unlink()
    assert "lacks 1 of its 7 shards: x-00007" in said(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../b.safetensors"}}'])
def test_an_index_that_is_none(tmp_path, content: str) -> None:
    (tmp_path / "x.safetensors.index.json").write_text(content)
    assert "index" in said(tmp_path)


def test_other_layouts_and_sizes_are_told_in_words(tmp_path) -> None:
    for layout in CONFIGS:
        (tmp_path / layout).mkdir()
        path = WRITERS["diffusers_pipeline"](tmp_path / layout, layout)
        for wanted, config in CONFIGS.items():
            if wanted == layout:
                continue
            message = said(path, config)
            assert f"is a Wan {layout.upper()} (dim 48" in message
            assert f"this model, a Wan {wanted.upper()} (dim 48" in message
    message = said(tmp_path / "t2v", WAN_SIZES["i2v_14b"])
    assert "a Wan I2V-14B (dim 5120, ffn_dim 13824, 40 blocks, 36 input channels)" in message
    assert "patch_embedding.weight is [48, 16, 1, 2, 2], expected [5120, 36, 1, 2, 2]" in message
    assert message.count("expected [") == 5 and "more" in message


def test_missing_unexpected_and_odd_tensors_are_named(tmp_path) -> None:
    weights = state("t2v")
    weights["head.modulation"] = torch.zeros(1, 2, 8)
    weights["blocks.1.ffn.0.bias"] = weights["blocks.1.ffn.0.bias"].to(torch.int8)
    weights["lora.weight"] = torch.zeros(1)
    del weights["patch_embedding.weight"]
    save_file(weights, tmp_path / "a.safetensors")
    message = said(tmp_path / "a.safetensors")
    assert "4 differences: head.modulation is [1, 2, 8], expected [1, 2, 48]" in message
    assert "patch_embedding.weight is missing; lora.weight is not part of this model" in message
    assert "blocks.1.ffn.0.bias holds int8" in message and "more" not in message


def test_parts(tmp_path) -> None:
    path = WRITERS["self_forcing"](tmp_path, "t2v")
    assert "holds critic.model, generator.model, generator_ema.model" in said(path, part="student")
    torch.save({"ema_a": state("t2v"), "ema_b": inner_model("t2v")}, tmp_path / "two.pt")
    assert "holds ema_a, ema_b; say which with part=NAME" in said(tmp_path / "two.pt")
    torch.save({"weights": {"a": torch.ones(2)}, "step": 1}, tmp_path / "other.pt")
    assert "holds no Wan transformer; it holds weights.a" in said(tmp_path / "other.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    assert "no tensors at all" in said(tmp_path / "list.pt")


def test_what_tensors_leave_open(tmp_path) -> None:
    path = WRITERS["wan_file"](tmp_path, "t2v")
    assert "heads=N" in said(path, None)
    weights = state("t2v")
    del weights["head.head.weight"]
    save_file(weights, tmp_path / "b.safetensors")
    assert "does not tell out_dim" in said(tmp_path / "b.safetensors", None)


@pytest.mark.parametrize("key, value", [("num_heads", 2), ("eps", 1e-5), ("vace_layers", [0, 3])])
def test_a_config_that_contradicts_is_refused(tmp_path, key: str, value) -> None:
    path = WRITERS["wan_folder"](tmp_path, "vace")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {key: value}))
    assert f"config.json has {key}=" in said(path, CONFIGS["vace"])
    (path / "config.json").write_text("{")
    assert "config.json cannot be read" in said(path, CONFIGS["vace"])
    (path / "config.json").write_text("3")
    assert "no JSON object" in said(path, CONFIGS["vace"])
    (path / "config.json").write_text(json.dumps(config | {"vace_layers": [0]}))
    assert "2 VACE blocks" in said(path, None)


def test_conversions_that_cannot_be(tmp_path, capsys) -> None:
    path = WRITERS["wan_file"](tmp_path, "t2v")
    with pytest.raises(UserError, match="to=numpy is not one of diffusers, original"):
        convert(path, tmp_path / "out", "numpy", heads=4)
    for words in (["a", "b"], ["a", "b", "c", "to=original"], ["a", "size=3"], ["a", "b", "to=original", "heads=0"]):
        assert main(words) == 1
        assert capsys.readouterr().err.startswith("error: ")
    assert main(["--help"]) == 0
    assert not (tmp_path / "out").exists()


def test_a_run_refuses_what_would_run_code(tmp_path, capsys) -> None:
    torch.save({"generator": Runs(tmp_path / "ran")}, tmp_path / "evil.pt")
    for sweep in ((), ("-m", "seed=0,1")):
        words = ("model=tiny_t2v", f"weights={tmp_path / 'evil.pt'}", f"outputs={tmp_path / 'out'}", *sweep)
        assert fastcache(*words) == 1
        assert "can run any code" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and not list((tmp_path / "out").rglob("*"))


def test_a_run_takes_a_folder(tmp_path, capsys) -> None:
    weights = tiny.build(tiny.tiny_config()).state_dict()
    (tmp_path / "tiny").mkdir()
    sharded(weights, tmp_path / "tiny", "tiny", 2)
    words = ("model=tiny_t2v", f"weights={tmp_path / 'tiny'}", f"outputs={tmp_path / 'out'}", "frames=3")
    words = (*words, "num_videos=1", "method=none", "prompt=a red circle moves left")
    assert fastcache(*words, "dry=true") == 0
    megabytes = sum(file.stat().st_size for file in (tmp_path / "tiny").glob("*.safetensors")) / 1e6
    assert f"weights    {megabytes:.1f} MB on disk" in capsys.readouterr().out
    assert fastcache(*words) == 0
    config = only(tmp_path / "out", "*/config.yaml").read_text()
    assert checkpoint_hash(tmp_path / "tiny") in config


def test_a_hash_names_bytes_and_not_places(tmp_path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        WRITERS["wan_folder"](tmp_path / name, "t2v")
    first = checkpoint_hash(tmp_path / "one")
    assert first == checkpoint_hash(tmp_path / "two")
    (tmp_path / "two" / "Wan2.1_VAE.pth").write_bytes(b"other")  # not read, so not part of it
    assert first == checkpoint_hash(tmp_path / "two")
    shard = next((tmp_path / "two").glob("*-00002-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    assert first != checkpoint_hash(tmp_path / "two")
    assert checkpoint_hash(shard) == file_hash(shard)


def test_hashes_of_large_files_are_remembered_until_they_change(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FASTCACHE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "LARGE", 10)
    path = tmp_path / "large"
    path.write_bytes(b"0123456789")
    first, stamp = file_hash(path), path.stat().st_mtime_ns
    (note,) = (tmp_path / "cache" / "hashes").iterdir()
    note.write_text(note.read_text().replace(first, "remembered"))
    assert file_hash(path) == "remembered"
    os.utime(path, ns=(stamp, stamp + 1))
    assert file_hash(path) == first
    note.write_text("{")
    assert file_hash(path) == first
    path.write_bytes(b"0123456789a")
    os.utime(path, ns=(stamp, stamp + 1))
    assert file_hash(path) != first
    monkeypatch.setenv("FASTCACHE_CACHE", str(path))  # no folder can be made there
    assert len(file_hash(path)) == 64


def test_sizes_words() -> None:
    from fastcache.checkpoints import sizes

    assert sizes.describe(WAN_SIZES["t2v_1_3b"].to_dict()).startswith("Wan T2V-1.3B (dim 1536")
    with torch.device("meta"):
        vace = CausalWanDiT(DiTConfig(**SIZES | {"num_layers": 30}, vace_layers=tuple(range(0, 30, 2)), vace_in_dim=96))
    assert sizes.infer(vace.state_dict(), {}, 4)["vace_layers"] == WAN_SIZES["vace_1_3b"].vace_layers
    with torch.device("meta"):
        vace = CausalWanDiT(DiTConfig(**SIZES | {"num_layers": 40}, vace_layers=tuple(range(0, 40, 5)), vace_in_dim=96))
    assert sizes.infer(vace.state_dict(), {}, 4)["vace_layers"] == WAN_SIZES["vace_14b"].vace_layers
