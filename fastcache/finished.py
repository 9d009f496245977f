"""What is done with videos that are on disk: the metrics' word on each, its mp4, the contact sheet.

Needs no model, and so can be done in a second process while the next video is made (worker.py). No torch of its own.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from fastcache.build import build
from fastcache.media import SheetVideo, contact_sheet, side_by_side, write_mp4
from fastcache.metrics.base import Metric
from fastcache.metrics.score import prepare, protocol, score_video
from fastcache.results import Folder
from fastcache.scores import Scored
from fastcache.settings import Settings, label

SHEET_VIDEOS = 4


def get_metrics(s: Settings) -> dict[str, Metric]:
    """The metrics asked for, kept so that a network is loaded once."""
    return {name: _metric(json.dumps(node, sort_keys=True)) for name, node in s["metric"].items()}


@lru_cache(maxsize=8)
def _metric(key: str) -> Any:
    return build(json.loads(key))


def load_metrics(s: Settings) -> list[str]:
    """Load networks before the videos are made; a sentence for each metric that cannot be had here."""
    return prepare(list(get_metrics(s).values()))


def score(s: Settings, folder: Folder, others: Sequence[Folder], idx: int) -> Scored:
    """Compare video ``idx`` with that of each of the others. Raises UserError where they differ in size."""
    metrics = list(get_metrics(s).values())
    frames, info = folder.frames(idx), folder.info(idx)
    entries = [score_video(frames, other.frames(idx), info["frames_of_chunk"], metrics) for other in others]
    for entry in entries:
        entry["per_chunk"]["compute_fraction"] = [fmean(chunk["fractions"]) for chunk in info["chunks"]]
    return Scored(entries, protocol(metrics, frames.shape))


def render(s: Settings, folder: Folder, reference: Folder, idx: int) -> None:
    """The mp4 of a video: reference, run and difference side by side; of a reference, itself."""
    frames = folder.frames(idx)
    if reference.path != folder.path:
        frames = side_by_side(frames, reference.frames(idx), label(s), reference.settings().get("schedule", ""))
    write_mp4(folder.mp4(idx), frames, folder.info(idx)["fps"])


def draw_sheet(s: Settings, folder: Folder, reference: Folder, scores: Mapping[str, Any]) -> None:
    """sheet.png: at most four videos, with more than that the worst, the best and two from the middle."""
    entries, alone = scores["per_video"], reference.path == folder.path
    order = sorted(range(folder.count), key=lambda i: _quality(entries[i]))
    if folder.count > SHEET_VIDEOS:
        last = folder.count - 1
        order = [order[round(last * place / (SHEET_VIDEOS - 1))] for place in range(SHEET_VIDEOS)]
    videos = []
    for i in sorted(order):
        info, per_chunk = folder.info(i), entries[i]["per_chunk"]
        scored = [] if alone else [key for key in ("lpips", "psnr") if entries[i][key] is not None]
        videos.append(
            SheetVideo(
                title=f"{i}: {info['prompt']}",
                run=folder.frames(i),
                reference=None if alone else reference.frames(i),
                frames_of_chunk=info["frames_of_chunk"],
                letters=[chunk["letters"] for chunk in info["chunks"]],
                fractions=per_chunk["compute_fraction"],
                values={key.upper(): per_chunk[key] for key in scored},
            )
        )
    under = [scores[key] for key in ("model", "engine", "sampler")]
    under += [f"seed {s['seed']}", f"{scores['speedup']:.2f}x", f"reference {reference.signature}"]
    contact_sheet(folder.path / "sheet.png", videos, label(s), ", ".join(under))


def _quality(entry: Mapping[str, Any]) -> float:
    """PSNR, infinite where identical."""
    return float("inf") if entry["psnr"] is None else entry["psnr"]
