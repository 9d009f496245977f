"""Whole runs on the toy model: what they are scored against, what they say, and what they refuse."""

import io
from types import SimpleNamespace

import pytest
from command import fastcache, only, read, runs, times
from rich.console import Console

from fastcache import make, terminal
from fastcache.results import write_json
from fastcache.scores import too_fast, unsteady


@pytest.mark.parametrize("method", ["teacache", "motioncache"])
def test_a_threshold_of_zero_is_the_reference(out, method):
    assert fastcache(f"method={method}", "thresh=0", f"outputs={out}", "metric=[psnr,ssim,lpips]") == 0
    scores = read(only(out, f"{method}-0-FxxF-*") / "scores.json")
    assert (scores["psnr"], scores["psnr_why"]) == (None, "identical")
    assert (scores["ssim"], scores["lpips"], scores["compute_fraction"]) == (1.0, 0.0, 1.0)
    assert [video["psnr_why"] for video in scores["per_video"]] == ["identical"] * 2


def test_another_metric_scores_what_is_there(out, monkeypatch):
    words = ("method=reuse", f"outputs={out}")
    assert fastcache(*words, "metric=psnr") == 0
    folder = only(out, "reuse-*")
    first = read(folder / "scores.json")
    assert (first["ssim"], first["ssim_why"].startswith("not asked for")) == (None, True)
    videos = times(folder / "videos")
    monkeypatch.setattr(make, "make_videos", None)
    assert fastcache(*words, "metric=ssim") == 0
    second = read(folder / "scores.json")
    assert second["ssim"] is not None
    assert second["psnr"] == first["psnr"]
    assert second["per_video"][0]["per_chunk"]["psnr"] == first["per_video"][0]["per_chunk"]["psnr"]
    assert {"psnr", "ssim"} <= second["protocol"]["metrics"].keys()
    assert times(folder / "videos") == videos


def test_another_reference_may_be_named(out):
    assert fastcache("method=none", "seed=1", f"outputs={out}") == 0
    floor = only(out, "none-*").name.rpartition("-")[2]
    assert fastcache("method=reuse", f"reference={floor}", f"outputs={out}") == 0
    scores = read(only(out, "reuse-*") / "scores.json")
    assert scores["reference"] == floor
    assert fastcache("method=reuse", f"outputs={out}") == 0
    again = read(only(out, "reuse-*") / "scores.json")
    assert again["reference"] != floor
    assert again["psnr"] != scores["psnr"]


def test_euler_is_scored_against_the_stock_sampler(out):
    assert fastcache("method=euler", f"outputs={out}") == 0
    scores = read(only(out, "euler-*") / "scores.json")
    assert (scores["label"], scores["sampler"], scores["renoise"]) == ("euler", "euler", None)
    assert scores["reference"] == only(out, "none-*").name.rpartition("-")[2]
    assert read(only(out, "none-*") / "scores.json")["sampler"] == "few_step"
    assert scores["psnr"] is not None


def test_auto_probes_once_and_shares_the_fit(out, capsys):
    words = ("method=teacache", "rescale=auto", f"outputs={out}", "num_videos=1")
    assert fastcache(*words, "thresh=0.5") == 0
    assert "probing 8 calibration prompts" in capsys.readouterr().out
    assert fastcache(*words, "thresh=0.9", "seed=2") == 0
    assert "probing" not in capsys.readouterr().out
    (fit,) = (out / "fits").glob("*.yaml")
    assert read(only(out, "teacache-0.9-*") / "scores.json")["rescale"] == "auto"
    before = times(fit.parent)
    assert fastcache(*words, "thresh=0.5") == 0
    assert times(fit.parent) == before


def test_offline_tracking_stays_in_the_folder(out):
    assert fastcache("method=none", "tracking=offline", "num_videos=1", f"outputs={out}") == 0
    folder = only(out, "none-*")
    assert list((folder / "wandb").glob(f"offline-run-*-{folder.name.rpartition('-')[2]}/run-*.wandb"))


def test_dry_says_everything_and_makes_nothing(out, capsys, monkeypatch):
    monkeypatch.setattr(make, "get_model", None)
    assert fastcache("method=motioncache", "thresh=0.3", "dry=true", f"outputs={out}") == 0
    printed = capsys.readouterr().out
    for word in (
        "signature",
        "ceiling",
        "1.67x",
        "memory",
        "K/V        main 0.1 MB",
        "reference",
        "does not exist yet",
    ):
        assert word in printed
    assert not out.exists()
    monkeypatch.undo()
    assert fastcache("method=none", f"outputs={out}") == 0
    capsys.readouterr()
    assert fastcache("method=motioncache", "thresh=0.3", "dry=true", f"outputs={out}") == 0
    assert "exists, finished" in capsys.readouterr().out
    assert len(list(out.iterdir())) == 1


def test_two_writers_of_one_folder(out, capsys):
    from fastcache.results import locked

    assert fastcache("method=reuse", f"outputs={out}") == 0
    folder = only(out, "reuse-*")
    with locked(folder / ".lock"):
        assert fastcache("method=reuse", "force=true", f"outputs={out}") == 1
    assert "is being written by process" in capsys.readouterr().err
    assert not (folder / "failed.json").exists()
    assert runs(out) == sorted([folder.name, only(out, "none-*").name])


def test_no_metric_at_all(out):
    assert fastcache("method=none", "metric=[]", "num_videos=1", f"outputs={out}") == 0
    scores = read(only(out, "none-*") / "scores.json")
    assert (scores["psnr"], scores["lpips"]) == (None, None)
    assert scores["compute_fraction"] == 1.0


def test_a_reference_of_more_videos_will_do(out):
    assert fastcache("method=none", f"outputs={out}") == 0
    more = only(out, "none-*").name.rpartition("-")[2]
    assert fastcache("method=reuse", "num_videos=1", f"reference={more}", f"outputs={out}") == 0
    assert read(only(out, "reuse-*") / "scores.json")["reference"] == more
    assert len(list(out.glob("none-*"))) == 1


def test_the_bar_shows_chunk_and_trace(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        terminal, "console", lambda: Console(file=screen, force_terminal=True, width=120, color_system=None)
    )
    trace = SimpleNamespace(letters="FP", compute_fraction=0.7)
    with terminal.Bar(3, 7, title="job 2  ") as bar:
        bar.on_step(1)(4, trace)
        bar.progress.refresh()
    assert "job 2  video 2/3  chunk 5/7  trace FP    compute 0.70" in screen.getvalue()


def test_the_table_tells_runs_of_one_label_apart(out, capsys):
    assert fastcache("-m", "method=none", "seed=0,1", "num_videos=1", f"outputs={out}") == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = [line for line in lines if line.startswith("run  ")]
    rows = [line.split() for line in lines if line.startswith("none FFFF (ref)")]
    assert "seed" in head
    assert sorted(row[3] for row in rows) == ["0", "1"]
    assert {row[-1] for row in rows} == {name.rpartition("-")[2] for name in runs(out)}


def test_speed_ups_timed_beside_other_work_are_put_in_doubt(out, capsys):
    """Videos of equal work whose times differ: told with the table and kept in the protocol."""
    assert fastcache("method=reuse", f"outputs={out}") == 0
    reference, run = only(out, "none-*"), only(out, "reuse-*")
    for slow, told in ((1.2, None), (2.4, "DiT times of equal work differ 2.4x")):
        for idx, seconds in enumerate((1.0, slow)):
            path = reference / "videos" / f"{idx}.json"
            write_json(path, read(path) | {"dit_s": seconds})
            path = run / "videos" / f"{idx}.json"
            write_json(path, read(path) | {"dit_s": 1.1})
        (run / "scores.json").unlink()
        capsys.readouterr()
        assert fastcache("method=reuse", f"outputs={out}") == 0
        assert read(run / "scores.json")["protocol"]["timing_doubt"] == {"run": None, "reference": told}
        said = capsys.readouterr().out
        assert ("in doubt" in said) == (told is not None)
        if told:
            assert f"in doubt (the reference: {told})" in said


def test_videos_of_unequal_work_may_take_unequal_time():
    one = {"forward_fraction": 0.6, "dit_s": 1.0}
    assert unsteady([one, {"forward_fraction": 1.0, "dit_s": 1.7}]) is None
    assert unsteady([one, {"forward_fraction": 0.6, "dit_s": 1.6}]) == "DiT times of equal work differ 1.6x"


@pytest.mark.parametrize(("row", "told"), [
    ({"speedup": 1.72, "forward_fraction": 1.0}, "1.72x, where its forwards allow 1.00x at most"),
    ({"speedup": 1.04, "forward_fraction": 1.0}, None),
    ({"speedup": 1.8, "forward_fraction": 0.6}, "1.80x, where its forwards allow 1.67x at most"),
    ({"speedup": 1.7, "forward_fraction": 0.6}, None),
    ({"speedup": 1.4, "forward_fraction": 1.0, "engine_reference": {"speedup": 1.0}}, None),  # the engine is fast
    ({"speedup": 0.9, "forward_fraction": 0.8, "engine_reference": {"speedup": 1.5}}, "1.50x, where"),
    ({"speedup": None, "forward_fraction": 0.6}, None),
])  # fmt: skip
def test_a_speed_up_is_bounded_by_the_forwards_that_were_saved(row, told):
    found = too_fast({"label": "x", **row})
    assert found is None if told is None else found.startswith(told)
