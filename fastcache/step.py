"""The vocabulary of the project: what a cache method sees of the model.

Shapes: B batch, L tokens of a chunk, C width, F latent frames of a chunk, H x W patches of a frame, L = F * H * W.
Tokens are ordered frame-major, then row, then column.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


class Grid(NamedTuple):
    """Tokens of a chunk: latent frames x patch rows x patch columns."""

    frames: int
    height: int
    width: int

    @property
    def tokens_per_frame(self) -> int:
        return self.height * self.width

    @property
    def tokens(self) -> int:
        return self.frames * self.height * self.width


Features = dict[str, Tensor]
"""Module outputs before their gates, keyed "branch.block.module" with module one of self_attn, cross_attn, ffn."""


class Runner(Protocol):
    """The transformer blocks of one denoising step, all branches and their engines included."""

    def full(self) -> Tensor:
        """Run every block on every token: [B, L, C]."""
        ...

    def selected(self, tokens: Tensor) -> Tensor:
        """Run every block on ``tokens`` (int64 [M], unique) only: [B, M, C] in their order. Needs an earlier full()
        in the same chunk; the other tokens keep the K/V of the step that last computed them."""
        ...

    def record(self) -> tuple[Tensor, Features]:
        """As full(), and the module outputs that replay() takes."""
        ...

    def replay(self, features: Features) -> Tensor:
        """Rebuild the tokens [B, L, C] from given module outputs and this step's modulation; touches no K/V."""
        ...

    def modulated_input(self) -> Tensor:
        """What the first main block hands to its self-attention: norm1(x) * (1 + scale) + shift, [B, L, C]."""
        ...


@dataclass(frozen=True)
class Step:
    """One denoising step of one chunk, before the blocks run."""

    x: Tensor  # [B, L, C] tokens after patch embedding
    e0: Tensor  # [B, F, 6, C] timestep modulation
    grid: Grid
    chunk_idx: int
    step_idx: int
    forced_full: bool
    sigma: float


class StepResult(NamedTuple):
    x: Tensor  # [B, L, C] tokens for the head
    fraction: float  # tokens computed / tokens, in [0, 1]
