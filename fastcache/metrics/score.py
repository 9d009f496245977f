"""From two clips to the metric part of scores.json: per video, per chunk, over all videos. Imports no torch."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from fastcache.errors import UserError
from fastcache.metrics.base import Clip, FrameScores, Metric, NotComputable, Score, check_clips

NAMES = ("psnr", "psnr_frame", "psnr_moving", "psnr_still", "ssim", "lpips")
PER_CHUNK = ("psnr", "ssim", "lpips")
NOT_ASKED = "not asked for: add it with metric=[psnr,ssim,lpips]"


def use_threads(count: int) -> None:
    """Let metrics have as many threads of a CPU."""
    import torch

    torch.set_num_threads(count)


def prepare(metrics: Sequence[Metric]) -> list[str]:
    """Load what the metrics need before any video is made; one sentence for each that cannot be had here.

    Raises UserError on a bad metric.lpips.weights.
    """
    problems = []
    for metric in metrics:
        try:
            getattr(metric, "load", lambda: None)()
        except NotComputable as problem:
            problems.append(f"{', '.join(metric.names)}: {problem}")
    return problems


def chunk_frames(frames: int, chunks: int) -> list[int]:
    """Decoded frames of each chunk. A causal video VAE decodes the very first latent frame to fewer frames than the
    others, so where the frames do not divide evenly the first chunk is the short one: (81, 7) -> [9, 12, 12, ...]."""
    each = -(-frames // chunks)
    first = frames - each * (chunks - 1)
    if first < 1:
        raise UserError(f"{frames} frames cannot be shared out to {chunks} chunks")
    return [first] + [each] * (chunks - 1)


def score_video(
    video: Clip, reference: Clip, frames_of_chunk: Sequence[int], metrics: Sequence[Metric]
) -> dict[str, Any]:
    """Scores of one video uint8 [T, H, W, 3]: the six names (None with "<name>_why" where not computable) and
    "per_chunk", lists in chunk order in which None means the same as for the video.

    Raises UserError on clips of another dtype or shape and on chunks that do not add up to T frames.
    """
    check_clips(video, reference)
    if sum(frames_of_chunk) != len(video) or min(frames_of_chunk, default=0) < 1:
        raise UserError(f"chunks of {list(frames_of_chunk)} frames do not add up to the video's {len(video)} frames")
    found = _measure(video, reference, metrics)
    entry: dict[str, Any] = {}
    for name in NAMES:
        score = found[name]
        _put(entry, name, score.pool() if isinstance(score, FrameScores) else score)

    ends = list(accumulate(frames_of_chunk))
    chunks = [slice(end - length, end) for end, length in zip(ends, frames_of_chunk, strict=True)]
    entry["per_chunk"] = {}
    for name in PER_CHUNK:
        score = found[name]
        entry["per_chunk"][name] = [
            _finite(score.pool(chunk)).value if isinstance(score, FrameScores) else None for chunk in chunks
        ]
    return entry


def summarise(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The six names over all videos: the mean of the videos that have a value, None with "<name>_why" if none has.

    An identical video has no finite ``psnr``; it is left out of that mean, and "identical_videos" counts it.
    """
    summary: dict[str, Any] = {}
    for name in NAMES:
        values = [entry[name] for entry in entries if entry[name] is not None]
        reasons = list(dict.fromkeys(entry[f"{name}_why"] for entry in entries if entry[name] is None))
        why = "; ".join(reasons) or "no videos"
        _put(summary, name, Score(math.fsum(values) / len(values)) if values else Score(None, why))
    summary["identical_videos"] = sum(entry.get("psnr_why") == "identical" for entry in entries)
    return summary


def protocol(metrics: Sequence[Metric], shape: Sequence[int]) -> dict[str, Any]:
    """How the numbers were made; ``shape`` is [T, H, W, 3] of the clips. Call it after scoring."""
    rules: dict[str, Any] = {
        "frames": "decoded uint8 [T, H, W, 3], no codec",
        "frame_shape": [int(size) for size in shape],
        "summary": "mean over videos; identical videos are exact, counted in identical_videos and left out of psnr",
    }
    for metric in metrics:
        rules.update(metric.protocol())
    return rules


def _measure(video: Clip, reference: Clip, metrics: Sequence[Metric]) -> dict[str, FrameScores | Score]:
    """What is known under each of NAMES: per-frame scores, or the reason why there are none."""
    found: dict[str, FrameScores | Score] = dict.fromkeys(NAMES, Score(None, NOT_ASKED))
    for metric in metrics:
        try:
            found.update(metric(video, reference))
        except NotComputable as reason:
            found.update(dict.fromkeys(metric.names, Score(None, str(reason))))
    return found


def _finite(score: Score) -> Score:
    """JSON has no NaN: a score that is no finite number becomes None."""
    bad = score.value is not None and not math.isfinite(score.value)
    return Score(None, "the result is not finite") if bad else score


def _put(target: dict[str, Any], name: str, score: Score) -> None:
    score = _finite(score)
    target[name] = score.value
    if score.value is None:
        target[f"{name}_why"] = score.why
