"""Loading what surrounds the DiT from local folders, every failure said in a sentence."""

import gc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fastcache.errors import UserError

EXTRA = ("transformers", "diffusers", "ftfy")


def check_extra() -> None:
    """Raise UserError unless the packages of the [wan] extra are installed."""
    if absent := [name for name in EXTRA if find_spec(name) is None]:
        raise UserError(f'real Wan models need {", ".join(absent)}, not installed here: pip install -e ".[wan]"')


def load_part(kind: Any, name: str, folder: Path, **options: Any) -> Any:
    """``kind.from_pretrained`` of a local folder, in eval mode and without gradients; nothing is looked up elsewhere.

    Raises UserError where files are missing or damaged and where a weight would be left at random.
    """
    try:
        model, info = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True, **options)
    except Exception as error:  # the libraries raise whatever their readers do
        raise UserError(f"model.{name}={folder} cannot be loaded as {kind.__name__}: {first_line(error)}") from None
    if lost := [*info["missing_keys"], *info.get("mismatched_keys", ())]:
        names = [str(key[0] if isinstance(key, tuple) else key) for key in lost]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise UserError(
            f"model.{name}={folder} lacks weights of {kind.__name__}, or has them in another shape: "
            f"{', '.join(sorted(names)[:5])}{more}"
        )
    return model.eval().requires_grad_(False)


def free() -> None:
    """Give back the memory of models that nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
