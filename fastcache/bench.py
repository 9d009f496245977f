"""`python -m fastcache.bench`: the speed figures of the project, all from one run.

Seconds of an FFFF video; the DiT speed-up of `reuse` under FxxF against its ceiling; the share of an FFFF run that is
neither DiT nor decoding. The two schedules take turns, so that a slower moment of the machine meets both, and every
figure is a median. A warm-up chunk goes first and counts for nothing.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from fastcache import api, catalog
from fastcache.errors import UserError
from fastcache.methods.none import NoCache
from fastcache.methods.reuse import DirectReuse
from fastcache.results import Folder
from fastcache.schedule import ceiling, parse_schedule

REFERENCE, REUSED = "FFFF", "FxxF"


@dataclass
class Timing:
    """Seconds of one video, from the prompt to its frames on disk."""

    wall: float
    dit: float
    decode: float

    @property
    def overhead(self) -> float:
        """Share of the wall time that is neither DiT nor decoding."""
        return 1 - (self.dit + self.decode) / self.wall


@dataclass
class Figures:
    """Medians of a benchmark."""

    video_seconds: float
    dit_seconds: float
    speedup: float
    ceiling: float
    overhead_fraction: float

    def lines(self) -> list[str]:
        share = self.speedup / self.ceiling
        return [
            f"{REFERENCE}: {self.video_seconds:.2f} s a video, of it DiT {self.dit_seconds:.2f} s",
            f"reuse {REUSED}: {self.speedup:.3f}x in DiT time, {share:.1%} of its ceiling {self.ceiling:.3f}x",
            f"overhead_fraction: {self.overhead_fraction:.2%} of an {REFERENCE} run",
        ]


def measure(model: Any, prompt: str, frames: int, repeats: int) -> Figures:
    """Roll out ``repeats`` pairs of videos, one schedule after the other, and take medians."""
    runs = [(NoCache(), REFERENCE), (DirectReuse(), REUSED)]
    for method, schedule in runs:
        api.generate(model, prompt, method, schedule=schedule, frames=model.frames_per_chunk)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Folder(Path(scratch), "bench", repeats)
        (folder.path / "videos").mkdir()
        pairs = [[_time(model, prompt, *run, frames, folder, i) for run in runs] for i in range(repeats)]
    reference = [pair[0] for pair in pairs]
    return Figures(
        video_seconds=median(t.wall for t in reference),
        dit_seconds=median(t.dit for t in reference),
        speedup=median(full.dit / reused.dit for full, reused in pairs),
        ceiling=ceiling(parse_schedule(REUSED, len(REUSED))),
        overhead_fraction=median(t.overhead for t in reference),
    )


def _time(model: Any, prompt: str, method: Any, schedule: str, frames: int, folder: Folder, idx: int) -> Timing:
    began = perf_counter()
    video = api.generate(model, prompt, method, schedule=schedule, frames=frames, idx=idx)
    folder.save_frames(idx, video.frames)
    return Timing(perf_counter() - began, video.rollout.dit_seconds, video.decode_seconds)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fastcache.bench", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--model", default="tiny_t2v", help="a model of conf/model/ (default: tiny_t2v)")
    parser.add_argument("--weights", help="a checkpoint file (default: the model's own)")
    parser.add_argument("--prompt", help="default: the first smoke prompt")
    parser.add_argument("--frames", type=int, default=21, help="latent frames (default: 21)")
    parser.add_argument("--repeats", type=int, default=5, help="videos of each kind (default: 5)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    args = parser.parse_args(argv)
    try:
        if args.repeats < 1:
            raise UserError(f"--repeats {args.repeats}: expected 1 or more")
        model = api.load_model(args.model, args.weights, args.device, args.dtype)
        prompt = args.prompt or catalog.load("prompts", "smoke")["texts"][0]
        print(
            f"{args.model}, {args.frames} latent frames, {args.dtype} on {args.device}, "
            f"{torch.get_num_threads()} threads, torch {torch.__version__}; medians of {args.repeats}"
        )
        print("\n".join(measure(model, prompt, args.frames, args.repeats).lines()))
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
