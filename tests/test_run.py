"""Whole runs on the toy model: what is on disk afterwards, and what is not done twice."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from command import QUICK, fastcache, only, read, runs, times
from PIL import Image

from fastcache import api, finished, make, preflight, run
from fastcache.methods.reuse import DirectReuse

ONE = ("frames=3", "num_videos=1")
SCORES = [
    "signature", "label", "model", "engine", "method", "dial", "schedule", "sampler", "renoise", "rescale", "seed",
    "num_videos", "reference", "psnr", "psnr_frame", "psnr_moving", "psnr_still", "ssim", "lpips",
    "compute_fraction", "forward_fraction", "ceiling", "speedup", "speedup_e2e", "dit_s_per_video", "s_per_video",
    "overhead_fraction", "flops_fraction", "kv_bytes", "method_bytes", "peak_bytes", "nonfinite_events",
    "per_video", "protocol",
]  # fmt: skip


def test_a_run_leaves_everything_behind(out, capsys):
    assert fastcache("method=reuse", f"outputs={out}", "metric=[psnr,ssim,lpips]") == 0
    printed = capsys.readouterr().out
    folder, reference = only(out, "reuse-nodial-FxxF-*"), only(out, "none-nodial-FFFF-*")
    assert sorted(path.name for path in out.iterdir()) == sorted([folder.name, reference.name])
    names = {"config.yaml", "trace.json", "scores.json", "sheet.png", "run.log", "done.json", "videos", ".lock"}
    for path in (folder, reference):
        assert {p.name for p in path.iterdir()} == names
        assert {p.name for p in (path / "videos").iterdir()} == {
            f"{i}.{k}" for i in (0, 1) for k in ("npz", "mp4", "json")
        }

    scores = read(folder / "scores.json")
    assert set(SCORES) <= scores.keys()
    assert scores["signature"] == folder.name.rpartition("-")[2]
    assert scores["reference"] == read(reference / "scores.json")["signature"] == reference.name.rpartition("-")[2]
    assert (scores["label"], scores["method"], scores["dial"]) == ("reuse FxxF", "reuse", None)
    assert (scores["sampler"], scores["renoise"], scores["seed"]) == ("few_step", "fresh", 0)
    assert (scores["compute_fraction"], scores["forward_fraction"]) == (0.5, pytest.approx(0.6))
    assert scores["ceiling"] == pytest.approx(5 / 3)
    assert scores["flops_fraction"] == pytest.approx(0.6)
    assert 0 < scores["ssim"] < 1
    assert scores["lpips"] > 0
    assert 5 < scores["psnr"] < 60
    assert scores["protocol"]["dtype"] == "float32"
    assert scores["protocol"]["made_by"][0]["torch"]

    entry = scores["per_video"][1]
    assert (entry["prompt"], entry["seed"], entry["compute_fraction"]) == (
        "a fast yellow triangle moves right and a slow white cross moves down, on purple stripes", 1, 0.5
    )  # fmt: skip
    assert entry["per_chunk"]["compute_fraction"] == [0.5, 0.5]
    assert [len(entry["per_chunk"][name]) for name in ("psnr", "ssim", "lpips")] == [2, 2, 2]

    trace = read(folder / "trace.json")
    assert [[chunk["letters"] for chunk in video["chunks"]] for video in trace["videos"]] == [["FRRF", "FRRF"]] * 2
    assert trace["videos"][0]["chunks"][0]["fractions"] == [1, 0, 0, 1]

    own = read(reference / "scores.json")
    assert (own["psnr"], own["psnr_why"], own["speedup"], own["lpips"]) == (None, "identical", 1.0, 0.0)

    with np.load(folder / "videos" / "0.npz") as file:
        frames = file["frames"]
    assert (frames.dtype, frames.shape) == (np.uint8, (6, 16, 16, 3))
    with av.open(str(folder / "videos" / "0.mp4")) as video:
        shown = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(shown) == 6
    assert shown[0].shape[1] > 3 * 256
    assert Image.open(folder / "sheet.png").width > 400
    assert folder.name.rpartition("-")[2] in (folder / "run.log").read_text()

    lines = printed.splitlines()
    assert sum(line.startswith(folder.name.rpartition("-")[2]) for line in lines) == 1  # one header line
    assert sum(line.startswith("video ") for line in lines) == 4
    rows = [line for line in lines if line.startswith(("none FFFF (ref)", "reuse FxxF"))]
    assert "0.600" in next(row for row in rows if row.startswith("reuse"))
    speeds = [float(row.split("x")[1].split()[0]) if "FxxF" not in row else scores["speedup"] for row in rows]
    assert len(rows) == 2
    assert speeds == sorted(speeds)
    assert lines[-1].startswith(f"wrote {folder}")


def test_the_same_command_again_builds_nothing(out, capsys, monkeypatch):
    words = ("method=reuse", *ONE, f"outputs={out}")
    assert fastcache(*words) == 0
    table = capsys.readouterr().out.splitlines()[-4:]
    before = times(out)
    monkeypatch.setattr(make, "get_model", None)
    assert fastcache(*words) == 0
    assert capsys.readouterr().out.splitlines() == table
    assert times(out) == before


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_next_missing_video(out, tmp_path, monkeypatch):
    words = ["method=none", "num_videos=4", "frames=21", f"outputs={out}"]
    quick = [word for word in QUICK if word.partition("=")[0] not in ("num_videos", "frames")]
    command = [sys.executable, "-m", "fastcache.run", *words, *quick]
    env = {**os.environ, "PYTHONPATH": str(Path(make.__file__).parents[1])}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(out.glob("*/videos/0.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = only(out, "none-*")
    made = sorted(int(path.stem) for path in (folder / "videos").glob("[0-9].json"))
    assert made
    assert len(made) < 4
    assert runs(out) == []
    kept = {name: when for name, when in times(folder).items() if name in [f"videos/{i}.npz" for i in made]}

    asked = []
    generate = api.generate
    monkeypatch.setattr(make, "_warm", set())
    monkeypatch.setattr(
        api, "generate", lambda *a, **k: asked.append(a[7] if len(a) > 7 else None) or generate(*a, **k)
    )
    assert fastcache(*words) == 0
    assert asked == [None, *(i for i in range(4) if i not in made)]  # None: the warm-up, once a process
    assert runs(out) == [folder.name]
    assert kept.items() <= times(folder).items()
    assert {p.name for p in (folder / "videos").iterdir()} == {
        f"{i}.{k}" for i in range(4) for k in ("npz", "mp4", "json")
    }

    whole = tmp_path / "out" / "whole"
    assert fastcache(*words[:-1], f"outputs={whole}") == 0
    for i in range(4):
        with np.load(folder / "videos" / f"{i}.npz") as a, np.load(only(whole, "none-*") / "videos" / f"{i}.npz") as b:
            assert (a["frames"] == b["frames"]).all()


@pytest.mark.parametrize("place", [(run, "plan"), (preflight, "check"), (finished, "render")], ids=lambda p: p[1])
def test_an_interrupted_run_says_how_to_go_on(out, capsys, monkeypatch, place):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(*place, stop)
    assert fastcache("method=none", *ONE, f"outputs={out}") == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert runs(out) == []
    assert not list(out.glob("*/failed.json"))
    monkeypatch.undo()
    assert fastcache("method=none", *ONE, f"outputs={out}") == 0


def test_force_makes_the_run_again_but_not_its_reference(out):
    words = ("method=reuse", "frames=3", f"outputs={out}")
    assert fastcache(*words) == 0
    folder, reference = only(out, "reuse-*"), only(out, "none-*")
    before, other = times(folder), times(reference)
    with np.load(folder / "videos" / "1.npz") as file:
        frames = file["frames"]
    assert fastcache(*words, "force=true") == 0
    after = times(folder)
    for name in ("videos/0.npz", "videos/1.npz", "videos/0.mp4", "scores.json", "done.json"):
        assert after[name] > before[name]
    assert times(reference) == other
    with np.load(folder / "videos" / "1.npz") as file:
        assert (file["frames"] == frames).all()


def test_a_sweep_shares_one_reference_and_ends_in_one_table(out, capsys):
    words = ("-m", "method=reuse", "schedule=FxxF,Fxxx,FFxx", *ONE, f"outputs={out}")
    assert fastcache(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(runs(out)) == 4
    assert len(list(out.glob("none-*"))) == 1
    assert {p.name for p in out.iterdir()} == {*runs(out)}
    assert sum(line.startswith(("job 1/3  ", "job 2/3  ", "job 3/3  ")) for line in lines) >= 3
    assert sum(line.startswith("run  ") for line in lines) == 1
    assert "3 done, 0 left, 0 failed" in lines
    assert sum("(ref)" in line for line in lines) == 1
    assert not any("seed" in line for line in lines if line.startswith("run  "))
    assert {read(path / "scores.json")["reference"] for path in out.glob("*-*")} == {
        only(out, "none-*").name.rpartition("-")[2]
    }
    compute = {p.name.split("-")[2]: read(p / "scores.json")["compute_fraction"] for p in out.glob("reuse-*")}
    assert compute == {"FxxF": 0.5, "Fxxx": 0.25, "FFxx": 0.5}
    before = times(out)
    before = {name: when for name, when in before.items() if ".sweep" not in name}
    assert fastcache(*words) == 0
    assert {name: when for name, when in times(out).items() if ".sweep" not in name} == before


def test_a_job_that_fails_does_not_stop_the_sweep(out, capsys, monkeypatch):
    words = ("-m", "method=reuse,none", *ONE, f"outputs={out}")
    step = DirectReuse.step

    def broken(self, step, run):
        raise RuntimeError("boom")

    monkeypatch.setattr(DirectReuse, "step", broken)
    assert fastcache(*words) == 1
    out_, err = capsys.readouterr()
    assert "1 done, 0 left, 1 failed (reuse FxxF: RuntimeError: boom)" in out_
    assert "reuse FxxF: RuntimeError: boom" in err
    assert "Traceback" not in out_ + err
    folder = only(out, "reuse-*")
    failed = read(folder / "failed.json")
    assert failed["type"] == "RuntimeError"
    assert any("in broken" in line for line in failed["traceback"])
    assert "boom" in (folder / "run.log").read_text()
    assert [name.partition("-")[0] for name in runs(out)] == ["none"]

    monkeypatch.setattr(DirectReuse, "step", step)
    assert fastcache(*words) == 1
    assert "retry=true" in capsys.readouterr().out
    assert fastcache(*words, "retry=true") == 0
    assert not (folder / "failed.json").exists()
    assert len(runs(out)) == 2


def test_a_single_run_that_failed_is_simply_tried_again(out, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(DirectReuse, "step", None)
        assert fastcache("method=reuse", *ONE, f"outputs={out}") == 1
    assert "Traceback" not in capsys.readouterr().err
    assert fastcache("method=reuse", *ONE, f"outputs={out}") == 0


def test_a_job_leaves_no_tensor_behind(out):
    """Without the garbage collector: a cycle would keep a job's K/V and residuals on the device until it comes by."""

    def held(method):
        assert fastcache(f"method={method}", f"outputs={out}") == 0
        return sum(x.nbytes for x in gc.get_objects() if issubclass(type(x), torch.Tensor))

    before = held("teacache")  # the model, and whatever is kept of the first use
    gc.disable()
    try:
        assert held("motioncache") <= before
    finally:
        gc.enable()
