"""Three-axis rotary position embedding of Wan2.1 (time, row, column) over adjacent channel pairs."""

import torch
from torch import Tensor

from fastcache.kv_cache import PositionOutOfRangeError
from fastcache.step import Grid

MAX_POSITIONS = 1024
WAN_THETA = (10000.0, 10000.0, 10000.0)


def axis_pairs(head_dim: int) -> tuple[int, int, int]:
    """Channel pairs per axis: rows and columns get a third each (floor), time the rest; 128 -> 22, 21, 21."""
    pairs = head_dim // 2
    return pairs - 2 * (pairs // 3), pairs // 3, pairs // 3


def rope_table(
    head_dim: int, grid: Grid, start_frame: int, theta: tuple[float, float, float] = WAN_THETA, device=None
) -> Tensor:
    """Cosines and sines [L, 2, head_dim / 2] in float64 of a chunk that starts at latent frame ``start_frame``.

    Raises PositionOutOfRangeError beyond 1024 positions on an axis (the length of Wan's table).
    """
    last = max(start_frame + grid.frames, grid.height, grid.width)
    if last > MAX_POSITIONS:
        raise PositionOutOfRangeError(f"position {last - 1} is beyond the {MAX_POSITIONS} rotary positions of an axis")
    token = torch.arange(grid.tokens, device=device)
    positions = (
        start_frame + token // grid.tokens_per_frame,
        token % grid.tokens_per_frame // grid.width,
        token % grid.width,
    )
    parts = []
    for position, pairs, base in zip(positions, axis_pairs(head_dim), theta, strict=True):
        exponent = torch.arange(pairs, dtype=torch.float64, device=device) / pairs
        parts.append(position.double()[:, None] * base**-exponent)
    angles = torch.cat(parts, dim=1)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def apply_rope(x: Tensor, table: Tensor, compute: torch.dtype = torch.float64) -> Tensor:
    """Rotate the pairs (2k, 2k+1) of x [B, L, heads, head_dim] by table [L, 2, head_dim / 2]; result in x's dtype."""
    a, b = x.to(compute).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = table.to(compute)[:, None].unbind(2)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)
