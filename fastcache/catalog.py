"""What conf/ offers: its folder, its choices, the methods and their dials. Imports neither torch nor Hydra.

conf/ lies beside the package in a checkout and inside it in a wheel; the working directory plays no part.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from fastcache.errors import UserError

HERE = Path(__file__).resolve().parent
CONF = HERE / "conf" if (HERE / "conf").is_dir() else HERE.parent / "conf"
DIALS = ("thresh", "interval", "skip")
GROUPS = ("model", "engine", "method", "sampler", "rescale", "prompts", "metric", "tracking", "experiment")
KEYS = (
    *GROUPS,
    *("schedule", "prompt", "indicator", "num_videos", "frames", "seed", "image", "control", "weights"),
    *("guidance_scale", "negative_prompt", "guidance_decisions"),
    *("device", "dtype", "outputs", "force", "retry", "dry", "reference"),
)


class MethodInfo(NamedTuple):
    """What a method's YAML says of itself."""

    name: str
    idea: str
    dial: str | None
    default: float | None


def load(group: str, name: str) -> dict[str, Any]:
    """One shipped YAML of conf/ as it stands, unresolved. Raises UserError naming the closest option."""
    path = CONF / group / f"{name}.yaml"
    if not path.is_file():
        raise UserError(unknown(group, name, options(group)))
    content = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def options(group: str, dirs: Iterable[Path] = (CONF,)) -> list[str]:
    """Names that may be chosen in a group."""
    return sorted({path.stem for folder in dirs for path in (folder / group).glob("*.yaml")})


def methods() -> list[MethodInfo]:
    """Every method with the idea in its YAML's first comment and its dial."""
    found = []
    for name in options("method"):
        lines = (CONF / "method" / f"{name}.yaml").read_text().splitlines()
        comments = [line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line]
        content = load("method", name)
        dial = next((key for key in DIALS if key in content), None)
        found.append(MethodInfo(name, comments[0] if comments else "", dial, content[dial] if dial else None))
    return found


def closest(word: str, known: Iterable[str]) -> str:
    """A "did you mean" sentence with a space in front, or nothing."""
    match = get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f" Did you mean {match[0]}?" if match else ""


def unknown(group: str, name: str, names: Iterable[str]) -> str:
    """The sentence for a name that a group does not have."""
    known = shown(names)
    return f"{group}={name} does not exist.{closest(name, known)} The choices: {', '.join(known) or 'none yet'}"


def shown(names: Iterable[str]) -> list[str]:
    """Without ``file``, which stands for a path and is not for typing."""
    return [name for name in names if name != "file"]
