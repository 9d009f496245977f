"""Reading and writing checkpoints of the DiT, with every mismatch said in a sentence."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from fastcache.errors import UserError


def file_hash(path: str | Path) -> str:
    """sha256 of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_weights(module: nn.Module, path: str | Path) -> dict[str, str]:
    """Copy a safetensors checkpoint into ``module`` (cast to its dtypes) and return the file's metadata.

    Raises UserError where the file is missing, unreadable or truncated, and where tensors are missing, unexpected or of
    another shape (the first five are named).
    """
    path = Path(path)
    state, metadata = _read(path)
    _compare(module.state_dict(), state, path)
    with torch.no_grad():
        module.load_state_dict(state)
    return metadata


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors checkpoint. Raises UserError where it is missing, unreadable or truncated."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    if not path.is_file():
        raise UserError(f"weights={path}: no such file; leave weights= out for the weights that come with the model")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(f"weights={path} cannot be read as safetensors ({error}); is the file complete?") from None


def save_weights(module_state: dict[str, torch.Tensor], path: str | Path, dtype: torch.dtype, metadata: dict) -> None:
    """Write a state dict in ``dtype``; metadata values that are no strings are stored as JSON."""
    told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    save_file({name: t.detach().to(dtype).contiguous() for name, t in module_state.items()}, path, metadata=told)


def _compare(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], path: Path) -> None:
    wrong = [
        f"{name} is {list(found[name].shape)}, expected {list(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    wrong += [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} is not part of this model" for name in found if name not in expected]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise UserError(f"weights={path} does not fit this model: {'; '.join(wrong[:5])}{more}")
