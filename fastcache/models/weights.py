"""A DiT from a checkpoint, without a second copy of it in memory; and weights written to a file."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fastcache.checkpoints import sizes
from fastcache.checkpoints.hashing import file_hash
from fastcache.checkpoints.reading import Checkpoint, read
from fastcache.errors import UserError
from fastcache.models.config import DiTConfig
from fastcache.models.dit import CausalWanDiT
from fastcache.models.precision import dtypes

__all__ = ["checkpoint_config", "file_hash", "load_checkpoint", "load_weights", "read_weights", "save_weights"]

Device = str | torch.device


def load_checkpoint(
    path: str | Path,
    config: DiTConfig | None = None,
    dtype: torch.dtype = torch.float32,
    device: Device = "cpu",
    part: str = "auto",
    heads: int | None = None,
    precision: str | None = None,
) -> CausalWanDiT:
    """The Wan DiT of a checkpoint of any known writer (fastcache.checkpoints.reading), ready to sample.

    ``config``: the sizes it must have; None takes them from the tensors and config.json (``heads`` where neither tells,
    ``precision`` else sf_bf16). ``part``: which of several models in one file; auto prefers the averaged one.
    Parameters of ``dtype`` already, on the CPU, stay mapped to the file, which must not be changed meanwhile.

    Raises UserError on files that are missing, damaged, unsafe to unpickle, or of another size or layout.
    """
    checkpoint = read(path, part)
    if config is None:
        config = checkpoint_config(checkpoint, heads, precision)
    with torch.device("meta"):
        dit = CausalWanDiT(config)
    _fill(dit, checkpoint, dtype, device)
    return dit


def load_weights(
    dit: CausalWanDiT, path: str | Path, dtype: torch.dtype = torch.float32, device: Device = "cpu"
) -> Checkpoint:
    """Give a built DiT, best on the meta device, the weights of a checkpoint; else as load_checkpoint()."""
    checkpoint = read(path)
    _fill(dit, checkpoint, dtype, device)
    return checkpoint


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, mapped, under original names. Raises UserError as load_checkpoint() does."""
    return dict(read(path).tensors)


def checkpoint_config(checkpoint: Checkpoint, heads: int | None = None, precision: str | None = None) -> DiTConfig:
    """The sizes of a checkpoint. Raises UserError where its tensors and its config.json leave one open."""
    found = sizes.infer(checkpoint.tensors, checkpoint.config, heads)
    return DiTConfig.from_dict(found | ({} if precision is None else {"precision": precision}))


def save_weights(module_state: dict[str, Tensor], path: str | Path, dtype: torch.dtype, metadata: dict) -> None:
    """Write a state dict in ``dtype``; metadata values that are no strings are stored as JSON."""
    told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    save_file({name: t.detach().to(dtype).contiguous() for name, t in module_state.items()}, path, metadata=told)


def _fill(dit: CausalWanDiT, checkpoint: Checkpoint, dtype: torch.dtype, device: Device) -> None:
    _compare(dit, checkpoint)
    state = {
        name: checkpoint.tensors[name].to(device=device, dtype=wanted).contiguous()
        for name, wanted in dtypes(dit, dtype).items()
    }
    dit.load_state_dict(state, assign=True)
    dit.eval().requires_grad_(False)


def _compare(dit: CausalWanDiT, checkpoint: Checkpoint) -> None:
    expected, found = dit.state_dict(), checkpoint.tensors
    wrong = [
        f"{name} is {list(found[name].shape)}, expected {list(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    wrong += [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} is not part of this model" for name in found if name not in expected]
    wrong += [
        f"{name} holds {str(found[name].dtype).removeprefix('torch.')}, expected floating point"
        for name in expected
        if name in found and not found[name].is_floating_point()
    ]
    own = dit.config.to_dict()
    wrong += [
        f"config.json has {key}={value}, expected {own[key]}"
        for key, value in sizes.told(checkpoint.config).items()
        if own[key] != value
    ]
    if not wrong:
        return
    here, there = sizes.describe(own), checkpoint.describe()
    says = (
        "does not fit this model" if here == there else f"is a {there} checkpoint and does not fit this model, a {here}"
    )
    count = f"{len(wrong)} differences: " if len(wrong) > 1 else ""
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    raise UserError(f"weights={checkpoint.path} {says}: {count}{'; '.join(wrong[:5])}{more}")
