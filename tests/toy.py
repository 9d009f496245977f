"""A toy causal video transformer with real attention, real K/V state and its own rollout, independent of models/.

Two blocks over tokens [1, L, C]; chunks see the committed K/V of earlier chunks and the draft of their own. Re-noising
mixes old and new noise with weights that differ per step and token, so that distances differ between tokens.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

from fastcache.step import Features, Grid, Step

GRID = Grid(3, 2, 3)
WIDTH = 16
SIGMAS = (1.0, 0.9375, 0.8333, 0.625)
FFFF, FxxF, FFxx, Fxxx = (tuple(c == "F" for c in s) for s in ("FFFF", "FxxF", "FFxx", "Fxxx"))


def noise(*address: int, size: tuple[int, ...] = (1, GRID.tokens, WIDTH)) -> Tensor:
    key = 7
    for part in address:
        key = key * 1009 + part + 1
    return torch.randn(size, generator=torch.Generator().manual_seed(key))


class ToyModel:
    """Weights, committed K/V of earlier chunks and the draft K/V of the current one."""

    def __init__(self, blocks: int = 2, dtype: torch.dtype = torch.float32):
        shapes = {"qkv": (WIDTH, 3 * WIDTH), "o": (WIDTH, WIDTH), "text": (WIDTH, WIDTH), "up": (WIDTH, 2 * WIDTH)}
        shapes["down"] = (2 * WIDTH, WIDTH)
        self.blocks = [
            {n: noise(b, i, size=s).to(dtype) / math.sqrt(s[0]) for i, (n, s) in enumerate(shapes.items())}
            | {"modulation": 0.5 * noise(b, 9, size=(6, WIDTH)).to(dtype)}
            for b in range(blocks)
        ]
        self.text = noise(99, size=(1, 4, WIDTH)).to(dtype)
        self.time = noise(98, size=(2, 6 * WIDTH)).to(dtype)
        self.dtype = dtype
        self.calls: list[int] = []  # tokens of each call into the blocks
        self.clear()

    def clear(self) -> None:
        self.prefix: list[list[Tensor]] = [[] for _ in self.blocks]
        self.draft: list[Tensor | None] = [None for _ in self.blocks]

    def commit(self) -> None:
        for prefix, draft in zip(self.prefix, self.draft, strict=True):
            prefix.append(draft)
        self.draft = [None for _ in self.blocks]

    def e0(self, sigma: float) -> Tensor:
        angle = torch.tensor([math.sin(3 * sigma), math.cos(3 * sigma)], dtype=self.dtype)
        return (0.5 * angle @ self.time).view(1, 1, 6, WIDTH).repeat(1, GRID.frames, 1, 1)


class ToyRunner:
    """fastcache.step.Runner over a ToyModel at one step."""

    def __init__(self, model: ToyModel, x: Tensor, e0: Tensor):
        self.model, self.x, self.e0 = model, x, e0
        self.asked: Tensor | None = None  # the tokens of selected()
        self.frame_of = torch.arange(GRID.tokens) // GRID.tokens_per_frame

    def full(self) -> Tensor:
        self.model.draft = [None for _ in self.model.blocks]
        return self._run(torch.arange(GRID.tokens), None)

    def selected(self, tokens: Tensor) -> Tensor:
        assert all(d is not None for d in self.model.draft), "selected() before full()"
        assert tokens.unique().numel() == tokens.numel()
        self.asked = tokens
        return self._run(tokens, None)

    def record(self) -> tuple[Tensor, Features]:
        self.model.draft = [None for _ in self.model.blocks]
        features: Features = {}
        return self._run(torch.arange(GRID.tokens), features), features

    def replay(self, features: Features) -> Tensor:
        x = self.x
        for b, block in enumerate(self.model.blocks):
            m = (block["modulation"] + self.e0)[:, self.frame_of].unbind(2)
            x = x + features[f"main.{b}.self_attn"] * m[2]
            x = x + features[f"main.{b}.cross_attn"]
            x = x + features[f"main.{b}.ffn"] * m[5]
        return x

    def modulated_input(self) -> Tensor:
        m = (self.model.blocks[0]["modulation"] + self.e0)[:, self.frame_of].unbind(2)
        return layer_norm(self.x, (WIDTH,)) * (1 + m[1]) + m[0]

    def _run(self, tokens: Tensor, features: Features | None) -> Tensor:
        self.model.calls.append(tokens.numel())
        x = self.x[:, tokens]
        for b, block in enumerate(self.model.blocks):
            m = (block["modulation"] + self.e0)[:, self.frame_of[tokens]].unbind(2)
            q, k, v = ((layer_norm(x, (WIDTH,)) * (1 + m[1]) + m[0]) @ block["qkv"]).chunk(3, dim=-1)
            y = scaled_dot_product_attention(q, *self._kv(b, tokens, torch.stack([k, v]))) @ block["o"]
            x = self._add(features, f"main.{b}.self_attn", x, y, m[2])
            y = scaled_dot_product_attention(layer_norm(x, (WIDTH,)) @ block["text"], self.model.text, self.model.text)
            x = self._add(features, f"main.{b}.cross_attn", x, y, None)
            y = gelu((layer_norm(x, (WIDTH,)) * (1 + m[4]) + m[3]) @ block["up"]) @ block["down"]
            x = self._add(features, f"main.{b}.ffn", x, y, m[5])
        return x

    def _kv(self, b: int, tokens: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
        draft = self.model.draft[b]
        draft = fresh if draft is None else draft.index_copy(2, tokens, fresh)
        self.model.draft[b] = draft
        k, v = torch.cat([*self.model.prefix[b], draft], dim=2).unbind(0)
        return k, v

    @staticmethod
    def _add(features: Features | None, key: str, x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
        if features is not None:
            features[key] = y
        return x + (y if gate is None else y * gate)


def rollout(method, forced=FxxF, video: int = 0, chunks: int = 3, model: ToyModel | None = None, on_step=None):
    """All chunks of a toy video -> (latents [1, chunks * L, C], fractions[chunk][step]).

    ``on_step(step, runner, result)`` is called after each denoising step.
    """
    model = model or ToyModel()
    model.clear()
    method.forced = forced
    method.begin_video()
    latents, fractions = [], []
    for c in range(chunks):
        method.begin_chunk(c)
        x = noise(video, c, 0).to(model.dtype)
        row = []
        for k, sigma in enumerate(SIGMAS):
            run = ToyRunner(model, x, model.e0(sigma))
            step = Step(x, run.e0, GRID, c, k, forced[k], sigma)
            result = method.step(step, run)
            row.append(result.fraction)
            if on_step:
                on_step(step, run, result)
            x0 = x - sigma * 0.3 * result.x
            x = x0 if k == len(SIGMAS) - 1 else renoise(x0, video, c, k)
        ToyRunner(model, x, model.e0(0.0)).full()
        model.commit()
        latents.append(x)
        fractions.append(row)
    return torch.cat(latents, dim=1), fractions


def renoise(x0: Tensor, video: int, chunk: int, k: int) -> Tensor:
    share = torch.sigmoid(noise(video, chunk, k, 5, size=(1, GRID.tokens, 1)).to(x0.dtype) - 1)
    mixed = (1 - share) * noise(video, chunk, 0).to(x0.dtype) + share * noise(video, chunk, k + 1).to(x0.dtype)
    return (1 - SIGMAS[k + 1]) * x0 + SIGMAS[k + 1] * mixed


def mean(fractions: list[list[float]]) -> float:
    return sum(map(sum, fractions)) / sum(map(len, fractions))
