"""Computing some tokens of a step and reusing the rest."""

from torch import Tensor

from fastcache.step import Runner, Step


def refresh(step: Step, run: Runner, residual: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, float]:
    """Compute ``tokens`` (int64 [M], unique), add ``residual`` [B, L, C] to the others.

    Returns the step's tokens, the residual with the computed rows replaced, and the fraction computed. All tokens
    take the full path, none touch the model at all.
    """
    total = step.x.shape[1]
    if tokens.numel() == 0:
        return step.x + residual, residual, 0.0
    if tokens.numel() == total:
        out = run.full()
        return out, out - step.x, 1.0
    fresh = run.selected(tokens)
    out = (step.x + residual).index_copy(1, tokens, fresh)
    return out, residual.index_copy(1, tokens, fresh - step.x[:, tokens]), tokens.numel() / total
