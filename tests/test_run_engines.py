"""Runs on other engines: two qualities, one table, and the sentences for options that make no sense."""

import pytest
from command import fastcache, only, read, runs


def engine_of(path):
    return read(path / "scores.json")["engine"]


def test_other_engines_are_scored_twice(out, capsys):
    words = ("method=reuse", "num_videos=1", f"outputs={out}")
    assert fastcache("-m", "engine=vanilla,static,int4", *words) == 0
    scores = {read(path)["engine"]: read(path) for path in out.glob("reuse-*/scores.json")}
    full = {read(path)["engine"]: read(path) for path in out.glob("none-*/scores.json")}
    assert scores.keys() == full.keys() == {"vanilla", "static", "int4"}
    for name, made in scores.items():
        assert made["reference"] == full["vanilla"]["signature"]
        own = made["engine_reference"]
        assert (own is None) if name == "vanilla" else (own["reference"] == full[name]["signature"])
    assert scores["static"]["engine_reference"]["psnr"] == scores["static"]["psnr"] == scores["vanilla"]["psnr"]
    assert full["static"]["psnr_why"] == "identical"  # the engine changes nothing
    assert full["int4"]["psnr"] is not None  # the engine alone
    assert full["int4"]["engine_reference"]["psnr_why"] == "identical"  # the method alone: there is none
    assert scores["int4"]["engine_reference"]["psnr"] != scores["int4"]["psnr"]
    lines = capsys.readouterr().out.splitlines()
    (head,) = [line for line in lines if line.startswith("run  ")]
    for title in ("engine", "KV MB", "s/video", "PSNR ↑", "own PSNR ↑"):
        assert title in head
    assert sum(line.startswith(("reuse FxxF", "none FFFF")) for line in lines) == 6


def test_a_finished_run_is_not_scored_again_and_a_new_metric_is(out):
    words = ("method=reuse", "engine=int8", "num_videos=1", f"outputs={out}")
    assert fastcache(*words, "metric=psnr") == 0
    path = only(out, "reuse-*") / "scores.json"
    first, written = read(path), path.stat().st_mtime_ns
    assert fastcache(*words, "metric=psnr") == 0
    assert path.stat().st_mtime_ns == written
    assert fastcache(*words, "metric=ssim") == 0
    own = read(path)["engine_reference"]
    assert own["ssim"] is not None and own["psnr"] == first["engine_reference"]["psnr"]
    assert len(runs(out)) == 3  # the run, its engine's FFFF, vanilla's


def test_bytes_tell_device_and_host_apart(out):
    words = ("method=none", "schedule=FFFF", "num_videos=1", f"outputs={out}")
    assert fastcache("-m", "engine=vanilla,offload", *words) == 0
    made = {engine_of(path.parent): read(path) for path in out.glob("none-*/scores.json")}
    moved = made["vanilla"]["kv_bytes"] - made["offload"]["kv_bytes"]
    assert made["vanilla"]["kv_host_bytes"] == 0 and made["offload"]["kv_host_bytes"] == moved > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("engine=window", "engine.window_frames=5"), "window_frames=5 is too small"),
        (("engine=window", "engine.rope=up"), "absolute, relative"),
        (("engine=int8", "engine.bits=3"), "8, 4"),
        (("engine=int8", "engine.keys=row"), "token, channel"),
        (("engine=offload", "engine.budget_mb=-1"), "megabytes"),
        (
            ("engine=static", "engine.window_frames=6"),
            "engine=static has no option window_frames; it belongs to engine=window",
        ),
        (("engine.bits=8",), "engine=vanilla has no option bits; it belongs to engine=int4, int8"),
        (("engine=int9",), "Did you mean int"),
    ],
)
def test_bad_engine_options_are_said_in_a_sentence(out, capsys, words, message):
    assert fastcache("method=none", f"outputs={out}", *words) == 1
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert runs(out) == []


def test_too_small_a_budget_ends_the_run_with_its_reason(out, capsys):
    words = ("method=none", "engine=offload", "engine.budget_mb=0.01", "num_videos=1", f"outputs={out}")
    assert fastcache(*words) == 1
    assert "the budget is engine.budget_mb=0.01" in capsys.readouterr().err
