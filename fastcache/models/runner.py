"""The blocks of one forward: what a cache method may ask for, and nothing else."""

from dataclasses import replace

import torch
from torch import Tensor

from fastcache.errors import UserError
from fastcache.kv_cache import CausalContext
from fastcache.models.attention import CachedAttention
from fastcache.models.rope import rope_table
from fastcache.models.rows import Rows
from fastcache.step import Features


class BlockRunner:
    """A chunk after patch embedding at one timestep; implements fastcache.step.Runner over all branches.

    ``x`` [B, L, C] tokens, ``e0`` [B, F, 6, C] modulation, ``grid`` (F, H, W) in tokens.
    """

    def __init__(self, dit, latent: Tensor, t: Tensor, context: Tensor, ctx: CausalContext):
        self.dit, self.context, self.ctx = dit, context, ctx
        self.grid = dit.grid(latent)
        self.x = dit.embed(latent, ctx.cur_start_frame)
        self.e, self.e0 = dit.embed_time(t)
        config = dit.config
        self.rope = rope_table(
            config.dim // config.num_heads, self.grid, ctx.cur_start_frame, config.rope_theta, latent.device
        )

    def full(self) -> Tensor:
        return self._blocks(self.x, Rows(self.grid), self.rope, self.ctx)

    def selected(self, tokens: Tensor) -> Tensor:
        if self.ctx.store_kv:
            raise RuntimeError("a store pass commits a whole chunk; selected() belongs to denoise steps")
        if tokens.numel() == 0:
            return self.x[:, :0]
        ctx = replace(self.ctx, sel=tokens)
        return self._blocks(self.x[:, tokens], Rows(self.grid, tokens), self.rope[tokens], ctx)

    def record(self) -> tuple[Tensor, Features]:
        features: Features = {}
        return self._blocks(self.x, Rows(self.grid), self.rope, self.ctx, features), features

    def replay(self, features: Features) -> Tensor:
        x, rows = self.x, Rows(self.grid)
        for block_idx, block in enumerate(self.dit.blocks):
            names = ("self_attn", "cross_attn", "ffn")
            try:
                outputs = {name: features[f"main.{block_idx}.{name}"] for name in names}
            except KeyError as missing:
                raise UserError(f"replay needs the features that record() returned; {missing} is missing") from None
            x = block.replay(x, self.e0, rows, outputs)
        return x

    def modulated_input(self) -> Tensor:
        return self.dit.blocks[0].modulated_input(self.x, self.e0, Rows(self.grid))

    def head(self, tokens: Tensor) -> Tensor:
        """Tokens after the last block [B, L, C] -> flow [B, F, out_dim, H, W]."""
        return self.dit.unpatchify(self.dit.head(tokens, self.e, Rows(self.grid)), self.grid)

    def _blocks(self, x: Tensor, rows: Rows, rope: Tensor, ctx: CausalContext, features: Features | None = None):
        plan = CachedAttention(ctx)
        for block_idx, block in enumerate(self.dit.blocks):
            seen = None if features is None else _recorder(features, f"main.{block_idx}")
            x = block(x, self.e0, rows, rope, self.context, plan, seen)
        return x


def _recorder(features: Features, prefix: str):
    def seen(module: str, output: Tensor) -> None:
        features[f"{prefix}.{module}"] = output.detach() if torch.is_grad_enabled() else output

    return seen
