"""Guidance with shared decisions: the negative pass computes the tokens that the positive one decided to compute."""

import copy
from typing import Any

import torch
from torch import Tensor

from fastcache.methods.base import AdaptiveMethod, CacheMethod
from fastcache.methods.tokenwise import refresh
from fastcache.step import Features, Runner, Step, StepResult


def for_guidance(method: Any, shared: bool) -> dict[str, Any]:
    """The methods {pos, neg} of a guided rollout, each with state of its own.

    ``shared``: neg repeats pos's decisions. Methods that decide by the schedule or by counting (reuse, taylorseer) come
    to the same decisions by themselves. Events of neg are counted from those of ``method`` on.
    """
    pos, neg = method, None
    if shared and isinstance(method, AdaptiveMethod):
        pos = Leader(method)
        neg = Follower(pos)
    else:
        method.begin_video()  # so that no state of a former video is copied
        rescale = getattr(method, "rescale", None)
        neg = copy.deepcopy(method, {id(rescale): rescale})  # the fit counts for both
    neg.nonfinite_events = method.nonfinite_events
    return {"pos": pos, "neg": neg}


class Leader:
    """A method that leaves word of which tokens its last step computed: int64 [M], or None for all."""

    def __init__(self, method: CacheMethod):
        self.method = method
        self.computed: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def step(self, step: Step, run: Runner) -> StepResult:
        seen = _Watched(run, step)
        result = self.method.step(step, seen)
        self.computed = seen.computed
        return result


class Follower(CacheMethod):
    """Computes what its leader's last step computed, on its own tokens, residual and K/V."""

    name = "follow"

    def __init__(self, leader: Leader):
        self.leader = leader
        super().__init__()

    @property
    def selective(self) -> bool:  # type: ignore[override]
        return self.leader.selective

    def step(self, step: Step, run: Runner) -> StepResult:
        self.note(None)
        tokens = self.leader.computed
        if tokens is None or self.residual is None:
            return self.full(step, run)
        out, residual, fraction = refresh(step, run, self.residual, tokens)
        if fraction:
            self.keep(residual)
        return StepResult(out, fraction)


class _Watched:
    """A Runner that notes what is computed."""

    def __init__(self, run: Runner, step: Step):
        self.run = run
        self.computed: Tensor | None = torch.empty(0, dtype=torch.int64, device=step.x.device)

    def full(self) -> Tensor:
        self.computed = None
        return self.run.full()

    def selected(self, tokens: Tensor) -> Tensor:
        self.computed = tokens
        return self.run.selected(tokens)

    def record(self) -> tuple[Tensor, Features]:
        self.computed = None
        return self.run.record()

    def replay(self, features: Features) -> Tensor:
        return self.run.replay(features)

    def modulated_input(self) -> Tensor:
        return self.run.modulated_input()
