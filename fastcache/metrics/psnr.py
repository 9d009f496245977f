"""PSNR by both rules in use, and split into the moving and the still part of the picture."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastcache.metrics.base import Clip, FrameScores, Score, check_clips

CAP = 100.0  # dB, of one frame's PSNR
THRESHOLD, DILATION = 8, 2  # of 255; px


def decibel(mse: float) -> Score:
    """Mean squared error on [0, 1] -> dB; no error at all has no finite value."""
    return Score(None, "identical") if mse == 0 else Score(float(-10 * np.log10(mse)))


def moving_mask(reference: Clip) -> np.ndarray:
    """bool [T, H, W]: pixels of frame t of which a channel differs by more than 8 (of 255) from the same pixel of frame
    t - 1 or t + 1, grown by 2 px in every direction, diagonals included."""
    clip = reference.astype(np.int16)
    changed = (np.abs(clip[1:] - clip[:-1]) > THRESHOLD).any(axis=-1)
    mask = np.zeros(reference.shape[:3], bool)
    mask[1:] |= changed
    mask[:-1] |= changed
    for axis in (1, 2):
        mask = _grow(mask, axis, DILATION)
    return mask


def _grow(mask: np.ndarray, axis: int, reach: int) -> np.ndarray:
    """OR of the mask with itself shifted by up to ``reach`` along ``axis``; nothing wraps around."""
    grown = mask.copy()
    length = mask.shape[axis]
    for shift in range(1, min(reach, length - 1) + 1):
        ahead, behind = [slice(None)] * mask.ndim, [slice(None)] * mask.ndim
        ahead[axis], behind[axis] = slice(shift, None), slice(None, -shift)
        grown[tuple(ahead)] |= mask[tuple(behind)]
        grown[tuple(behind)] |= mask[tuple(ahead)]
    return grown


class Psnr:
    """PSNR in dB of uint8 clips on [0, 1].

    ``psnr`` takes one MSE over all frames (FlowCache and MotionCache, tools/video_metrics.py); ``psnr_frame`` is the
    mean of the frames' PSNR, each at most 100 dB (TeaCache, eval/*/common_metrics); ``psnr_moving`` and
    ``psnr_still`` take one MSE over the pixels inside and outside the moving mask of the reference.
    """

    names = ("psnr", "psnr_frame", "psnr_moving", "psnr_still")

    def __call__(self, video: Clip, reference: Clip) -> Iterator[tuple[str, FrameScores]]:
        """Yield the four names with per-frame values; raises UserError on clips that are not uint8 of one shape."""
        check_clips(video, reference)
        frames, height, width, _ = video.shape
        squared = np.stack([_squared(a, b) for a, b in zip(video, reference, strict=True)])  # [T, H, W] on [0, 1]
        mse, ones = squared.mean(axis=(1, 2)), np.ones(frames)
        yield "psnr", FrameScores(mse, ones * height * width, decibel)

        with np.errstate(divide="ignore"):
            capped = np.minimum(-10 * np.log10(mse), CAP)
        yield "psnr_frame", FrameScores(capped, ones)

        moving = moving_mask(reference)
        for name, mask, empty in (
            ("psnr_moving", moving, "no moving pixels in the reference"),
            ("psnr_still", ~moving, "no still pixels in the reference"),
        ):
            count = mask.sum(axis=(1, 2))
            yield name, FrameScores((squared * mask).sum(axis=(1, 2)) / np.maximum(count, 1), count, decibel, empty)

    def protocol(self) -> dict[str, Any]:
        return {
            "psnr": {
                "range": "uint8 scaled to [0, 1]",
                "psnr": "one MSE over the clip (or chunk), dB; null where identical",
                "psnr_frame": f"mean over frames of PSNR capped at {CAP:g} dB",
                "psnr_moving": f"one MSE over pixels that change by more than {THRESHOLD}/255 in any channel from "
                f"the reference's frame before or after, dilated by {DILATION} px (square)",
                "psnr_still": "one MSE over the other pixels",
            }
        }


def _squared(frame: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Squared error of one frame on [0, 1], averaged over channels: float64 [H, W]."""
    return ((frame.astype(np.float64) - reference) ** 2).mean(axis=-1) / 255**2
