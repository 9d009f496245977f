"""The layers of the Wan2.1 transformer, under its parameter names.

Shapes: B batch, F latent frames, M tokens of a forward, C width, n heads of d channels.
"""

import torch
from torch import Tensor, nn

from fastcache.models.attention import AttentionPlan, attend
from fastcache.models.config import DiTConfig
from fastcache.models.precision import PRECISIONS, Precision
from fastcache.models.rope import apply_rope
from fastcache.models.rows import Rows


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
        q = self.rotate(q, rope)
        k = k if plan.raw_keys else self.rotate(k, rope)
        return self.o(plan.self_attention(self, q, k, v))

    def rotate(self, x: Tensor, rope: Tensor) -> Tensor:
        """Rows of x [B, M, n, d] rotated by their rows of a rotary table [M, 2, d / 2]."""
        return apply_rope(x, rope, self.rope_dtype)


class CrossAttention(Attention):
    """Cross-attention to [image tokens | text]: no RoPE, no mask; the padded text rows take part, as in Wan.

    Image tokens (I2V) have their own key, value and norm; one query reads both parts and the results are added.
    """

    def __init__(self, config: DiTConfig):
        super().__init__(config)
        self.image_len = config.image_len
        if self.image_len:
            self.k_img, self.v_img = nn.Linear(config.dim, config.dim), nn.Linear(config.dim, config.dim)
            self.norm_k_img = RMSNorm(config.dim, config.eps)

    def project(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [B, image_len + text_len, n, d] of a context [B, image_len + text_len, C]."""
        n = self.image_len
        text = context[:, n:]
        k, v = self.split(self.norm_k(self.k(text))), self.split(self.v(text))
        if not n:
            return k, v
        image = context[:, :n]
        k_img, v_img = self.split(self.norm_k_img(self.k_img(image))), self.split(self.v_img(image))
        return torch.cat((k_img, k), 1), torch.cat((v_img, v), 1)

    def forward(self, x: Tensor, context: Tensor, plan: AttentionPlan) -> Tensor:
        k, v = plan.cross_kv(self, lambda: self.project(context))
        q, n = self.split(self.norm_q(self.q(x))), self.image_len
        out = attend(q, k[:, n:], v[:, n:])
        return self.o(out + attend(q, k[:, :n], v[:, :n]) if n else out)


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
        self.modulation = _table(6, dim)

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


class VaceBlock(Block):
    """A block of the control stream. The first one joins it with the tokens of the video; each gives a hint."""

    def __init__(self, config: DiTConfig, precision: Precision, first: bool):
        super().__init__(config, precision)
        if first:
            self.before_proj = nn.Linear(config.dim, config.dim)
        self.after_proj = nn.Linear(config.dim, config.dim)


class ImageEmbedding(nn.Module):
    """Image encoder tokens [B, image_len, image_dim] -> [B, image_len, C]; norms with eps 1e-5 and an exact GELU."""

    def __init__(self, config: DiTConfig):
        super().__init__()
        wide, dim = config.image_dim, config.dim
        self.proj = nn.Sequential(
            nn.LayerNorm(wide), nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, dim), nn.LayerNorm(dim)
        )

    def forward(self, image_embeds: Tensor) -> Tensor:
        return self.proj(image_embeds)


class Head(nn.Module):
    def __init__(self, config: DiTConfig, precision: Precision):
        super().__init__()
        self.norm = LayerNorm(config.dim, config.eps, affine=False, fp32=precision.fp32_norm)
        pt, ph, pw = config.patch_size
        self.head = nn.Linear(config.dim, config.out_dim * pt * ph * pw)
        self.modulation = _table(2, config.dim)

    def forward(self, x: Tensor, e: Tensor, rows: Rows) -> Tensor:
        shift, scale = (self.modulation[:, None] + e[:, :, None]).unbind(2)
        return self.head(rows.shift_scale(self.norm(x), shift, scale).to(self.head.weight.dtype))


def _table(rows: int, dim: int) -> nn.Parameter:
    """A modulation table [1, rows, C] at its random start.

    Left empty on the meta device, where drawing normal numbers imports torch's compiler, which takes seconds.
    """
    table = torch.empty(1, rows, dim)
    return nn.Parameter(table if table.is_meta else torch.randn(1, rows, dim) / dim**0.5)


def time_features(t: Tensor, dim: int) -> Tensor:
    """Timesteps [...] -> float64 [..., dim]: cosines first, then sines, of t * 10000^(-k / (dim / 2))."""
    half = dim // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=t.device) / half)
    angle = t.double()[..., None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)
