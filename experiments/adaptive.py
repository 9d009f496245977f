"""Question: does an adaptive method beat the fixed mask of equal compute? Reads the runs of adaptive.sh.

    python experiments/adaptive.py OUTPUTS

Prints a table of every run, then compares each video with the fixed masks at the forward fraction of that video: the
best mask of each number of skipped steps, chosen on the same videos (which favours the masks), and between those a
mixture, some chunks with one mask and some with the next, squared error and LPIPS taken as linear in the share.
Intervals: 95%, bootstrap over videos.
"""

import json
import sys
from pathlib import Path

import numpy as np

METHODS = ("teacache", "flowcache", "motioncache", "taylorseer")


def main(outputs: Path) -> None:
    found = [json.loads(path.read_text()) for path in sorted(outputs.glob("*/scores.json"))]
    runs = [run for run in found if (path := _folder(outputs, run)) and (path / "done.json").is_file()]
    order = ("none", "reuse", *METHODS)
    runs.sort(key=lambda r: (order.index(r["method"]), -len(r["schedule"].strip("x")), r["schedule"], r["dial"] or 0))
    print("| run | compute | forward | ceiling | PSNR, dB | PSNR moving, dB | LPIPS |\n|---|---|---|---|---|---|---|")
    for run in runs:
        cost = f"{run['compute_fraction']:.3f} | {run['forward_fraction']:.3f} | {run['ceiling']:.2f}x"
        print(f"| {run['label']} | {cost} | {_db(run, 'psnr')} | {_db(run, 'psnr_moving')} | {_lpips(run)} |")
    masks = best_masks([run for run in runs if run["method"] == "reuse"])
    names = ", ".join(f"{label} at {share:.2f}" for share, label, _, _ in masks)
    print(f"\nBest fixed masks by forward fraction: {names}\n")
    print("| run | forward | PSNR, dB above the masks | LPIPS above the masks | videos with higher PSNR |")
    print("|---|---|---|---|---|")
    for run in runs:
        if run["method"] in METHODS and run["compute_fraction"] < 0.999:
            print(f"| {run['label']} | {run['forward_fraction']:.3f} | {' | '.join(against(run, masks))} |")


def forward(compute: np.ndarray) -> np.ndarray:
    """Four denoising steps and a store pass."""
    return (4 * compute + 1) / 5


def errors(run: dict) -> tuple[np.ndarray, np.ndarray]:
    """Squared error (255 = 1) and LPIPS of each video; an identical one has none."""
    psnr = np.array([np.inf if v["psnr"] is None else v["psnr"] for v in run["per_video"]])
    return 10 ** (-psnr / 10), np.array([v["lpips"] for v in run["per_video"]], float)


def best_masks(runs: list[dict]) -> list[tuple[float, str, np.ndarray, np.ndarray]]:
    """(forward fraction, schedule, squared errors, LPIPS), cheapest first, FFFF last."""
    best: dict[float, dict] = {}
    for run in runs:
        share = round(run["forward_fraction"], 6)
        if share not in best or run["psnr"] > best[share]["psnr"]:
            best[share] = run
    none = np.zeros(len(runs[0]["per_video"]))
    return [(s, best[s]["schedule"], *errors(best[s])) for s in sorted(best)] + [(1.0, "FFFF", none, none)]


def against(run: dict, masks: list[tuple[float, str, np.ndarray, np.ndarray]]) -> list[str]:
    shares = np.array([share for share, *_ in masks])
    mine = forward(np.array([v["compute_fraction"] for v in run["per_video"]]))
    mse, lpips = errors(run)
    fixed = [np.array([np.interp(mine[i], shares, [m[k][i] for m in masks]) for i in range(len(mine))]) for k in (2, 3)]
    least = 1e-10  # 100 dB, for videos that came out identical
    gain = 10 * np.log10(np.maximum(fixed[0], least) / np.maximum(mse, least))
    return [_interval(gain, "{:+.2f}"), _interval(lpips - fixed[1], "{:+.5f}"), f"{(gain > 0).sum()} of {len(gain)}"]


def _interval(values: np.ndarray, form: str) -> str:
    draws = np.random.default_rng(0).integers(len(values), size=(10000, len(values)))
    low, high = np.quantile(values[draws].mean(1), [0.025, 0.975])
    return f"{form.format(values.mean())} [{form.format(low)}, {form.format(high)}]"


def _folder(outputs: Path, run: dict) -> Path | None:
    return next(outputs.glob(f"*-{run['signature']}"), None)


def _db(run: dict, name: str) -> str:
    if run[name] is not None:
        return f"{run[name]:.2f}"
    return "identical" if run[f"{name}_why"] == "identical" else "-"


def _lpips(run: dict) -> str:
    return "-" if run["lpips"] is None else f"{run['lpips']:.4f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
