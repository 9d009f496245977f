"""Sizes of a Wan transformer from the shapes of its tensors, and in words."""

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fastcache.errors import UserError

HEAD_DIM = 128
"""Channels of a head in every published Wan model; the tensors do not tell."""
IMAGE_LEN = 257
"""Image tokens of CLIP ViT-H/14; the tensors do not tell."""
PUBLISHED = {(1536, 30): "1.3B", (5120, 40): "14B"}
WORDS = {"t2v": "T2V", "i2v": "I2V", "vace": "VACE"}
_WHERE = {
    "dim": ("patch_embedding.weight", 0),
    "in_dim": ("patch_embedding.weight", 1),
    "ffn_dim": ("blocks.0.ffn.0.weight", 0),
    "freq_dim": ("time_embedding.0.weight", 1),
    "text_dim": ("text_embedding.0.weight", 1),
    "image_dim": ("img_emb.proj.0.weight", 0),
    "vace_in_dim": ("vace_patch_embedding.weight", 1),
}
# the same sizes in config.json: Wan's own key, diffusers' key
_CONFIG = {
    "num_heads": ("num_heads", "num_attention_heads"),
    "text_len": ("text_len",),
    "eps": ("eps",),
    "vace_layers": ("vace_layers",),
}


def infer(tensors: Mapping[str, Tensor], config: Mapping[str, Any], heads: int | None = None) -> dict[str, Any]:
    """Fields of DiTConfig from tensors under original names and what config.json adds to them.

    Heads: ``heads``, else config.json, else dim / 128. VACE layers: config.json, else evenly spread. Raises UserError
    where the tensors leave a size open.
    """
    found = read(tensors)
    if missing := [name for name in ("dim", "ffn_dim", "freq_dim", "text_dim", "out_dim") if name not in found]:
        raise UserError(f"the checkpoint does not tell {', '.join(missing)}: tensors are missing")
    found |= told(config)
    if heads is not None:
        found["num_heads"] = heads
    if "num_heads" not in found:
        if found["dim"] % HEAD_DIM:
            raise UserError(
                f"dim={found['dim']} is no multiple of {HEAD_DIM}, the head width of published Wan models, so the "
                "number of heads cannot be told from the tensors; give it (heads=N), or a folder with config.json"
            )
        found["num_heads"] = found["dim"] // HEAD_DIM
    if count := found.pop("vace_count", 0):
        spread = range(0, found["num_layers"], max(1, found["num_layers"] // count))
        found["vace_layers"] = found.get("vace_layers", tuple(spread[:count]))
        if len(found["vace_layers"]) != count:
            raise UserError(f"config.json has vace_layers={found['vace_layers']}, the tensors {count} VACE blocks")
    else:
        found.pop("vace_layers", None)
    if "image_dim" in found:
        found["image_len"] = IMAGE_LEN
    return found


def told(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that only a config.json tells, Wan's or diffusers', under DiTConfig's names."""
    found: dict[str, Any] = {}
    for key, names in _CONFIG.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is not None:
            found[key] = tuple(value) if isinstance(value, list) else value
    return found


def read(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The sizes that shapes alone tell; those whose tensors are missing are left out."""
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    found: dict[str, Any] = {}
    for key, (name, axis) in _WHERE.items():
        if len(shapes.get(name, ())) > axis:
            found[key] = shapes[name][axis]
    found["num_layers"] = _blocks(shapes, "blocks")
    if vace := _blocks(shapes, "vace_blocks"):
        found["vace_count"] = vace
    patch = shapes.get("patch_embedding.weight", ())[2:]
    if len(patch) == 3:
        found["patch_size"] = patch
        if "head.head.weight" in shapes:
            found["out_dim"] = shapes["head.head.weight"][0] // math.prod(patch)
    return found


def layout(sizes: Mapping[str, Any]) -> str:
    """t2v, i2v or vace."""
    if sizes.get("vace_count") or sizes.get("vace_layers"):
        return "vace"
    return "i2v" if sizes.get("image_dim") else "t2v"


def describe(sizes: Mapping[str, Any]) -> str:
    """Wan I2V-14B (dim 5120, ffn_dim 13824, 40 blocks, ...); ``sizes`` as read() or DiTConfig.to_dict() has them."""
    name = PUBLISHED.get((sizes.get("dim", 0), sizes.get("num_layers", 0)))
    parts = [f"{key} {sizes[key]}" for key in ("dim", "ffn_dim") if key in sizes]
    parts.append(f"{sizes['num_layers']} blocks")
    if vace := sizes.get("vace_count") or len(sizes.get("vace_layers") or ()):
        parts.append(f"{vace} VACE blocks")
    if "in_dim" in sizes:
        parts.append(f"{sizes['in_dim']} input channels")
    return f"Wan {WORDS[layout(sizes)]}{f'-{name}' if name else ''} ({', '.join(parts)})"


def _blocks(shapes: Mapping[str, Any], kind: str) -> int:
    found = (re.match(rf"{kind}\.(\d+)\.", name) for name in shapes)
    return max((int(match[1]) + 1 for match in found if match), default=0)
