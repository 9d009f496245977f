"""The Wan2.1 diffusion transformer, causal over chunks, under the original parameter names.

Architecture: Wan-Video/Wan2.1; causal use and its order of operations: guandeh17/Self-Forcing. The network predicts
flow v = noise - x0. Shapes: B batch, F latent frames, L = F * S tokens, C width, n heads of d channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fastcache.errors import UserError
from fastcache.kv_cache import CausalContext
from fastcache.models.config import DiTConfig
from fastcache.models.layers import Block, Head, ImageEmbedding, VaceBlock, time_features
from fastcache.models.precision import PRECISIONS
from fastcache.models.rope import MAX_POSITIONS
from fastcache.models.runner import BlockRunner
from fastcache.step import Grid


class CausalWanDiT(nn.Module):
    """Wan DiT over chunks of latent frames. Blocks of a branch are listed in ``branch_blocks``."""

    max_frames = MAX_POSITIONS

    def __init__(self, config: DiTConfig, token_features: nn.Module | None = None):
        super().__init__()
        self.config, self.precision = config, PRECISIONS[config.precision]
        dim = config.dim
        self.patch_embedding = nn.Conv3d(config.in_dim, dim, config.patch_size, stride=config.patch_size)
        self.text_embedding = nn.Sequential(nn.Linear(config.text_dim, dim), nn.GELU("tanh"), nn.Linear(dim, dim))
        self.time_embedding = nn.Sequential(nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(config, self.precision) for _ in range(config.num_layers))
        self.head = Head(config, self.precision)
        if config.image_dim:
            self.img_emb = ImageEmbedding(config)
        if config.vace_layers:
            self.vace_patch_embedding = nn.Conv3d(config.vace_in_dim, dim, config.patch_size, stride=config.patch_size)
            first = [True] + [False] * (len(config.vace_layers) - 1)
            self.vace_blocks = nn.ModuleList(VaceBlock(config, self.precision, f) for f in first)
        self.vace_scale = (1.0,) * len(config.vace_layers)  # of each hint
        # Constant input of the bundled tiny models (where and when a patch is); real Wan has none.
        self.token_features = token_features
        self.kv_cache_engines: dict = {}

    @property
    def branch_blocks(self) -> dict[str, nn.ModuleList]:
        return {"main": self.blocks} | ({"vace": self.vace_blocks} if self.config.vace_layers else {})

    @property
    def branches(self) -> tuple[str, ...]:
        return tuple(self.branch_blocks)

    def set_kv_engines(self, factory) -> None:
        """One fresh engine a branch, ``factory(branch)``, owning that branch's attention modules."""
        self.kv_cache_engines = {branch: factory(branch) for branch in self.branches}
        self.rebuild_kv_engines()

    def rebuild_kv_engines(self) -> None:
        """Register each branch's modules with its engine (again, after a deepcopy)."""
        for branch, blocks in self.branch_blocks.items():
            self.kv_cache_engines[branch].register_blocks(blocks)

    def clear_caches(self) -> None:
        for engine in self.kv_cache_engines.values():
            engine.clear()

    def grid(self, latent: Tensor) -> Grid:
        """Token grid of a latent [B, F, channels, height, width]; raises UserError where patches do not fit."""
        _, frames, _, height, width = latent.shape
        _, ph, pw = self.config.patch_size
        if height % ph or width % pw:
            raise UserError(f"latent {height}x{width} does not divide into {ph}x{pw} patches")
        return Grid(frames, height // ph, width // pw)

    def embed(self, latent: Tensor, start_frame: int) -> Tensor:
        """Latent [B, F, in_dim, H, W] of the frames from ``start_frame`` on -> tokens [B, L, C]."""
        x = self.embed_patches(latent)
        return x if self.token_features is None else x + self.token_features(start_frame, self.grid(latent))

    def embed_patches(self, latent: Tensor) -> Tensor:
        return self._patches(latent, self.patch_embedding)

    def embed_control(self, control: Tensor) -> Tensor:
        """VACE control [B, F, vace_in_dim, H, W] -> tokens [B, L, C]."""
        return self._patches(control, self.vace_patch_embedding)

    def _patches(self, latent: Tensor, conv: nn.Conv3d) -> Tensor:
        """The patch convolution, written as the linear map it is."""
        grid, (_, ph, pw) = self.grid(latent), self.config.patch_size
        patches = latent.unflatten(4, (grid.width, pw)).unflatten(3, (grid.height, ph)).permute(0, 1, 3, 5, 2, 4, 6)
        weight = conv.weight
        return linear(patches.flatten(4).flatten(1, 3).to(weight.dtype), weight.flatten(1), conv.bias)

    def embed_time(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Timesteps [B, F] in [0, 1000] -> e [B, F, C] for the head and e0 [B, F, 6, C] for the blocks."""
        e = self.time_embedding(time_features(t, self.config.freq_dim).to(_dtype(self.time_embedding)))
        return e, self.time_projection(e).unflatten(-1, (6, self.config.dim))

    def encode_context(self, prompt_embeds: Tensor, image_embeds: Tensor | None = None) -> Tensor:
        """What cross-attention reads: [B, image_len + text_len, C], image tokens first.

        ``prompt_embeds`` [B, text_len, text_dim] with zero rows past the prompt, ``image_embeds``
        [B, image_len, image_dim] for I2V. Raises UserError where an image is missing or not wanted.
        """
        text = self.text_embedding(prompt_embeds.to(_dtype(self.text_embedding)))
        if (image_embeds is not None) != bool(self.config.image_dim):
            what = "needs an image, got none" if self.config.image_dim else "takes no image, got one"
            raise UserError(f"this {self.config.layout} model {what}")
        if image_embeds is None:
            return text
        return torch.cat((self.img_emb(image_embeds.to(_dtype(self.img_emb))), text), dim=1)

    def unpatchify(self, y: Tensor, grid: Grid) -> Tensor:
        """Head output [B, L, 4 * out_dim] (patch row, patch column, channel) -> [B, F, out_dim, H, W]."""
        _, ph, pw = self.config.patch_size
        y = y.unflatten(2, (ph, pw, self.config.out_dim)).unflatten(1, tuple(grid))
        return y.permute(0, 1, 6, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)

    def prepare(
        self, latent: Tensor, t: Tensor, context: Tensor, ctx: CausalContext, control: Tensor | None = None
    ) -> BlockRunner:
        """Embed a chunk: latent [B, F, in_dim, H, W] at timesteps [B, F] -> BlockRunner, ready to run its blocks.

        ``control`` [B, up to F, vace_in_dim, H, W] is what VACE blocks read; tokens that it is short of are zeros, as
        in Wan. Raises UserError where sizes do not fit.
        """
        for name, tensor, channels in (
            ("the latent", latent, self.config.in_dim),
            ("the control", control, self.config.vace_in_dim),
        ):
            found = 0 if tensor is None else tensor.shape[2]
            if found != channels:
                raise UserError(f"{name} has {found} channels; this {self.config.layout} model takes {channels} there")
        if control is not None and (control.shape[1] > latent.shape[1] or control.shape[3:] != latent.shape[3:]):
            sizes = " and ".join(f"{x.shape[1]} frames of {x.shape[3]}x{x.shape[4]}" for x in (control, latent))
            raise UserError(f"control and latent are {sizes}; the control must cover the latent's frames, not more")
        return BlockRunner(self, latent, t, context, ctx, control)

    def forward(
        self,
        latent: Tensor,
        t: Tensor,
        prompt_embeds: Tensor,
        ctx: CausalContext,
        image_embeds: Tensor | None = None,
        control: Tensor | None = None,
    ) -> Tensor:
        """Flow [B, F, out_dim, H, W] of a latent [B, F, in_dim, H, W]; every block on every token."""
        run = self.prepare(latent, t, self.encode_context(prompt_embeds, image_embeds), ctx, control)
        return run.head(run.full())


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


def init_weights(dit: CausalWanDiT) -> None:
    """Wan's random init: Xavier linears, N(0, 0.02) embeddings, N(0, 1) / sqrt(C) modulations, zero head."""
    for module in dit.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.xavier_uniform_(dit.patch_embedding.weight.flatten(1))
    if dit.config.vace_layers:
        nn.init.xavier_uniform_(dit.vace_patch_embedding.weight.flatten(1))
        for block in dit.vace_blocks:
            for name in ("before_proj", "after_proj"):
                if hasattr(block, name):
                    nn.init.zeros_(getattr(block, name).weight)
    for layer in (*dit.text_embedding, *dit.time_embedding):
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(dit.head.head.weight)
