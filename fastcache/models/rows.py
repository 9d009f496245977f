"""Which tokens of a chunk a forward touches, and which frame's modulation each of them takes."""

from torch import Tensor

from fastcache.step import Grid


class Rows:
    """All tokens of a chunk (``sel`` None) or the selected ones, int64 [M]."""

    def __init__(self, grid: Grid, sel: Tensor | None = None):
        self.sel = sel
        self.frame = None if sel is None else sel // grid.tokens_per_frame

    def shift_scale(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """x [B, M, C] * (1 + scale) + shift with shift, scale [B, F, C], or [B, 1, C] for one value a chunk."""
        if self.frame is not None:
            return x * (1 + self._rows(scale)) + self._rows(shift)
        wide = x.unflatten(1, (shift.shape[1], -1))
        return (wide * (1 + scale[:, :, None]) + shift[:, :, None]).flatten(1, 2)

    def gate(self, y: Tensor, gate: Tensor) -> Tensor:
        """y [B, M, C] * gate [B, F, C]."""
        if self.frame is not None:
            return y * self._rows(gate)
        return (y.unflatten(1, (gate.shape[1], -1)) * gate[:, :, None]).flatten(1, 2)

    def _rows(self, per_frame: Tensor) -> Tensor:
        return per_frame if per_frame.shape[1] == 1 else per_frame[:, self.frame]
