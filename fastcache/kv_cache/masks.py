"""Chunk plans, and the attention masks that make one forward over all frames equal to chunk-by-chunk causal attention.

Tokens are frame-major: S tokens per latent frame, T = F * S in all. A plan is the latent frames of each chunk. Masks
are bool, True where query (row) sees key (column), and are cached by (plan, S, window, device), so they are shared:
do not write to them. Rules after Self-Forcing (github.com/guandeh17/Self-Forcing).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastcache.errors import UserError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

FLEX_MULTIPLE = 128
Device = torch.device | str


def chunk_plan(num_frames: int, chunk_size: int, policy: str = "exact") -> tuple[int, ...]:
    """Latent frames per chunk.

    "exact": num_frames must be a multiple of chunk_size. "front_remainder": the first chunk takes the remainder too,
    and fewer frames than a chunk are one chunk. "first_frame": one frame, then chunks; the rest must be a multiple.
    Raises UserError on a length that does not fit, an unknown policy, or a size below 1.
    """
    if num_frames < 1 or chunk_size < 1:
        raise UserError(f"num_frames {num_frames} and chunk_size {chunk_size} must both be at least 1")
    if policy not in ("exact", "front_remainder", "first_frame"):
        raise UserError(f"chunk policy {policy!r} is not one of exact, front_remainder, first_frame")
    remainder_first = min(num_frames, chunk_size + num_frames % chunk_size)
    first = {"exact": 0, "front_remainder": remainder_first, "first_frame": 1}[policy]
    count, left = divmod(num_frames - first, chunk_size)
    if left:
        lower, upper = num_frames - left, num_frames - left + chunk_size
        nearest = f"{lower} or {upper}" if lower else f"{upper}"
        raise UserError(f"{num_frames} frames do not fit chunks of {chunk_size} ({policy}); take {nearest}")
    return (first,) * (first > 0) + (chunk_size,) * count


def chunk_ends(plan: Sequence[int], tokens_per_frame: int, device: Device = "cpu") -> Tensor:
    """int64 [T]: for each token the index just past the last token of its chunk."""
    sizes = torch.tensor(plan, device=device) * tokens_per_frame
    return sizes.cumsum(0).repeat_interleave(sizes, output_size=sum(plan) * tokens_per_frame)


def pad_len(length: int, multiple: int = FLEX_MULTIPLE) -> int:
    """The padded length, length itself if it is a multiple already: 32760 -> 32768.

    Undo padding by x[:, :length]; x[:, :-(padded - length)] is empty when nothing was padded.
    """
    return -(-length // multiple) * multiple


def dense_block_mask(
    plan: Sequence[int], tokens_per_frame: int, window_frames: int | None = None, device: Device = "cpu"
) -> Tensor:
    """bool [T, T]: a token sees its own chunk and all earlier ones, and itself.

    window_frames: only the last so many latent frames up to its chunk's end, its own chunk included.
    """
    return _dense(tuple(plan), tokens_per_frame, _checked(window_frames), torch.device(device), False)


def teacher_forcing_mask(plan: Sequence[int], tokens_per_frame: int, device: Device = "cpu") -> Tensor:
    """bool [2T, 2T] over [clean frames | noisy frames], both at rotary positions 0..F-1.

    Clean rows are block-causal among the clean; a noisy row sees its own noisy chunk and the clean chunks before it.
    No window: half of the rule would have none.
    """
    return _dense(tuple(plan), tokens_per_frame, None, torch.device(device), True)


def flex_block_mask(
    plan: Sequence[int],
    tokens_per_frame: int,
    window_frames: int | None = None,
    device: Device = "cpu",
    teacher_forcing: bool = False,
) -> "BlockMask":
    """The same rules for flex attention, over pad_len(T) (teacher forcing: pad_len(2T)) tokens.

    A padded token sees itself only, and no real token sees it. Raises UserError for teacher forcing with a window.
    """
    if teacher_forcing and window_frames is not None:
        raise UserError("teacher forcing has no windowed mask; drop window_frames or teacher_forcing")
    return _flex(tuple(plan), tokens_per_frame, _checked(window_frames), torch.device(device), teacher_forcing)


def _checked(window_frames: int | None) -> int | None:
    if window_frames is not None and window_frames < 1:
        raise UserError(f"window_frames {window_frames} must be at least 1, or None for all frames")
    return window_frames


@lru_cache(maxsize=8)
def _dense(
    plan: tuple[int, ...], tokens_per_frame: int, window: int | None, device: torch.device, teacher: bool
) -> Tensor:
    rule, length = _rule(plan, tokens_per_frame, window, device, teacher)
    index = torch.arange(length, device=device)
    return rule(None, None, index[:, None], index[None, :])


@lru_cache(maxsize=8)
def _flex(
    plan: tuple[int, ...], tokens_per_frame: int, window: int | None, device: torch.device, teacher: bool
) -> "BlockMask":
    # imported here: it loads sympy, half a second that sampling does not need
    from torch.nn.attention.flex_attention import create_block_mask

    rule, length = _rule(plan, tokens_per_frame, window, device, teacher)
    padded = pad_len(length)
    return create_block_mask(rule, None, None, padded, padded, device=str(device))


MaskRule = Callable[[Tensor | None, Tensor | None, Tensor, Tensor], Tensor]


def _rule(
    plan: tuple[int, ...], tokens_per_frame: int, window: int | None, device: torch.device, teacher: bool
) -> tuple[MaskRule, int]:
    """The mask as a function of (batch, head, query, key) token indices, and the unpadded sequence length.

    Every row's visible keys are one range [low, high), for a noisy teacher row a second one. The tables reach over
    the padding with empty ranges, so that flex may index them anywhere below pad_len(length).
    """
    ends = chunk_ends(plan, tokens_per_frame, device)
    total = len(ends)
    reach = total if window is None else window * tokens_per_frame
    low, high = (ends - reach).clamp(min=0), ends
    low2 = high2 = torch.zeros_like(ends)
    if teacher:
        sizes = torch.tensor(plan, device=device) * tokens_per_frame
        starts = ends - sizes.repeat_interleave(sizes, output_size=total)
        none = torch.zeros_like(ends)
        low, high = torch.cat([low, none]), torch.cat([high, starts])
        low2, high2 = torch.cat([none, starts + total]), torch.cat([none, ends + total])
    length = len(high)
    pad = (0, pad_len(length) - length)
    low, high, low2, high2 = (torch.nn.functional.pad(x, pad) for x in (low, high, low2, high2))

    def rule(batch: Tensor | None, head: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
        return ((k >= low[q]) & (k < high[q])) | ((k >= low2[q]) & (k < high2[q])) | (q == k)

    return rule, length
