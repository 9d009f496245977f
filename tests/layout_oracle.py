"""A chunk's flow written out by the equations of Wan2.1 in float64, from the state dict alone: no cache, no modules.

One chunk sees itself; the timesteps may differ from frame to frame.
"""

import math

import torch
from torch.nn.functional import gelu, silu

HEADS = 4


def norm(x, eps=1e-6):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


class Oracle:
    def __init__(self, dit, grid, start_frame):
        self.w = {name: value.double() for name, value in dit.state_dict().items()}
        self.config, self.scale, self.grid, self.start = dit.config, dit.vace_scale, grid, start_frame

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].flatten(1).T + self.w[f"{name}.bias"]

    def patches(self, name, latent):
        """The convolution as a loop over patches."""
        frames, height, width = self.grid
        rows = [
            latent[:, f, :, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].flatten(1)
            for f in range(latent.shape[1])
            for y in range(height)
            for x in range(width)
        ]
        return self.linear(name, torch.stack(rows, 1))

    def rotate(self, x):
        """x [B, L, n, d]: pairs (2k, 2k+1) as complex numbers."""
        frames, height, width = self.grid
        pairs = x.shape[-1] // 2
        across = pairs // 3
        angles = []
        for f in range(frames):
            for y in range(height):
                for column in range(width):
                    parts = ((self.start + f, pairs - 2 * across), (y, across), (column, across))
                    angles.append([p * 10000 ** (-k / n) for p, n in parts for k in range(n)])
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        turned = turned * torch.exp(1j * torch.tensor(angles, dtype=torch.float64))[None, :, None]
        return torch.view_as_real(turned).flatten(-2)

    def attend(self, q, k, v):
        q, k, v = (x if x.ndim == 4 else x.unflatten(-1, (HEADS, -1)) for x in (q, k, v))
        scores = torch.einsum("bmhd,bnhd->bhmn", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bhmn,bnhd->bmhd", scores.softmax(-1), v).flatten(2)

    def block(self, name, x, e0, context):
        m = [
            (self.w[f"{name}.modulation"][:, slot] + e0[:, :, slot]).repeat_interleave(self.tokens, 1)
            for slot in range(6)
        ]
        a = norm(x) * (1 + m[1]) + m[0]
        at = f"{name}.self_attn"
        q, k = (rms(self.linear(f"{at}.{p}", a), self.w[f"{at}.norm_{p}.weight"]) for p in "qk")
        q, k = (self.rotate(p.unflatten(-1, (HEADS, -1))) for p in (q, k))
        x = x + m[2] * self.linear(f"{at}.o", self.attend(q, k, self.linear(f"{at}.v", a)))
        z = norm(x) * self.w[f"{name}.norm3.weight"] + self.w[f"{name}.norm3.bias"]
        at, n = f"{name}.cross_attn", self.config.image_len
        q = rms(self.linear(f"{at}.q", z), self.w[f"{at}.norm_q.weight"])
        text, image = context[:, n:], context[:, :n]
        k = rms(self.linear(f"{at}.k", text), self.w[f"{at}.norm_k.weight"])
        y = self.attend(q, k, self.linear(f"{at}.v", text))
        if n:
            k = rms(self.linear(f"{at}.k_img", image), self.w[f"{at}.norm_k_img.weight"])
            y = y + self.attend(q, k, self.linear(f"{at}.v_img", image))
        x = x + self.linear(f"{at}.o", y)
        b = norm(x) * (1 + m[4]) + m[3]
        return x + m[5] * self.linear(f"{name}.ffn.2", gelu(self.linear(f"{name}.ffn.0", b), approximate="tanh"))

    def context(self, text, image):
        hidden = gelu(self.linear("text_embedding.0", text), approximate="tanh")
        text = self.linear("text_embedding.2", hidden)
        if image is None:
            return text
        first, last = (
            lambda x, i=i: norm(x, 1e-5) * self.w[f"img_emb.proj.{i}.weight"] + self.w[f"img_emb.proj.{i}.bias"]
            for i in (0, 4)
        )
        image = last(self.linear("img_emb.proj.3", gelu(self.linear("img_emb.proj.1", first(image)))))
        return torch.cat((image, text), 1)

    def flow(self, latent, t, text, image=None, control=None):
        latent, t, text = latent.double(), t.double(), text.double()
        image, control = (None if x is None else x.double() for x in (image, control))
        frames, height, width = self.grid
        self.tokens = height * width
        half = self.config.freq_dim // 2
        angle = t[..., None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        e = self.linear("time_embedding.0", torch.cat((angle.cos(), angle.sin()), -1))
        e = self.linear("time_embedding.2", silu(e))
        e0 = self.linear("time_projection.1", silu(e)).unflatten(-1, (6, -1))
        context = self.context(text, image)
        x = self.patches("patch_embedding", latent)
        hints = {}
        if control is not None:
            c = self.patches("vace_patch_embedding", control)
            c = torch.cat((c, c.new_zeros(len(c), x.shape[1] - c.shape[1], c.shape[2])), 1)
            c = self.linear("vace_blocks.0.before_proj", c) + x
            for j, i in enumerate(self.config.vace_layers):
                c = self.block(f"vace_blocks.{j}", c, e0, context)
                hints[i] = self.scale[j] * self.linear(f"vace_blocks.{j}.after_proj", c)
        for i in range(self.config.num_layers):
            x = self.block(f"blocks.{i}", x, e0, context) + hints.get(i, 0)
        shift, scale = (self.w["head.modulation"][:, s] + e for s in (0, 1))
        shift, scale = (value.repeat_interleave(self.tokens, 1) for value in (shift, scale))
        y = self.linear("head.head", norm(x) * (1 + scale) + shift)
        y = y.view(len(y), frames, height, width, 2, 2, -1)
        return y.permute(0, 1, 6, 2, 4, 3, 5).reshape(len(y), frames, -1, 2 * height, 2 * width)
