"""Writing a checkpoint for another program: Wan's names or diffusers', in shards, with the config.json for them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from fastcache.checkpoints import names, sizes
from fastcache.checkpoints.files import INDEX
from fastcache.checkpoints.reading import Checkpoint, read
from fastcache.errors import UserError

STYLES = ("diffusers", "original")
STEM = "diffusion_pytorch_model"  # what both call the file
SHARD = 5_000_000_000
"""Bytes of a file; only one is gathered at a time."""


def convert(
    source: str | Path, target: str | Path, to: str, part: str = "auto", heads: int | None = None, shard: int = SHARD
) -> list[Path]:
    """Write a checkpoint of any known writer into the folder ``target``; dtypes stay. The files written.

    Raises UserError on a source that cannot be read (reading.read), on an unknown style, where the number of heads
    is not told, and on a folder that has files in it.
    """
    if to not in STYLES:
        raise UserError(f"to={to} is not one of {', '.join(STYLES)}")
    checkpoint = read(source, part)
    told = sizes.infer(checkpoint.tensors, checkpoint.config, heads)
    return write(checkpoint.tensors, told, target, to, shard)


def write(
    tensors: Mapping[str, Tensor], told: Mapping[str, Any], target: str | Path, to: str, shard: int = SHARD
) -> list[Path]:
    """Tensors under original names and their sizes (DiTConfig's fields) -> a folder in the style ``to``."""
    folder = Path(target).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; name a new one")
    renamed = {names.to_diffusers(name) if to == "diffusers" else name: tensor for name, tensor in tensors.items()}
    config = diffusers_config(told) if to == "diffusers" else original_config(told)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return [folder / "config.json", *_write_shards(renamed, folder, shard)]


def diffusers_config(told: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of WanTransformer3DModel or WanVACETransformer3DModel."""
    image, vace = told.get("image_dim") or None, told.get("vace_layers") or ()
    return {
        "_class_name": "WanVACETransformer3DModel" if vace else "WanTransformer3DModel",
        "patch_size": list(told["patch_size"]),
        "num_attention_heads": told["num_heads"],
        "attention_head_dim": told["dim"] // told["num_heads"],
        "in_channels": told["in_dim"],
        "out_channels": told["out_dim"],
        **{key: told[key] for key in ("text_dim", "freq_dim", "ffn_dim", "num_layers")},
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
        "eps": told.get("eps", 1e-6),
        "image_dim": image,
        "added_kv_proj_dim": told["dim"] if image else None,
        "rope_max_seq_len": 1024,
        "pos_embed_seq_len": None,
        **({"vace_layers": list(vace), "vace_in_channels": told["vace_in_dim"]} if vace else {}),
    }


def original_config(told: Mapping[str, Any]) -> dict[str, Any]:
    """config.json as the published Wan folders have it."""
    layout = sizes.layout(told)
    keys = ("dim", "ffn_dim", "freq_dim", "in_dim", "num_heads", "num_layers", "out_dim")
    return {
        "_class_name": "VaceWanModel" if layout == "vace" else "WanModel",
        "model_type": layout,
        **{key: told[key] for key in keys},
        "eps": told.get("eps", 1e-6),
        "text_len": told.get("text_len", 512),
        **({"vace_layers": list(told["vace_layers"]), "vace_in_dim": told["vace_in_dim"]} if layout == "vace" else {}),
    }


def summary(checkpoint: Checkpoint) -> str:
    """One line: what a checkpoint is."""
    tensors = checkpoint.tensors.values()
    kinds = sorted({str(t.dtype).removeprefix("torch.") for t in tensors})
    part = f", {checkpoint.part}" if checkpoint.part else ""
    return (
        f"{checkpoint.describe()}: {sum(t.numel() for t in tensors):,} parameters in {len(tensors)} tensors, "
        f"{' and '.join(kinds)}, {checkpoint.writer_names} names{part}, {len(checkpoint.files.tensors)} files"
    )


def _write_shards(tensors: Mapping[str, Tensor], folder: Path, shard: int) -> list[Path]:
    groups: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        if groups[-1] and filled + tensor.nbytes > shard:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += tensor.nbytes
    written: list[Path] = []
    where: dict[str, str] = {}
    for i, group in enumerate(groups):
        file = f"{STEM}.safetensors" if len(groups) == 1 else f"{STEM}-{i + 1:05d}-of-{len(groups):05d}.safetensors"
        state = {name: tensors[name].contiguous() for name in group}
        save_file(state, folder / file, metadata={"format": "pt"})
        written.append(folder / file)
        where |= dict.fromkeys(group, file)
    if len(groups) > 1:
        total = sum(t.nbytes for t in tensors.values())
        index = folder / f"{STEM}{INDEX}"
        index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2) + "\n")
        written.append(index)
    return written
