"""What forwards cost: operations and K/V bytes, counted from the sizes of a Wan DiT. No torch."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """Sizes of a DiT and of a chunk that decide its cost; ``config`` is a models.config.DiTConfig."""

    config: Any
    tokens: int  # of a chunk

    @classmethod
    def of(cls, config: Any, latent_shape: Sequence[int], frames_per_chunk: int) -> "Sizes":
        _, height, width = latent_shape
        pt, ph, pw = config.patch_size
        return cls(config, frames_per_chunk // pt * (height // ph) * (width // pw))


def forward_flops(sizes: Sizes, chunk_idx: int) -> float:
    """Floating-point operations (2 per multiply-add) of the blocks in one full forward of a chunk.

    Per token and block: 6 C x C projections, the FFN, attention over the past and the chunk, cross-attention; the K/V
    of the text, written once a video, are left out.
    """
    c, tokens = sizes.config, sizes.tokens
    linear = 6 * c.dim**2 + 2 * c.dim * c.ffn_dim
    attention = 2 * c.dim * (tokens * (chunk_idx + 1) + c.text_len)
    return 2.0 * c.num_layers * tokens * (linear + attention)


def flops_fraction(sizes: Sizes, fractions: Sequence[Sequence[float]], stores: Sequence[int]) -> float:
    """Operations spent / operations of computing every step in full, store passes on both sides.

    ``fractions`` has the computed share of each denoising step, chunk by chunk, ``stores`` the other full forwards.
    """
    spent = whole = 0.0
    for chunk_idx, (steps, full) in enumerate(zip(fractions, stores, strict=True)):
        each = forward_flops(sizes, chunk_idx)
        spent += each * (sum(steps) + full)
        whole += each * (len(steps) + full)
    return spent / whole


def kv_bytes(sizes: Sizes, chunks: int, item: int) -> int:
    """Bytes of self- and cross-attention K/V of one whole video, ``item`` bytes a number."""
    c = sizes.config
    return 2 * c.num_layers * c.dim * item * (sizes.tokens * chunks + c.text_len)


def working_bytes(sizes: Sizes, item: int) -> int:
    """Bytes of the current chunk's provisional K/V, which selective methods keep."""
    return 2 * sizes.config.num_layers * sizes.config.dim * item * sizes.tokens
