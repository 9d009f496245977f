"""Debug mode: what is kept of a token is all of one age.

age(j) is the last step at which token j was computed in this chunk. The residual that a method keeps of j and the
provisional K/V of j in every block all come from step age(j). A full forward sets every age to the current step, a
selective one those of its tokens, reuse and forecasts none. Checked after each denoising step where an engine is built
with debug=True; otherwise nothing here runs.
"""

from typing import Any

import torch
from torch import Tensor

from fastcache.kv_cache import CacheNotFilledError
from fastcache.step import Runner, Step


class Ages:
    """The ages [L] of the tokens of the current chunk, and what was kept of them after the step before."""

    def __init__(self, dit: Any, cache_tag: str):
        self.dit, self.tag = dit, cache_tag
        self.fresh = self.ages = torch.empty(0)
        self.residual: Tensor | None = None
        self.kv: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def watch(self, run: Any) -> Runner:
        """The runner, looked over the shoulder for one step."""
        self.fresh = torch.zeros(run.x.shape[1], dtype=torch.bool, device=run.x.device)
        return _Watched(run, self.fresh)

    def check(self, step: Step, method: Any, out: Tensor) -> None:
        """Raises AssertionError where a step left tokens of mixed age; ``out`` [B, L, C] is what it returned."""
        if step.step_idx == 0:
            self.ages, self.residual, self.kv = torch.full_like(self.fresh, -1, dtype=torch.int64), None, {}
        self.ages = self.ages.masked_fill(self.fresh, step.step_idx)
        self._residual(step, method.residual, out)
        for branch, blocks in self.dit.branch_blocks.items():
            for place, block in enumerate(blocks):
                self._kv(step, branch, place, block.self_attn)

    def _residual(self, step: Step, kept: Tensor | None, out: Tensor) -> None:
        if kept is not None:
            stale = ~self.fresh
            if self.residual is not None:
                reused = step.x + self.residual
                self._same(step, "was not given back the residual kept of it", (out != reused).any(-1)[0] & stale)
                self._same(step, "has a residual changed by a step that did not compute it",
                           (kept != self.residual).any(-1)[0] & stale)  # fmt: skip
            self._same(step, "has a residual of another step", (kept != out - step.x).any(-1)[0] & self.fresh)
        self.residual = kept

    def _kv(self, step: Step, branch: str, place: int, module: Any) -> None:
        try:
            k, v = self.dit.kv_cache_engines[branch].get_current_kv(module, cache_tag=self.tag)
        except CacheNotFilledError:
            return  # methods that always compute whole chunks keep none
        if former := self.kv.get((branch, place)):
            changed = (k != former[0]).flatten(2).any(-1)[0] | (v != former[1]).flatten(2).any(-1)[0]
            where = f"in block {place} of {branch}"
            self._same(step, f"has K/V {where} changed by a step that did not compute it", changed & ~self.fresh)
            self._same(step, f"has K/V {where} of an earlier step", self.fresh & ~changed)
        self.kv[branch, place] = k.clone(), v.clone()  # engines may write in place

    def _same(self, step: Step, what: str, wrong: Tensor) -> None:
        if bool(wrong.any()):
            token = int(wrong.nonzero()[0])
            age = f"last computed at step {int(self.ages[token])}"
            raise AssertionError(f"chunk {step.chunk_idx}, step {step.step_idx}: token {token}, {age}, {what}")


class _Watched:
    """A runner that marks the tokens it computes."""

    def __init__(self, run: Any, fresh: Tensor):
        self._run, self._fresh = run, fresh

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def full(self) -> Tensor:
        self._fresh.fill_(True)
        return self._run.full()

    def record(self) -> Any:
        self._fresh.fill_(True)
        return self._run.record()

    def selected(self, tokens: Tensor) -> Tensor:
        self._fresh[tokens] = True
        return self._run.selected(tokens)
