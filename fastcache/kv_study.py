"""`python -m fastcache.kv_study`: what the K/V cache saves and what each engine costs, counted and measured.

The arithmetic of token-by-token generation (4 layers, positions 3 to 12) beside a toy that runs it; bytes of 12 layers
x 1000 positions x 512 under every engine; on a video model the time of recomputed over cached rollouts as they grow,
the engines' bytes, their peak and their errors; and rollouts far beyond the trained length in a window. Everything
comes from one run. Writes study.json and study.png, and logs both to W&B.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.table import Table

from fastcache import api, catalog, terminal
from fastcache.condition import Condition
from fastcache.errors import UserError
from fastcache.results import write_json
from fastcache.sampler import FewStep
from fastcache.study import arithmetic, decoder, plot
from fastcache.study.drift import Drift, long_rollout
from fastcache.study.engines import Row, compare, summary_bytes
from fastcache.study.ratio import Growth, growth
from fastcache.track import tracked

WHOLE = 7  # chunks timed with every forward of a rollout
SEED_RATIO = 3.97  # what the summary prints for 300 against 52


def run(model: Any, frames: int, long: int, window: int, sink: int, out: Path, mode: str) -> dict[str, Any]:
    """The whole study; returns what study.json holds."""
    began = perf_counter()
    settings = {"model": model.name, "weights": model.weights_hash, "frames": frames, "long": long, "window": window}
    settings |= {"sink": sink, "torch": torch.__version__, "threads": torch.get_num_threads()}
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    with tracked(settings, mode=mode, name="kv_study", id=f"kv-{name}", dir=out, job_type="study") as tracker:
        toy, toy_rows, step = decoder.measure(), summary_bytes(), decoder.one_more()
        _summary(toy, toy_rows, step)
        prompts = catalog.load("prompts", "smoke")["texts"]
        size, chunks = model.frames_per_chunk, frames // model.frames_per_chunk
        sampler = FewStep(frames_per_chunk=size)
        condition = model.condition(prompts[0], 0, frames)
        whole = min(WHOLE, chunks)
        latents = api.generate(model, prompts[0], schedule="FFFF", frames=whole * size).rollout.latents
        # Chunks beyond are timed with one forward each, whose time does not depend on what they show.
        latents = latents.repeat(1, -(-chunks // whole), 1, 1, 1)[:, :frames]
        later = sorted({c for c in (14, 21, 28, chunks) if whole < c <= chunks})
        grown, filled = growth(
            model, Condition(condition.prompt_embeds), latents, sampler, whole, [c - 1 for c in later]
        )
        shown = [*range(1, whole + 1), *later]
        rows = compare(filled)
        _video(grown, shown, size, rows, len(sampler.timesteps) + 1)
        drifts = (
            [long_rollout(model, prompts[:1], long, window, sink, rope) for rope in ("absolute", "relative")]
            if long
            else []
        )
        if drifts:
            _drift(drifts, size, model.trained_frames)
        plot.draw(
            out / "study.png", [size * n for n in shown], [(n + 1) / 2 for n in shown], [grown.ratio(n) for n in shown],
            rows, drifts, size,
        )  # fmt: skip
        made = _numbers(toy, toy_rows, step, grown, shown, rows, drifts)
        made["settings"], made["seconds"] = settings, perf_counter() - began
        write_json(out / "study.json", made)
        tracker.log_scores(_flat(made))
        tracker.log_media(out / "study.png")
    terminal.say(f"{made['seconds']:.0f} s; wrote {out}/study.json  study.png")
    return made


def _summary(toy: decoder.Measured, rows: Sequence[Row], step: float) -> None:
    counted = arithmetic.tokens(4, 3, 10)
    table = _table("Token by token: 4 layers, 3 positions given, 10 new", "", "counted", "measured")
    table.add_row("position computations without a cache", str(counted.without), str(toy.without))
    table.add_row("with a cache", str(counted.cached), str(toy.cached))
    table.add_row("saved", f"{counted.saved:.1%}", f"{1 - toy.cached / toy.without:.1%}")
    table.add_row("ratio", f"{counted.ratio:.2f}x", f"{toy.without / toy.cached:.2f}x")
    table.add_row(f"time, without / with (the summary prints {SEED_RATIO}x)", "-", f"{toy.speedup:.2f}x")
    table.add_row("time of position 1000 of 12 layers x 512, without / with", "1000.00x", f"{step:.2f}x")
    _show(table)
    _show(_bytes("12 layers x 1000 positions x 512, float32", rows))


def _video(grown: Growth, shown: Sequence[int], size: int, rows: Sequence[Row], forwards: int) -> None:
    table = _table(
        f"Cached rollouts, {forwards} forwards a chunk", "latent frames", "counted", "measured", "of counted"
    )
    for n in shown:
        counted = arithmetic.chunks(n, size, forwards).ratio
        table.add_row(str(size * n), f"{counted:.2f}x", f"{grown.ratio(n):.2f}x", f"{grown.ratio(n) / counted:.1%}")
    _show(table)
    terminal.say(f"largest difference of the flows: {grown.difference:.1e}")
    _show(_bytes("Engines on the K/V of a rollout", rows))


def _bytes(title: str, rows: Sequence[Row]) -> Table:
    measured = rows[0].peak > 0
    more = ("peak MB", "peak / bf16", "K error", "V error", "attention error") if measured else ()
    table = _table(title, "engine", "MB", "host MB", "formula MB", *more)
    for row in rows:
        cells = [row.name, *(f"{x / 1e6:.3f}" for x in (row.bytes, row.host_bytes, row.expected))]
        if measured:
            errors = (row.k_error, row.v_error, row.attention_error)
            cells += [
                f"{row.peak / 1e6:.3f}",
                f"{row.bf16_share:.3f}",
                *("-" if e is None else f"{e:.2%}" for e in errors),
            ]
        table.add_row(*cells)
    return table


def _drift(drifts: Sequence[Drift], size: int, trained: int) -> None:
    chunks = len(drifts[0].kv_bytes)
    parts = sorted({0, trained // size, *range(0, chunks, max(1, chunks // 7)), chunks})
    table = _table(
        f"{chunks * size} latent frames, trained on {trained}: window {drifts[0].window_frames}, sink "
        f"{drifts[0].sink_frames}",
        *("latent frames", *(f"{name}, {d.rope}" for d in drifts for name in ("near", "error px")), "K/V MB"),
    )
    for first, last in zip(parts, parts[1:], strict=False):
        cells = []
        for d in drifts:
            near, error = d.mean(d.near, first, last), d.mean(d.error, first, last)
            cells += ["-" if near is None else f"{near:.0%}", "-" if error is None else f"{error:.2f}"]
        table.add_row(f"{first * size + 1}-{last * size}", *cells, f"{drifts[0].kv_bytes[last - 1] / 1e6:.3f}")
    _show(table)


def _numbers(
    toy: decoder.Measured, toy_rows: Sequence[Row], step: float, grown: Growth, shown: Sequence[int],
    rows: Sequence[Row], drifts: Sequence[Drift],
) -> dict[str, Any]:  # fmt: skip
    return {
        "tokens": {"counted": arithmetic.tokens(4, 3, 10)._asdict(), "measured": toy._asdict(), "step_1000": step},
        "summary_bytes": [asdict(row) for row in toy_rows],
        "growth": [{"chunks": n, "counted": (n + 1) / 2, "measured": grown.ratio(n)} for n in shown],
        "forward_seconds": {"timed_chunks": grown.timed, "cached": [*map(float, grown.cached)],
                            "recomputed": [*map(float, grown.recomputed)]},
        "largest_difference": grown.difference,
        "engines": [asdict(row) for row in rows],
        "long": [asdict(drift) | {"constant_memory": drift.constant} for drift in drifts],
    }  # fmt: skip


def _flat(made: dict[str, Any]) -> dict[str, float]:
    """The single numbers, for W&B's summary."""
    flat = {f"growth_{row['chunks']}_chunks": row["measured"] for row in made["growth"]}
    for row in made["engines"]:
        flat |= {f"{row['name']}_{key}": row[key] for key in ("bytes", "peak", "attention_error")}
    for row in made["long"]:
        flat |= {
            f"long_{row['rope']}_last_error_px": row["error"][-1],
            f"long_{row['rope']}_bytes": row["kv_bytes"][-1],
        }
    return flat | {"seconds": made["seconds"], "toy_speedup": made["tokens"]["measured"]["speedup"]}


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _show(table: Table) -> None:
    terminal.show_whole(table)
    terminal.say("")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fastcache.kv_study", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--model", default="tiny_t2v", help="a text-to-video model of conf/model/ (default: tiny_t2v)")
    parser.add_argument(
        "--frames", type=int, default=84, help="latent frames of the longest timed rollout (default: 84)"
    )
    parser.add_argument(
        "--long", type=int, help="latent frames of the long rollouts; 0: none (default: ten times trained)"
    )
    parser.add_argument("--window", type=int, default=12, help="their window in latent frames (default: 12)")
    parser.add_argument("--sink", type=int, default=3, help="their sink in latent frames (default: 3)")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="writes DIR/kv_study (default: outputs)")
    parser.add_argument("--tracking", default="offline", choices=("offline", "online", "disabled"), help="W&B")
    args = parser.parse_args(argv)
    try:
        model = api.load_model(args.model)
        long = 10 * model.trained_frames if args.long is None else args.long
        size = model.frames_per_chunk
        for name, value in (("frames", args.frames), ("long", long)):
            if value % size or value < (size if name == "frames" else 0):
                raise UserError(f"--{name} {value}: expected a multiple of {size}, the frames of a chunk")
        if model.needs:
            raise UserError(f"--model {args.model}: the study needs a text-to-video model, e.g. --model tiny_t2v")
        run(model, args.frames, long, args.window, args.sink, args.outputs / "kv_study", args.tracking)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
