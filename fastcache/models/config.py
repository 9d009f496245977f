"""Sizes of a causal Wan DiT."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from fastcache.errors import UserError
from fastcache.models.precision import PRECISIONS
from fastcache.models.rope import WAN_THETA

NEEDS: dict[str, tuple[str, ...]] = {"t2v": (), "i2v": ("image",), "vace": ("control",)}
"""What a model of each layout is shown besides text."""


@dataclass(frozen=True)
class DiTConfig:
    """Sizes of a causal Wan DiT; the defaults are Wan2.1 T2V-1.3B."""

    dim: int = 1536
    ffn_dim: int = 8960
    num_heads: int = 12
    num_layers: int = 30
    in_dim: int = 16
    out_dim: int = 16
    freq_dim: int = 256
    text_dim: int = 4096
    text_len: int = 512
    patch_size: tuple[int, int, int] = (1, 2, 2)
    eps: float = 1e-6
    image_dim: int = 0  # width of the image encoder's tokens (I2V); 0: no image context
    image_len: int = 0  # its tokens, which come before the text in cross-attention
    vace_layers: tuple[int, ...] = ()  # main blocks that a VACE block's hint is added after
    vace_in_dim: int = 0  # channels of the control
    rope_theta: tuple[float, float, float] = WAN_THETA
    precision: str = "sf_bf16"

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            raise UserError(f"precision={self.precision} is not one of {', '.join(PRECISIONS)}")
        if self.dim % self.num_heads or self.dim // self.num_heads % 2:
            raise UserError(f"dim={self.dim} must split into num_heads={self.num_heads} heads of even width")
        if bool(self.image_dim) != bool(self.image_len):
            raise UserError(f"image_dim={self.image_dim}, image_len={self.image_len}: expected both or neither")
        if bool(self.vace_in_dim) != bool(self.vace_layers):
            raise UserError(f"vace_in_dim={self.vace_in_dim}, vace_layers={self.vace_layers}: expected both or neither")
        if self.vace_layers and not 0 <= self.vace_layers[0] <= self.vace_layers[-1] < self.num_layers:
            raise UserError(
                f"vace_layers={self.vace_layers}: expected block indices below num_layers={self.num_layers}"
            )
        if list(self.vace_layers) != sorted(set(self.vace_layers)):
            raise UserError(f"vace_layers={self.vace_layers}: expected rising block indices")

    @property
    def context_len(self) -> int:
        """Rows of the cross-attention context: image tokens, then text."""
        return self.image_len + self.text_len

    @property
    def layout(self) -> str:
        """t2v, i2v (more channels go in than come out) or vace."""
        return "vace" if self.vace_layers else "i2v" if self.image_dim else "t2v"

    @property
    def needs(self) -> tuple[str, ...]:
        """What the model is shown besides text."""
        return NEEDS[self.layout]

    @classmethod
    def from_dict(cls, values: dict) -> "DiTConfig":
        """From a plain mapping; keys of other programs' configs that name no size here are left out."""
        known = {f.name for f in fields(cls)}
        chosen: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
        return cls(**chosen)

    def to_dict(self) -> dict:
        return asdict(self)
