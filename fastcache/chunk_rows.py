"""The scores of a run as rows, one a chunk."""

from collections.abc import Mapping, Sequence
from typing import Any

CHUNK_SCORES = ("compute_fraction", "psnr", "ssim", "lpips")


def chunk_rows(scores: Mapping[str, Any], trace: Mapping[str, Any]) -> list[list[Any]]:
    """One row per chunk of each video: video, prompt, chunk, letters, then CHUNK_SCORES; None where unknown."""
    rows = []
    for video, entry in enumerate(scores.get("per_video", [])):
        series = entry.get("per_chunk", {})
        letters = [chunk.get("letters") for chunk in _item(trace.get("videos", []), video, {}).get("chunks", [])]
        for chunk in range(max([len(letters), *(len(values) for values in series.values())])):
            values = [_item(series.get(name, []), chunk) for name in CHUNK_SCORES]
            rows.append([video, entry.get("prompt"), chunk, _item(letters, chunk), *values])
    return rows


def _item(values: Sequence[Any], index: int, default: Any = None) -> Any:
    return values[index] if index < len(values) else default
