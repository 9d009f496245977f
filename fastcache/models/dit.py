"""The Wan2.1 diffusion transformer, causal over chunks, under the original parameter names.

Architecture: Wan-Video/Wan2.1; causal use and its order of operations: guandeh17/Self-Forcing. The network predicts
flow v = noise - x0. Shapes: B batch, F latent frames, L = F * S tokens, C width, n heads of d channels.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fastcache.errors import UserError
from fastcache.kv_cache import CausalContext
from fastcache.models.attention import AttentionPlan, attend
from fastcache.models.precision import PRECISIONS, Precision
from fastcache.models.rope import MAX_POSITIONS, WAN_THETA, apply_rope
from fastcache.models.rows import Rows
from fastcache.models.runner import BlockRunner
from fastcache.step import Grid


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
    rope_theta: tuple[float, float, float] = WAN_THETA
    precision: str = "sf_bf16"

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            raise UserError(f"precision={self.precision} is not one of {', '.join(PRECISIONS)}")
        if self.dim % self.num_heads or self.dim // self.num_heads % 2:
            raise UserError(f"dim={self.dim} must split into num_heads={self.num_heads} heads of even width")

    @classmethod
    def from_dict(cls, values: dict) -> "DiTConfig":
        """From a plain mapping; keys of other programs' configs that name no size here are left out."""
        known = {f.name for f in fields(cls)}
        chosen: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
        return cls(**chosen)

    def to_dict(self) -> dict:
        return asdict(self)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the whole width (before the head split), normalised in float32."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class LayerNorm(nn.LayerNorm):
    """LayerNorm computed in float32 or in the input's dtype, as the precision map says."""

    def __init__(self, dim: int, eps: float, affine: bool, fp32: bool):
        super().__init__(dim, eps=eps, elementwise_affine=affine)
        self.fp32 = fp32

    def forward(self, x: Tensor) -> Tensor:
        if not self.fp32 or x.dtype == torch.float32:
            return super().forward(x)
        weight, bias = (None, None) if self.weight is None else (self.weight.float(), self.bias.float())
        return nn.functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


class Attention(nn.Module):
    """Projections and q/k norms shared by self- and cross-attention."""

    def __init__(self, config: DiTConfig):
        super().__init__()
        self.heads = config.num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(config.dim, config.dim) for _ in range(4))
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))


class SelfAttention(Attention):
    def __init__(self, config: DiTConfig):
        super().__init__(config)
        self.rope_dtype = PRECISIONS[config.precision].rope

    def forward(self, x: Tensor, rope: Tensor, plan: AttentionPlan) -> Tensor:
        q, k, v = self.split(self.norm_q(self.q(x))), self.split(self.norm_k(self.k(x))), self.split(self.v(x))
        q, k = apply_rope(q, rope, self.rope_dtype), apply_rope(k, rope, self.rope_dtype)
        return self.o(plan.self_attention(self, q, k, v))


class CrossAttention(Attention):
    """Text cross-attention: no RoPE, no mask; the padded text rows take part, as in Wan."""

    def forward(self, x: Tensor, context: Tensor, plan: AttentionPlan) -> Tensor:
        k, v = plan.cross_kv(self, lambda: (self.split(self.norm_k(self.k(context))), self.split(self.v(context))))
        return self.o(attend(self.split(self.norm_q(self.q(x))), k, v))


class Block(nn.Module):
    """Self-attention and FFN with timestep modulation and gates, cross-attention without."""

    def __init__(self, config: DiTConfig, precision: Precision):
        super().__init__()
        dim, eps, self.precision = config.dim, config.eps, precision
        self.norm1 = LayerNorm(dim, eps, affine=False, fp32=precision.fp32_norm)
        self.norm2 = LayerNorm(dim, eps, affine=False, fp32=precision.fp32_norm)
        self.norm3 = LayerNorm(dim, eps, affine=True, fp32=precision.fp32_norm)
        self.self_attn = SelfAttention(config)
        self.cross_attn = CrossAttention(config)
        self.ffn = nn.Sequential(nn.Linear(dim, config.ffn_dim), nn.GELU("tanh"), nn.Linear(config.ffn_dim, dim))
        self.modulation = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def modulations(self, e0: Tensor) -> tuple[Tensor, ...]:
        """e0 [B, F, 6, C] -> six tensors [B, F, C]: shift, scale, gate of self-attention, then of the FFN."""
        if self.precision.fp32_modulation:
            return (self.modulation.float()[:, None] + e0.float()).unbind(2)
        return (self.modulation[:, None] + e0).unbind(2)

    def modulated_input(self, x: Tensor, e0: Tensor, rows: Rows) -> Tensor:
        """norm1(x) * (1 + scale) + shift: what self-attention reads, and TeaCache's indicator on block 0."""
        shift, scale, *_ = self.modulations(e0)
        return rows.shift_scale(self.norm1(x), shift, scale).to(x.dtype)

    def forward(self, x: Tensor, e0: Tensor, rows: Rows, rope: Tensor, context: Tensor, plan: AttentionPlan, seen=None):
        """x [B, M, C] -> [B, M, C]; ``seen(module, output)`` is told of each module's output before its gate."""
        m = self.modulations(e0)
        narrow = self.self_attn.q.weight.dtype
        y = self.self_attn(rows.shift_scale(self.norm1(x), m[0], m[1]).to(narrow), rope, plan)
        x = self.add("self_attn", x, y, rows, m[2], seen)
        y = self.cross_attn(self.norm3(x).to(narrow), context, plan)
        x = self.add("cross_attn", x, y, rows, None, seen)
        y = self.ffn(rows.shift_scale(self.norm2(x), m[3], m[4]).to(narrow))
        return self.add("ffn", x, y, rows, m[5], seen)

    def replay(self, x: Tensor, e0: Tensor, rows: Rows, outputs: dict[str, Tensor]) -> Tensor:
        """The residual stream rebuilt from given module outputs under this step's gates."""
        m = self.modulations(e0)
        for name, gate in (("self_attn", m[2]), ("cross_attn", None), ("ffn", m[5])):
            x = self.add(name, x, outputs[name], rows, gate, None)
        return x

    def add(self, name: str, x: Tensor, y: Tensor, rows: Rows, gate: Tensor | None, seen) -> Tensor:
        if seen is not None:
            seen(name, y)
        y = y if gate is None else rows.gate(y, gate)
        return (x + y).to(x.dtype) if self.precision.narrow_residual else x + y


class Head(nn.Module):
    def __init__(self, config: DiTConfig, precision: Precision):
        super().__init__()
        self.norm = LayerNorm(config.dim, config.eps, affine=False, fp32=precision.fp32_norm)
        pt, ph, pw = config.patch_size
        self.head = nn.Linear(config.dim, config.out_dim * pt * ph * pw)
        self.modulation = nn.Parameter(torch.randn(1, 2, config.dim) / config.dim**0.5)

    def forward(self, x: Tensor, e: Tensor, rows: Rows) -> Tensor:
        shift, scale = (self.modulation[:, None] + e[:, :, None]).unbind(2)
        return self.head(rows.shift_scale(self.norm(x), shift, scale).to(self.head.weight.dtype))


def time_features(t: Tensor, dim: int) -> Tensor:
    """Timesteps [...] -> float64 [..., dim]: cosines first, then sines, of t * 10000^(-k / (dim / 2))."""
    half = dim // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=t.device) / half)
    angle = t.double()[..., None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


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
        # Constant input of the bundled tiny models (where and when a patch is); real Wan has none.
        self.token_features = token_features
        self.kv_cache_engines: dict = {}

    @property
    def branch_blocks(self) -> dict[str, nn.ModuleList]:
        return {"main": self.blocks}

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
        """The patch convolution, written as the linear map it is."""
        grid, (_, ph, pw) = self.grid(latent), self.config.patch_size
        patches = latent.unflatten(4, (grid.width, pw)).unflatten(3, (grid.height, ph)).permute(0, 1, 3, 5, 2, 4, 6)
        weight = self.patch_embedding.weight
        return linear(patches.flatten(4).flatten(1, 3).to(weight.dtype), weight.flatten(1), self.patch_embedding.bias)

    def embed_time(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Timesteps [B, F] in [0, 1000] -> e [B, F, C] for the head and e0 [B, F, 6, C] for the blocks."""
        e = self.time_embedding(time_features(t, self.config.freq_dim).to(_dtype(self.time_embedding)))
        return e, self.time_projection(e).unflatten(-1, (6, self.config.dim))

    def encode_text(self, prompt_embeds: Tensor) -> Tensor:
        """Prompt embeddings [B, text_len, text_dim], zero rows past the prompt, -> context [B, text_len, C]."""
        return self.text_embedding(prompt_embeds.to(_dtype(self.text_embedding)))

    def unpatchify(self, y: Tensor, grid: Grid) -> Tensor:
        """Head output [B, L, 4 * out_dim] (patch row, patch column, channel) -> [B, F, out_dim, H, W]."""
        _, ph, pw = self.config.patch_size
        y = y.unflatten(2, (ph, pw, self.config.out_dim)).unflatten(1, tuple(grid))
        return y.permute(0, 1, 6, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)

    def prepare(self, latent: Tensor, t: Tensor, context: Tensor, ctx: CausalContext):
        """Embed a chunk: latent [B, F, in_dim, H, W] at timesteps [B, F] -> BlockRunner, ready to run its blocks."""
        return BlockRunner(self, latent, t, context, ctx)

    def forward(self, latent: Tensor, t: Tensor, prompt_embeds: Tensor, ctx: CausalContext) -> Tensor:
        """Flow [B, F, out_dim, H, W] of a latent [B, F, in_dim, H, W]; every block on every token."""
        run = self.prepare(latent, t, self.encode_text(prompt_embeds), ctx)
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
    for layer in (*dit.text_embedding, *dit.time_embedding):
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(dit.head.head.weight)
