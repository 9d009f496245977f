"""The options of a real Wan model (conf/model/wan_*.yaml), checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from fastcache import encoders
from fastcache.errors import UserError
from fastcache.models.config import DiTConfig
from fastcache.models.wan.vae import CHANNELS, STRIDE
from fastcache.models.wan_sizes import WAN_SIZES

VAE_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Options:
    """``encoders`` is one folder in the diffusers layout, the next four name folders of their own; None: not named.

    Raises UserError on a value that no model can use.
    """

    name: str
    size: str  # of the published models, a key of WAN_SIZES
    height: int = 480  # pixels
    width: int = 832
    precision: str = "sf_bf16"
    part: str = "auto"  # which model where a checkpoint file holds several
    encoders: str | None = None
    text_encoder: str | None = None
    tokenizer: str | None = None
    image_encoder: str | None = None
    vae: str | None = None
    encode_on: str | None = None  # device of the text and image encoders; None: the DiT's
    vae_dtype: str = "float32"
    vae_tiling: bool = False
    mask_on_store: bool = False  # I2V: tell a store pass that every frame is given
    sizes: Mapping[str, Any] | None = None  # sizes that differ from the published ones

    def __post_init__(self):
        if self.size not in WAN_SIZES:
            raise UserError(f"model.size={self.size} is not one of {', '.join(WAN_SIZES)}")
        step = STRIDE * self.config.patch_size[1]
        for key, value in (("height", self.height), ("width", self.width)):
            if isinstance(value, bool) or not isinstance(value, int) or value < step or value % step:
                raise UserError(f"model.{key}={value}: expected a multiple of {step} pixels")
        if self.vae_dtype not in VAE_DTYPES:
            raise UserError(f"model.vae_dtype={self.vae_dtype} is not one of {', '.join(VAE_DTYPES)}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Options":
        """From a configuration node. Raises UserError on an option that there is none of."""
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(options) - set(known)):
            raise UserError(f"a Wan model has no option {unknown[0]}; its options: {', '.join(known)}")
        return cls(**options)

    @property
    def config(self) -> DiTConfig:
        changed: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in (self.sizes or {}).items()}
        try:
            return replace(WAN_SIZES[self.size], precision=self.precision, **changed)
        except TypeError as error:
            raise UserError(f"model.sizes: {str(error).rpartition(' got an ')[2]}") from None

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        return CHANNELS, self.height // STRIDE, self.width // STRIDE

    @property
    def needs(self) -> tuple[str, ...]:
        """What the model is shown besides text."""
        return {"t2v": (), "i2v": ("image",), "vace": ("control",)}[self.config.layout]

    def folders(self) -> dict[str, Path]:
        """The folders of all encoders the model needs. Raises UserError on one that is missing."""
        own = {name: getattr(self, name) for name in encoders.OPTIONS}
        names = [name for name in encoders.NAMES if name != "image_encoder" or "image" in self.needs]
        return encoders.needed(own, names, self.name)

    @property
    def vae_torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.vae_dtype)
