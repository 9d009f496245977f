"""One pass of tokens through the blocks of all branches: the VACE stream first, then the main one with its hints."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fastcache.models.attention import AttentionPlan
from fastcache.models.rows import Rows

Watch = Callable[[str, int], Callable[[str, Tensor], None]]
"""(branch, block index) -> what is told of each of that block's module outputs."""


def run_blocks(
    dit: Any,
    x: Tensor,
    control: Tensor | None,
    e0: Tensor,
    rows: Rows,
    rope: Tensor,
    context: Tensor,
    plan: AttentionPlan,
    watch: Watch | None = None,
) -> Tensor:
    """Tokens x [B, M, C] after the last block. ``control`` [B, M, C]: the same rows of the control (VACE)."""

    def step(branch: str, index: int, block: Any, tokens: Tensor) -> Tensor:
        return block(tokens, e0, rows, rope, context, plan, None if watch is None else watch(branch, index))

    return _pass(dit, x, control, step)


def replay_blocks(
    dit: Any,
    x: Tensor,
    control: Tensor | None,
    e0: Tensor,
    rows: Rows,
    outputs: Callable[[str, int], dict[str, Tensor]],
) -> Tensor:
    """The same pass with given module outputs, under this step's gates."""

    def step(branch: str, index: int, block: Any, tokens: Tensor) -> Tensor:
        return block.replay(tokens, e0, rows, outputs(branch, index))

    return _pass(dit, x, control, step)


def _pass(dit: Any, x: Tensor, control: Tensor | None, step: Callable[[str, int, Any, Tensor], Tensor]) -> Tensor:
    hints: dict[int, Tensor] = {}
    if control is not None:
        stream = dit.vace_blocks[0].before_proj(control) + x
        for index, block in enumerate(dit.vace_blocks):
            stream = step("vace", index, block, stream)
            narrow = stream.to(block.after_proj.weight.dtype)
            hints[dit.config.vace_layers[index]] = block.after_proj(narrow) * dit.vace_scale[index]
    for index, block in enumerate(dit.blocks):
        x = step("main", index, block, x)
        if index in hints:
            x = x + hints[index]
    return x
