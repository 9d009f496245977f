"""Sizes of the published Wan2.1 transformers (github.com/Wan-Video/Wan2.1)."""

from fastcache.models.config import DiTConfig

_LARGE = DiTConfig(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40).to_dict()

WAN_SIZES: dict[str, DiTConfig] = {
    "t2v_1_3b": DiTConfig(),
    "t2v_14b": DiTConfig.from_dict(_LARGE),
    # 36 input channels: 16 noisy, 4 mask, 16 image latent; 257 CLIP tokens of width 1280
    "i2v_14b": DiTConfig.from_dict(_LARGE | {"in_dim": 36, "image_dim": 1280, "image_len": 257}),
    "vace_1_3b": DiTConfig(vace_in_dim=96, vace_layers=tuple(range(0, 30, 2))),
    "vace_14b": DiTConfig.from_dict(_LARGE | {"vace_in_dim": 96, "vace_layers": tuple(range(0, 40, 5))}),
}
