"""Samplers: which noise levels a chunk visits and how its latent moves between them.

Flow matching: x_t = (1 - sigma) * x0 + sigma * noise, and the DiT predicts flow = noise - x0. The table and the warped
step list are those of Self-Forcing (guandeh17/Self-Forcing, utils/scheduler.py and pipeline/causal_inference.py).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from fastcache.errors import UserError

TABLE_SIZE = 1000
STEPS = (1000, 750, 500, 250)


class FlowTable:
    """The 1000 shifted noise levels, highest first: ``sigmas`` in (0, 1] and ``timesteps`` = 1000 * sigma, fp32."""

    def __init__(self, shift: float = 5.0, size: int = TABLE_SIZE) -> None:
        # One level more than asked, the last (sigma 0) dropped: the table never holds a noise-free entry.
        linear = torch.linspace(1.0, 0.0, size + 1)[:-1]
        self.sigmas = shift * linear / (1 + (shift - 1) * linear)
        self.timesteps = self.sigmas * 1000

    def nearest(self, t: Tensor) -> Tensor:
        """Index of the entry closest to each timestep, int64 of t's shape. t = 0 finds the last entry, not sigma 0."""
        table = self.timesteps.to(t.device)
        return (table - t.float().unsqueeze(-1)).abs().argmin(-1)

    def sigma(self, t: Tensor) -> Tensor:
        """Noise level of the entry closest to each timestep, fp32 of t's shape."""
        return self.sigmas.to(t.device)[self.nearest(t)]

    def warp(self, steps: Sequence[float]) -> Tensor:
        """Timesteps [S] of steps of an unshifted grid: 1000, 750, 500, 250 -> 1000, 937.5, 833.33, 625 at shift 5."""
        return self.timesteps[[len(self.timesteps) - int(step) for step in steps]]


def add_noise(x0: Tensor, noise: Tensor, sigma: Tensor | float) -> Tensor:
    """(1 - sigma) * x0 + sigma * noise in fp32, in x0's dtype."""
    return ((1 - sigma) * x0.float() + sigma * noise.float()).to(x0.dtype)


def x0_from_flow(x: Tensor, flow: Tensor, sigma: Tensor | float) -> Tensor:
    """x - sigma * flow in fp64, in x's dtype."""
    return (x.double() - sigma * flow.double()).to(x.dtype)


def euler_step(x: Tensor, flow: Tensor, sigma: Tensor | float, sigma_next: Tensor | float) -> Tensor:
    """x + (sigma_next - sigma) * flow in fp64, in x's dtype; to sigma_next = 0 this is x0."""
    return (x.double() + (sigma_next - sigma) * flow.double()).to(x.dtype)


@dataclass(eq=False)
class Sampler(ABC):
    """What the samplers share: the noise levels of a chunk and its way to the clean latent.

    Args:
        steps: places on an unshifted grid of 1000, highest first.
        warp: read ``steps`` through the shifted table; without it they are the timesteps themselves.
        shift: shift of the table.
        frames_per_chunk: latent frames denoised together (part of a checkpoint: the model was trained with it).
        store: what commits a finished chunk: "clean", a forward at t = 0, or "reuse_last", the K/V that the chunk's
            denoising steps left behind (an experiment).

    Raises UserError on any other value. ``timesteps`` and ``sigmas`` are fp32 [S].
    """

    name: ClassVar[str]

    steps: Sequence[float] = STEPS
    warp: bool = True
    shift: float = 5.0
    frames_per_chunk: int = 3
    store: str = "clean"

    def __post_init__(self) -> None:
        self._check()
        table = FlowTable(self.shift)
        self.timesteps = table.warp(self.steps) if self.warp else torch.tensor(self.steps, dtype=torch.float32)
        self.sigmas = table.sigma(self.timesteps)
        self._sigmas = [float(s) for s in self.sigmas] + [0.0]  # exact in fp64, and no device sync when used

    def _check(self) -> None:
        self.steps = _check_steps(self.steps)
        if not isinstance(self.warp, bool):
            raise UserError(f"sampler.warp={self.warp}: expected true or false")
        if self.warp and any(step != int(step) for step in self.steps):
            raise UserError(f"sampler.steps={list(self.steps)}: warped steps are places on a grid: whole numbers")
        if not (isinstance(self.shift, int | float) and math.isfinite(self.shift) and self.shift > 0):
            raise UserError(f"sampler.shift={self.shift}: expected a number above 0, e.g. sampler.shift=5")
        if not isinstance(self.frames_per_chunk, int) or self.frames_per_chunk < 1:
            raise UserError(f"sampler.frames_per_chunk={self.frames_per_chunk}: expected a whole number, 1 or more")
        if self.store not in ("clean", "reuse_last"):
            raise UserError(f"sampler.store={self.store}: expected clean or reuse_last")

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    def sigma(self, i: int) -> float:
        """Noise level of step i; 0 after the last."""
        return self._sigmas[i]

    def x0(self, x: Tensor, flow: Tensor, i: int) -> Tensor:
        """The clean latent that the flow at step i points to, in x's shape and dtype."""
        return x0_from_flow(x, flow, self.sigma(i))

    @abstractmethod
    def next(self, x: Tensor, flow: Tensor, i: int, noise: Callable[[], Tensor], to: int | None = None) -> Tensor:
        """The latent at step ``to`` (the one after i), or x0 after the last step; ``noise`` gives a tensor of x's shape
        and is called only if this sampler adds noise there."""

    def noise_step(self, i: int) -> int:
        """Address of the noise added before step i (see ``noise.Noise``)."""
        return i

    def config(self) -> dict[str, Any]:
        """Everything that changes a result, in plain types."""
        return {"name": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}, "steps": list(self.steps)}


@dataclass(eq=False)
class FewStep(Sampler):
    """Few-step sampling of distilled models (Self-Forcing): predict x0, then noise it again to the next level.

    Args (beyond Sampler's):
        renoise: "fresh" draws new noise for every step, "shared" keeps the chunk's initial noise.
    """

    name: ClassVar[str] = "few_step"

    renoise: str = "fresh"

    def _check(self) -> None:
        super()._check()
        if self.renoise not in ("fresh", "shared"):
            raise UserError(f"sampler.renoise={self.renoise}: expected fresh or shared")

    def next(self, x: Tensor, flow: Tensor, i: int, noise: Callable[[], Tensor], to: int | None = None) -> Tensor:
        to = i + 1 if to is None else to
        x0 = self.x0(x, flow, i)
        return x0 if to == self.num_steps else add_noise(x0, noise(), self.sigma(to))

    def noise_step(self, i: int) -> int:
        return i if self.renoise == "fresh" else 0


@dataclass(eq=False)
class Euler(Sampler):
    """Deterministic flow-Euler steps between the same noise levels; the only randomness is the initial noise."""

    name: ClassVar[str] = "euler"

    def next(self, x: Tensor, flow: Tensor, i: int, noise: Callable[[], Tensor], to: int | None = None) -> Tensor:
        return euler_step(x, flow, self.sigma(i), self.sigma(i + 1 if to is None else to))


def _check_steps(steps: Sequence[float]) -> tuple[float, ...]:
    values = tuple(steps) if isinstance(steps, Sequence) and not isinstance(steps, str) else ()
    good = values and all(isinstance(s, int | float) and 1 <= s <= TABLE_SIZE for s in values)
    if not good or any(a <= b for a, b in zip(values, values[1:], strict=False)):
        hint = "expected falling numbers from 1000 down to 1, e.g. sampler.steps=[1000,750,500,250]"
        raise UserError(f"sampler.steps={steps}: {hint}")
    return values
