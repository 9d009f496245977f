"""What every cache method shares: strict options, lifetimes, the kept residual, distances."""

import math
import warnings
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from fastcache.errors import UserError
from fastcache.rescale import Rescale
from fastcache.schedule import Schedule
from fastcache.step import Runner, Step, StepResult

INDICATORS = ("modulated_input", "e0")


@dataclass(kw_only=True, eq=False)
class CacheMethod:
    """Decides, step by step, what to compute. A subclass writes ``step``; its options are its dataclass fields.

    ``dial`` names the one speed/quality option (None: there is none); at ``off`` everything is computed, at ``most``
    only the forced steps. ``selective`` methods call ``Runner.selected``. State belongs to a video (``begin_video``)
    or to a chunk (``begin_chunk``) and is cleared there. One instance serves one ``cache_tag``.
    """

    name: ClassVar[str] = "base"
    dial: ClassVar[str | None] = None
    off: ClassVar[float | None] = None
    most: ClassVar[float | None] = None
    selective: ClassVar[bool] = False
    indicators: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self.forced: Schedule = ()  # of the rollout that is to begin
        self.address = (0, 0)  # seed and index of the video: what random choices are keyed by
        self.nonfinite_events = 0
        self.decisions: list[float | list[float | None] | None] = []
        self.residual: Tensor | None = None
        self.check()
        self.begin_video()

    def check(self) -> None:
        """Raise UserError on an option out of its range."""

    def begin_video(self) -> None:
        """Forget everything about the former video."""
        self.begin_chunk(-1)

    def begin_chunk(self, chunk_idx: int) -> None:
        """Forget what belongs to the former chunk; called before a chunk's first step."""
        self.residual = None
        self.decisions = []

    def step(self, step: Step, run: Runner) -> StepResult:
        """One denoising step: call ``run`` for what must be computed, return tokens and the fraction computed.

        Notes one entry a step in ``decisions``: what was compared with the dial, None where nothing was.
        """
        raise NotImplementedError

    def config(self) -> dict[str, object]:
        """The whole resolved method, as plain values."""
        values: dict[str, object] = {"name": self.name}
        for field in fields(self):
            value = getattr(self, field.name)
            values[field.name] = value.config() if isinstance(value, Rescale) else value
        return values

    @property
    def clamps(self) -> int:
        """Distances held to the range of the rescale fit so far."""
        rescale = getattr(self, "rescale", None)
        return 0 if rescale is None else rescale.clamps

    def memory_bytes(self) -> int:
        """Bytes of the tensors held between steps."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(vars(self))}
        return sum(storages.values())

    def estimate_bytes(self, numbers: int, blocks: int, item: int) -> int:
        """What memory_bytes() will come to at most, about: ``numbers`` in a tensor [L, C], ``item`` bytes each."""
        return numbers * item  # the residual

    def full(self, step: Step, run: Runner) -> StepResult:
        """Compute every block on every token and keep the residual for later steps."""
        out = run.full()
        self.keep(out - step.x)
        return StepResult(out, 1.0)

    def reuse(self, step: Step) -> StepResult:
        """Compute nothing: the tokens plus the kept residual."""
        assert self.residual is not None
        return StepResult(step.x + self.residual, 0.0)

    def note(self, *values: float | None) -> None:
        """Record what this step compared with the dial: one value or one a group; None, or not finite: nothing."""
        plain = [v if v is not None and math.isfinite(v) else None for v in values]
        self.decisions.append(plain[0] if len(plain) == 1 else plain)

    def keep(self, residual: Tensor) -> None:
        """Remember a residual [B, L, C]; one that is not finite is dropped, so that the next step computes in full."""
        if bool(residual.isfinite().all()):
            self.residual = residual
        else:
            self.residual = None
            self.nonfinite("the residual of the blocks")

    def nonfinite(self, what: str) -> None:
        """Count a value that is not finite; the caller computes in full. Warns the first time only."""
        if self.nonfinite_events == 0:
            warnings.warn(
                f"{self.name}: {what} is not finite; computing such steps in full (this is said once)",
                RuntimeWarning,
                stacklevel=3,
            )
        self.nonfinite_events += 1


@dataclass(kw_only=True, eq=False)
class AdaptiveMethod(CacheMethod):
    """A method that compares an indicator between steps and computes where a running score reaches ``thresh``."""

    dial: ClassVar[str | None] = "thresh"
    off: ClassVar[float | None] = 0.0
    most: ClassVar[float | None] = 1e9
    indicators: ClassVar[tuple[str, ...]] = INDICATORS

    thresh: float = 0.0
    indicator: str = "modulated_input"
    rescale: Rescale | None = None

    def check(self) -> None:
        self.thresh = number(self, "thresh", low=0.0)
        choice(self, "indicator", self.indicators)
        if not (self.rescale is None or isinstance(self.rescale, Rescale)):
            raise UserError(f"{self.name}: rescale must be a Rescale or None, got {type(self.rescale).__name__}")

    def begin_chunk(self, chunk_idx: int) -> None:
        super().begin_chunk(chunk_idx)
        self.reference: Tensor | None = None

    def estimate_bytes(self, numbers: int, blocks: int, item: int) -> int:
        return numbers * item * (2 if self.indicator == "modulated_input" else 1)  # the residual, the indicator

    def expected(self, distance: float, step: Step) -> float:
        """A distance as expected relative error of reuse at this step; unchanged where there is no fit."""
        return distance if self.rescale is None else self.rescale(distance, step.step_idx)


def read_indicator(kind: str, step: Step, run: Runner) -> Tensor:
    """The tensor compared between steps: ``modulated_input`` [1, L, C] or ``e0`` [1, F, 6, C].

    Raises UserError for a batch: a mean over samples would make one video's result depend on its neighbours.
    """
    if step.x.shape[0] != 1:
        raise UserError(
            f"cache decisions are made per video, but the batch holds {step.x.shape[0]}; roll out one video at a time"
        )
    return step.e0 if kind == "e0" else run.modulated_input()


def rel_l1(current: Tensor, reference: Tensor) -> float:
    """Relative L1 distance mean|a - b| / mean|b|, in float32 whatever the tensors are in."""
    base = reference.float()
    return float(((current.float() - base).abs().mean() / (base.abs().mean() + 1e-8)).item())


def rel_l1_per_token(current: Tensor, reference: Tensor) -> Tensor:
    """[1, L, C] -> [L] float32: the relative L1 distance of each token."""
    base = reference.float()
    return (current.float() - base).abs().mean(dim=(0, -1)) / (base.abs().mean(dim=(0, -1)) + 1e-8)


def number(method: CacheMethod, key: str, low: float, high: float = math.inf) -> float:
    """The option as a float. Raises UserError unless it is a finite number in [low, high]."""
    value = getattr(method, key)
    if isinstance(value, Real) and not isinstance(value, bool):
        result = float(value)
        if math.isfinite(result) and low <= result <= high:
            return result
    bounds = f">= {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    raise UserError(f"{method.name}: {key}={value} is not a finite number {bounds}; e.g. {key}={max(low, 0.3):g}")


def choice(method: CacheMethod, key: str, allowed: tuple[str, ...]) -> None:
    """Raises UserError unless the option is one of ``allowed``."""
    if getattr(method, key) not in allowed:
        raise UserError(f"{method.name}: {key}={getattr(method, key)} is unknown; choose one of {', '.join(allowed)}")


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in _tensors(item)]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors(item)]
    return []
