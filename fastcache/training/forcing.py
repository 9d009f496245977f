"""Teacher forcing: noisy chunks see themselves and the clean chunks before them, in one forward of all chunks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fastcache.models.attention import attend
from fastcache.models.blocks import run_blocks
from fastcache.models.rope import rope_table
from fastcache.models.rows import Rows
from fastcache.step import Grid


class TeacherForcing:
    """Attention plan over tokens [clean chunks but the last | noisy chunks], chunk by chunk instead of by a mask."""

    raw_keys = False

    def __init__(self, chunks: int, chunk_tokens: int):
        self.chunks, self.size = chunks, chunk_tokens

    def self_attention(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, past = self.size, self.size * (self.chunks - 1)
        out = [attend(q[:, c * n : c * n + n], k[:, : c * n + n], v[:, : c * n + n]) for c in range(self.chunks - 1)]
        for c in range(self.chunks):
            own = slice(past + c * n, past + c * n + n)
            keys = torch.cat((k[:, : c * n], k[:, own]), 1) if c else k[:, own]
            values = torch.cat((v[:, : c * n], v[:, own]), 1) if c else v[:, own]
            out.append(attend(q[:, own], keys, values))
        return torch.cat(out, 1)

    def cross_kv(self, module: nn.Module, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return project()


def forward(
    dit: Any,
    clean: Tensor | None,
    noisy: Tensor,
    t: Tensor,
    text: Tensor,
    features: Tensor,
    image_embeds: Tensor | None = None,
    channels: Tensor | None = None,
    control: Tensor | None = None,
) -> Tensor:
    """Flow [B, F, channels, H, W] of the noisy frames.

    ``dit`` is a CausalWanDiT with token features; ``clean`` [B, F - f, channels, H, W] are the frames before the last
    chunk (None: a single chunk), ``t`` [B, F] the timesteps of the noisy frames, ``text`` [B, text_len, text_dim],
    ``features`` [B, F, S, PATCH_DIM] of the frames; the rest as in condition.Condition, of the same frames.
    Rotary positions start at 0: attention depends on their differences alone.
    """
    frames = noisy.shape[1]
    past = 0 if clean is None else clean.shape[1]
    grid = dit.grid(noisy)

    def twice(x: Tensor) -> Tensor:
        """Of the clean frames, then of the noisy ones."""
        return torch.cat((x[:, :past], x), 1)

    latents = noisy if clean is None else torch.cat((clean, noisy), 1)
    tokens = dit.embed_patches(latents if channels is None else torch.cat((latents, twice(channels)), 2))
    tokens = tokens + twice(dit.token_features.proj(features)).flatten(1, 2)
    stream = None if control is None else dit.embed_control(twice(control))
    table = rope_table(dit.config.dim // dit.config.num_heads, grid, 0, dit.config.rope_theta)
    table = torch.cat((table[: past * grid.tokens_per_frame], table))
    e, e0 = dit.embed_time(torch.cat((t.new_zeros(len(t), past), t), 1))
    rows, context = Rows(Grid(past + frames, grid.height, grid.width)), dit.encode_context(text, image_embeds)
    chunks = 1 if clean is None else 1 + past // (frames - past)
    plan = TeacherForcing(chunks, frames // chunks * grid.tokens_per_frame)
    tokens = run_blocks(dit, tokens, stream, e0, rows, table, context, plan)
    own = past * grid.tokens_per_frame
    return dit.unpatchify(dit.head(tokens[:, own:], e[:, past:], Rows(grid)), grid)
