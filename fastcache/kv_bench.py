"""`python -m fastcache.kv_bench`: one chunk of attention under each K/V engine, against attention alone.

A chunk is as many denoising forwards as a sampler has steps and a store forward; each attends to the past and itself,
the store forward commits. Plain attention reads contiguous K and V of the same size, made beforehand. Everything takes
turns on one block of the bundled model's size, and the figures are medians of ratios between neighbours in time.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from fastcache.errors import UserError
from fastcache.kv_cache import KVSpec
from fastcache.models.attention import attend, attend_pieces
from fastcache.study.engines import NAMES, TAG, make

CHUNK = 3  # latent frames


class Bench:
    """The last chunk of a video of ``frames`` latent frames of ``frame_tokens`` tokens, before one block."""

    def __init__(self, frames: int, frame_tokens: int, heads: int, head_dim: int, forwards: int, dtype: torch.dtype):
        self.forwards, self.tokens = forwards, CHUNK * frame_tokens
        self.start = (frames - CHUNK) * frame_tokens
        self.module = nn.Identity()
        block = nn.Module()
        block.self_attn = self.module
        spec = KVSpec(1, heads, head_dim, dtype, "cpu", frames * frame_tokens, frame_tokens=frame_tokens)
        generator = torch.Generator().manual_seed(0)
        shape = (1, frames * frame_tokens, heads, head_dim)
        self.q, self.k, self.v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
        self.engines = {name: make(name, nn.ModuleList([block]), spec) for name in NAMES}
        for engine in self.engines.values():
            for start in range(0, self.start, self.tokens):
                engine.append_self_kv(self.module, *self._chunk(start), cache_tag=TAG, start_token=start)

    def _chunk(self, start: int) -> tuple[Tensor, Tensor]:
        own = slice(start, start + self.tokens)
        return self.k[:, own].clone(), self.v[:, own].clone()

    def plain(self) -> None:
        for _ in range(self.forwards):
            attend(self.q[:, self.start :], self.k, self.v)

    def cached(self, engine: Any) -> Callable[[], None]:
        """A chunk under an engine; its K and V are there before the clock starts, as projections would be."""
        k, v = self._chunk(self.start)
        where: Any = {"cache_tag": TAG, "start_token": self.start}
        q = self.q[:, self.start :]

        def work() -> None:
            for _ in range(self.forwards):
                if engine.piecewise:
                    attend_pieces(q, engine.attend_pieces(self.module, k, v, **where))
                else:
                    attend(q, *engine.attend_view(self.module, k, v, **where))
            engine.append_self_kv(self.module, k, v, **where)

        return work

    @torch.inference_mode()
    def ratios(self, repeats: int) -> dict[str, float]:
        """Median time of each engine's chunk / plain attention just before it."""
        found: dict[str, list[float]] = {name: [] for name in self.engines}
        for turn in range(repeats + 1):  # the first is a warm-up
            for name, engine in self.engines.items():
                work = self.cached(engine)
                base = _seconds(self.plain)
                took = _seconds(work)
                if name != "window":
                    engine.truncate(TAG, self.start)
                else:
                    self._refill(engine)
                if turn:
                    found[name].append(took / base)
        return {name: median(ratios) for name, ratios in found.items()}

    def _refill(self, engine: Any) -> None:
        """What the window pushed out does not come back by itself."""
        engine.clear()
        for start in range(0, self.start, self.tokens):
            engine.append_self_kv(self.module, *self._chunk(start), cache_tag=TAG, start_token=start)


def _seconds(work: Callable[[], None]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fastcache.kv_bench", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--frames", type=int, nargs="+", default=[21, 84], help="latent frames (default: 21 84)")
    parser.add_argument("--frame-tokens", type=int, default=64, help="tokens of a latent frame (default: 64)")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=48)
    parser.add_argument("--forwards", type=int, default=5, help="of a chunk, the store pass included (default: 5)")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    args = parser.parse_args(argv)
    try:
        for frames in args.frames:
            if frames % CHUNK or frames < 2 * CHUNK:
                raise UserError(f"--frames {frames}: expected a multiple of {CHUNK}, {2 * CHUNK} or more")
        if args.repeats < 1 or args.forwards < 1:
            raise UserError("--repeats and --forwards: expected 1 or more")
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"attention + append of one chunk / attention alone on contiguous K/V, {args.dtype}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}; medians of {args.repeats}"
    )
    for frames in args.frames:
        bench = Bench(
            frames, args.frame_tokens, args.heads, args.head_dim, args.forwards, getattr(torch, args.dtype)
        )  # fmt: skip
        told = ", ".join(f"{name} {ratio:.3f}x" for name, ratio in bench.ratios(args.repeats).items())
        print(f"{frames} frames: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
