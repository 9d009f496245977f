"""In what two runs must agree for their numbers to stand side by side, and in what protocols differ. No torch."""

import json
from collections.abc import Sequence
from typing import Any

from fastcache.report.load import Run
from fastcache.report.words import counted, cut

MACHINE = ("made_by", "timing", "timing_doubt", "memory", "rescale", "metrics")  # no rules of measurement
METRICS = ("psnr", "ssim", "lpips")
HASHES = {"weights": "model", "weights_sha256": "net"}  # left out where the other differs, which says as much


def protocol(run: Run) -> dict[str, Any]:
    """Everything in which two runs must agree for their numbers to stand side by side."""
    s, rules = run.settings, run["protocol"]
    lpips = rules.get("lpips")
    if isinstance(lpips, dict):  # the same weights are the same rule, wherever they came from
        lpips = {key: value for key, value in lpips.items() if key not in ("weights_source", "device")}
    measured = {key: value for key, value in rules.items() if key not in MACHINE and key != "lpips"}
    shown = {kind: s[kind].get("sha256") for kind in ("image", "control") if isinstance(s.get(kind), dict)}
    weights = s.get("weights")
    return {
        "model": run["model"],
        "weights": weights.get("sha256") if isinstance(weights, dict) else None,
        "frames": s.get("frames"),
        "prompts": [entry["prompt"] for entry in run["per_video"]],
        "guidance_scale": s.get("guidance_scale", 1.0),
        "negative_prompt": s.get("negative_prompt"),
        **shown,
        **{key: value for key, value in measured.items() if key != "device"},
        "device": str(rules.get("device")).partition(":")[0],
        "lpips": lpips,
    }


def told_apart(protocols: Sequence[dict[str, Any]]) -> list[str]:
    """For each protocol what sets it apart from the others: "model toy, 12 frames of 32x32, lpips net=alex"."""
    words: list[list[str]] = [[] for _ in protocols]
    for name in _differing(protocols):
        for mine, text in zip(words, _texts(name, [rules.get(name) for rules in protocols]), strict=True):
            mine.append(text)
    return [", ".join(mine) for mine in words]


def _differing(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """The names whose values differ, without hashes of something else that does."""
    names = list(dict.fromkeys(name for node in nodes for name in node))
    kept = [name for name in names if len(_distinct([node.get(name) for node in nodes])) > 1]
    return [name for name in kept if not (HASHES.get(name) in kept and _follows(name, HASHES[name], nodes))]


def _follows(name: str, other: str, nodes: Sequence[dict[str, Any]]) -> bool:
    """Whether who knows ``other`` knows ``name``."""
    return len(_distinct([[n.get(other), n.get(name)] for n in nodes])) == len(_distinct([n.get(other) for n in nodes]))


def _distinct(values: Sequence[Any]) -> set[str]:
    return {json.dumps(value, sort_keys=True) for value in values}


def _texts(name: str, values: Sequence[Any]) -> list[str]:
    """A differing rule in words, for each protocol."""
    nodes = [value for value in values if isinstance(value, dict)]
    if nodes:
        keys = _differing(nodes)
        parts = [[f"{key}={_plain(node.get(key))}" for key in keys] for node in nodes]
        rest = iter(" ".join([name, *each]) if each else f"with {name}" for each in parts)
        return [next(rest) if isinstance(value, dict) else _named(name, value) for value in values]
    if name == "prompts":
        return _prompts(values)
    if name in METRICS and len(_distinct([value for value in values if value is not None])) == 1:
        return [f"{'no' if value is None else 'with'} {name}" for value in values]
    return [_named(name, value) for value in values]


def _prompts(values: Sequence[list[str]]) -> list[str]:
    """How many; where that does not tell them apart, also the prompt that does it best."""
    counts = [counted(len(prompts), "prompt") for prompts in values]
    if len(set(counts)) == len(_distinct(values)):
        return counts
    at = max(range(min(map(len, values))), key=lambda i: len({prompts[i] for prompts in values}))
    return [f'{count} ("{cut(prompts[at])}")' for count, prompts in zip(counts, values, strict=True)]


def _named(name: str, value: Any) -> str:
    plain = name.replace("_", " ")
    if value is None:
        return f"no {plain}"
    if name == "frame_shape" and isinstance(value, list) and len(value) > 2:
        return f"{counted(value[0], 'frame')} of {'x'.join(map(str, value[1:3]))}"
    return f"{plain} {_plain(value, 8 if name in ('weights', 'image', 'control') else None)}"


def _plain(value: Any, digits: int | None = None) -> str:
    """A value in few words; of a hash its first digits."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "x".join(map(str, value))
    text = str(value)
    hashed = digits is None and len(text) == 64 and not set(text) - set("0123456789abcdef")
    return text[: 8 if hashed else digits] if hashed or digits else cut(text)
