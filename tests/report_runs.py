"""Run folders written straight to disk: what a finished study looks like, as large as a test needs it."""

import hashlib
import json
from pathlib import Path

import numpy as np
import yaml

PROTOCOL = {
    "frames": "decoded uint8 [T, H, W, 3], no codec",
    "frame_shape": [12, 32, 32, 3],
    "lpips": {"net": "alex", "weights_sha256": "443c", "weights_source": "here", "device": "cpu"},
    "ssim": "gaussian",
    "timing": "wall clock",
    "made_by": [{"device": "a CPU", "commit": "abc1234", "torch": "2"}],
    "dtype": "float32",
    "device": "cpu",
}
PROMPTS = [f"a red circle moves left, take {i}" for i in range(4)]


def signature(*parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def write_run(
    root: Path,
    method="none",
    dial=None,
    schedule="FFFF",
    forward=1.0,
    lpips=None,
    *,
    seed=0,
    model="toy",
    renoise="fresh",
    prompts=PROMPTS,
    reference=None,
    frames=12,
    speedup=None,
    mp4=b"",
    options=None,
    engine=("vanilla", {}),
    protocol=None,
    chunks=4,
) -> Path:
    """A finished run. ``lpips``: one number a prompt; None for a run identical to its reference."""
    chosen = sorted((options or {}).items()) + ([engine] if engine[1] else [])
    own = signature(method, dial, schedule, seed, model, renoise, prompts, frames, chosen)
    base = reference or signature("none", None, "FFFF", seed, model, renoise, prompts, frames, [])
    exact = lpips is None
    values = [0.0] * len(prompts) if exact else list(lpips)
    psnr = [None if exact else float(10 - 10 * np.log10(v + 1e-9)) for v in values]
    per_video = []
    for prompt, value, decibel in zip(prompts, values, psnr, strict=True):
        series = {
            "lpips": [value * (1 + 0.1 * c) for c in range(chunks)],
            "psnr": [decibel and decibel - c for c in range(chunks)],
            "ssim": [1 - value] * chunks,
            "compute_fraction": [forward] * chunks,
        }
        why = {"psnr_why": "identical"} if exact else {}
        entry = {"prompt": prompt, "seed": seed, "lpips": value, "psnr": decibel, "ssim": 1 - value, **why}
        per_video.append(entry | {"compute_fraction": forward, "per_chunk": series})
    letters = len(schedule)
    ceiling = (letters + 1) / (schedule.count("F") + 1)
    label = " ".join([method, *([f"{dial:g}"] if dial is not None else []), schedule])
    scores = {
        "signature": own, "label": label, "model": model, "engine": engine[0], "method": method, "dial": dial,
        "schedule": schedule, "sampler": "few_step", "renoise": renoise, "rescale": None, "seed": seed,
        "num_videos": len(prompts), "reference": base, "psnr": None if exact else float(np.mean(psnr)),
        **({"psnr_why": "identical"} if exact else {}),
        "ssim": 1 - float(np.mean(values)), "lpips": float(np.mean(values)),
        "compute_fraction": forward, "forward_fraction": forward, "ceiling": ceiling,
        "speedup": 0.95 / forward if speedup is None else speedup, "speedup_e2e": 0.9 / forward, "method_bytes": 1000,
        "per_video": per_video, "protocol": PROTOCOL | {"frame_shape": [frames, 32, 32, 3]} | (protocol or {}),
    }  # fmt: skip
    fractions = [1.0 if c == "F" else forward for c in schedule]
    traced = "".join("F" if c == "F" else "R" for c in schedule)
    chunk = {"letters": traced, "fractions": fractions, "indicator": [None] * letters}
    folder = root / f"{method}-{'nodial' if dial is None else f'{dial:g}'}-{schedule}-{own}"
    (folder / "videos").mkdir(parents=True)
    kind = f"fastcache.methods.{method}.M"
    settings = {
        "model": {"name": model}, "method": {"_target_": kind, **(options or {})}, "schedule": schedule, "seed": seed,
        "engine": {"_target_": "fastcache.kv_cache.Engine", "debug": False, **engine[1]},
        "frames": frames, "weights": None, "choices": {"model": model, "method": method, "sampler": "few_step"},
        "sampler": {"steps": [1000, 750, 500, 250], "renoise": renoise, "store": "clean"}, "prompts": prompts,
        "rescale": {"name": "auto", "used": None, "signed": None}, "dial": dial, "outputs": str(root),
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "scores.json").write_text(json.dumps(scores))
    (folder / "trace.json").write_text(json.dumps({"videos": [{"chunks": [chunk] * chunks}] * len(prompts)}))
    (folder / "done.json").write_text(json.dumps({"signature": own, "num_videos": len(prompts), "time": "2026-01-01"}))
    if mp4:
        for idx in range(len(prompts)):
            (folder / "videos" / f"{idx}.mp4").write_bytes(mp4)
    return folder


def write_study(root: Path, spread=0.001, **common) -> dict[str, Path]:
    """A reference, three fixed masks and two methods with a dial, by name."""
    rng = np.random.default_rng(0)

    def lpips(mean):
        return [mean + spread * float(x) for x in rng.random(len(common.get("prompts", PROMPTS)))]

    made = {"reference": write_run(root, **common)}
    for schedule, forward, mean in (("FFxF", 0.8, 0.02), ("FxxF", 0.6, 0.06), ("Fxxx", 0.4, 0.2)):
        made[schedule] = write_run(root, "reuse", None, schedule, forward, lpips(mean), **common)
    for dial, forward, mean in ((0.2, 0.8, 0.01), (0.5, 0.7, 0.02), (1.0, 0.6, 0.05)):
        made[f"motion {dial:g}"] = write_run(root, "motioncache", dial, "FxxF", forward, lpips(mean), **common)
    for dial, forward, mean in ((0.2, 0.85, 0.02), (1.0, 0.6, 0.07)):
        made[f"tea {dial:g}"] = write_run(root, "teacache", dial, "FxxF", forward, lpips(mean), **common)
    return made
