"""SSIM with the 11x11 Gaussian window of its paper."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastcache.metrics.base import Clip, FrameScores, NotComputable, check_clips

WINDOW, SIGMA, C1, C2 = 11, 1.5, 0.01**2, 0.03**2


def gaussian() -> Tensor:
    """The window along one axis, float64 [11], sum 1."""
    offsets = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    weights = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    return weights / weights.sum()


def local_mean(image: Tensor, window: Tensor) -> Tensor:
    """Window average of [..., H, W] over its last two axes, valid positions only: [..., H - 10, W - 10]."""
    for axis in (-2, -1):  # eleven shifted sums: several times faster than conv2d in float64
        length = image.shape[axis] - WINDOW + 1
        total = image.narrow(axis, 0, length) * window[0]
        for shift in range(1, WINDOW):
            total.add_(image.narrow(axis, shift, length), alpha=float(window[shift]))
        image = total
    return image


def frame_ssim(frame: np.ndarray, reference: np.ndarray, window: Tensor) -> float:
    """Mean SSIM of two uint8 frames [H, W, 3] over channels and valid positions, in float64."""
    x, y = (torch.from_numpy(image).double().div(255).permute(2, 0, 1).contiguous() for image in (frame, reference))
    mean_x, mean_y, xx, yy, xy = local_mean(torch.cat([x, y, x * x, y * y, x * y]), window).chunk(5)
    var_x, var_y, cov = xx - mean_x * mean_x, yy - mean_y * mean_y, xy - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + C1) / (mean_x * mean_x + mean_y * mean_y + C1)
    return float((luminance * (2 * cov + C2) / (var_x + var_y + C2)).mean())


class Ssim:
    """Structural similarity in [-1, 1], 1 for identical frames: mean over channels, positions, then frames.

    Wang et al. 2004 (IEEE TIP 13:4): Gaussian window 11x11, sigma 1.5, K1 = 0.01, K2 = 0.03, data range 1. Only
    positions where the window fits count, as in TeaCache's common_metrics and torchmetrics.
    """

    names = ("ssim",)

    def __call__(self, video: Clip, reference: Clip) -> Iterator[tuple[str, FrameScores]]:
        """Yield ("ssim", per-frame values). Raises UserError on clips that are not uint8 of one shape and
        NotComputable on frames smaller than the window."""
        check_clips(video, reference)
        height, width = video.shape[1:3]
        if min(height, width) < WINDOW:
            raise NotComputable(f"frames of {height}x{width} are smaller than the {WINDOW}x{WINDOW} window")
        window = gaussian()
        values = [frame_ssim(a, b, window) for a, b in zip(video, reference, strict=True)]
        yield "ssim", FrameScores(np.array(values), np.ones(len(values)))

    def protocol(self) -> dict[str, Any]:
        window = f"gaussian {WINDOW}x{WINDOW}, sigma {SIGMA}"
        return {"ssim": f"{window}, data range 1, per channel, valid positions, mean over frames"}
