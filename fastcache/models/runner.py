"""The blocks of one forward: what a cache method may ask for, and nothing else."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastcache.errors import UserError
from fastcache.kv_cache import CausalContext
from fastcache.models.attention import CachedAttention
from fastcache.models.blocks import replay_blocks, run_blocks
from fastcache.models.rope import rope_table
from fastcache.models.rows import Rows
from fastcache.step import Features

MODULES = ("self_attn", "cross_attn", "ffn")


class BlockRunner:
    """A chunk after patch embedding at one timestep; implements fastcache.step.Runner over all branches.

    ``x`` [B, L, C] tokens, ``e0`` [B, F, 6, C] modulation, ``grid`` (F, H, W) in tokens.
    """

    def __init__(
        self, dit, latent: Tensor, t: Tensor, context: Tensor, ctx: CausalContext, control: Tensor | None = None
    ):
        self.dit, self.context, self.ctx = dit, context, ctx
        self.grid = dit.grid(latent)
        self.x = dit.embed(latent, ctx.cur_start_frame)
        self.control = None
        if control is not None:
            tokens = dit.embed_control(control)
            self.control = pad(tokens, (0, 0, 0, self.grid.tokens - tokens.shape[1]))
        self.e, self.e0 = dit.embed_time(t)
        config = dit.config
        self.rope = rope_table(
            config.dim // config.num_heads, self.grid, ctx.cur_start_frame, config.rope_theta, latent.device
        )

    def full(self) -> Tensor:
        return self._blocks(None)

    def selected(self, tokens: Tensor) -> Tensor:
        if self.ctx.store_kv:
            raise RuntimeError("a store pass commits a whole chunk; selected() belongs to denoise steps")
        return self._blocks(tokens) if tokens.numel() else self.x[:, :0]

    def record(self) -> tuple[Tensor, Features]:
        features: Features = {}
        return self._blocks(None, features), features

    def replay(self, features: Features) -> Tensor:
        def outputs(branch: str, index: int) -> dict[str, Tensor]:
            try:
                return {name: features[f"{branch}.{index}.{name}"] for name in MODULES}
            except KeyError as missing:
                raise UserError(f"replay needs the features that record() returned; {missing} is missing") from None

        return replay_blocks(self.dit, self.x, self.control, self.e0, Rows(self.grid), outputs)

    def modulated_input(self) -> Tensor:
        return self.dit.blocks[0].modulated_input(self.x, self.e0, Rows(self.grid))

    def head(self, tokens: Tensor) -> Tensor:
        """Tokens after the last block [B, L, C] -> flow [B, F, out_dim, H, W]."""
        return self.dit.unpatchify(self.dit.head(tokens, self.e, Rows(self.grid)), self.grid)

    def _blocks(self, sel: Tensor | None, features: Features | None = None) -> Tensor:
        def watch(branch: str, index: int):
            def seen(module: str, output: Tensor) -> None:
                assert features is not None
                features[f"{branch}.{index}.{module}"] = output.detach() if torch.is_grad_enabled() else output

            return seen

        x, control, rope, ctx = self.x, self.control, self.rope, self.ctx
        if sel is not None:
            x, rope, ctx = x[:, sel], rope[sel], replace(ctx, sel=sel)
            control = None if control is None else control[:, sel]
        rows, plan = Rows(self.grid, sel), CachedAttention(ctx)
        return run_blocks(
            self.dit, x, control, self.e0, rows, rope, self.context, plan, None if features is None else watch
        )
