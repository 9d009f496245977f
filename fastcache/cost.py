"""What forwards cost: operations, parameters and K/V bytes, counted from the sizes of a Wan DiT. No torch."""

from collections.abc import Sequence
from math import prod
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

    @property
    def blocks(self) -> dict[str, int]:
        """Blocks of each branch."""
        c = self.config
        return {"main": c.num_layers} | ({"vace": len(c.vace_layers)} if c.vace_layers else {})


def parameters(config: Any) -> int:
    """Parameters of the DiT of these sizes (learned inputs that the bundled tiny models add left out)."""
    c, dim, patch = config, config.dim, prod(config.patch_size)
    attention = 4 * (dim * dim + dim) + 2 * dim  # q, k, v, o and the q/k norms
    block = 2 * attention + 2 * dim + 6 * dim + c.ffn_dim * dim * 2 + c.ffn_dim + dim  # norm3, modulation, FFN
    image_kv = 2 * (dim * dim + dim) + dim if c.image_dim else 0
    main = c.num_layers * (block + image_kv)
    embeddings = c.in_dim * patch * dim + dim + (c.text_dim + 1) * dim + (c.freq_dim + 1) * dim + 2 * (dim * dim + dim)
    time = 6 * (dim * dim + dim)
    head = 2 * dim + (dim + 1) * c.out_dim * patch
    image = 2 * c.image_dim + c.image_dim**2 + c.image_dim + (c.image_dim + 1) * dim + 2 * dim if c.image_dim else 0
    vace = 0
    if c.vace_layers:
        count, project = len(c.vace_layers), dim * dim + dim
        vace = c.vace_in_dim * patch * dim + dim + count * (block + project) + project
    return main + embeddings + time + head + image + vace


def forward_flops(sizes: Sizes, chunk_idx: int) -> float:
    """Floating-point operations (2 per multiply-add) of the blocks in one full forward of a chunk.

    Per token and block: 6 C x C projections, the FFN, attention over the past and the chunk, cross-attention; the K/V
    of text and image, written once a video, are left out. VACE blocks project once more, the first of them twice.
    """
    c, tokens = sizes.config, sizes.tokens
    linear = 6 * c.dim**2 + 2 * c.dim * c.ffn_dim
    attention = 2 * c.dim * (tokens * (chunk_idx + 1) + c.context_len)
    projections = (len(c.vace_layers) + 1) * c.dim**2 if c.vace_layers else 0
    return 2.0 * tokens * (sum(sizes.blocks.values()) * (linear + attention) + projections)


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


def branch_kv_bytes(sizes: Sizes, chunks: int, item: int) -> dict[str, int]:
    """Bytes of self- and cross-attention K/V of one whole video in each branch, ``item`` bytes a number."""
    c = sizes.config
    a_block = 2 * c.dim * item * (sizes.tokens * chunks + c.context_len)
    return {branch: count * a_block for branch, count in sizes.blocks.items()}


def kv_bytes(sizes: Sizes, chunks: int, item: int) -> int:
    """The same over all branches."""
    return sum(branch_kv_bytes(sizes, chunks, item).values())


def working_bytes(sizes: Sizes, item: int) -> int:
    """Bytes of the current chunk's provisional K/V, which selective methods keep."""
    return 2 * sum(sizes.blocks.values()) * sizes.config.dim * item * sizes.tokens


def forward_bytes(sizes: Sizes, chunks: int, item: int) -> int:
    """Bytes that come and go within one full forward of the last chunk, about.

    The larger of a self-attention (the past and the chunk put together for K and V; q, k, v and the rotation's float64
    complex numbers) and an FFN (its hidden layer before and after the activation), on top of the residual stream and
    the modulation of every frame; with VACE the hints of all its blocks.
    """
    c, tokens = sizes.config, sizes.tokens
    stream = 4 * tokens * c.dim * item * (1 + len(c.vace_layers) / 4)
    attention = 2 * tokens * chunks * c.dim * item + tokens * c.dim * (4 * item + 32)
    ffn = 2 * tokens * c.ffn_dim * item
    return round(stream + max(attention, ffn))
