"""A run whose videos are there is finished while the next one is made: what is on disk, whatever goes wrong."""

import os
import signal

import pytest
from command import fastcache, only, read, runs
from test_worker import SWEEP

from fastcache import finished, job, make, worker
from fastcache.results import locked


def at_video(monkeypatch, number, act):
    """Have ``act()`` called when video ``number`` of a command has been made, before it is looked at."""
    made, look = [], job.finished.look

    def submit(work, *args, former=job.submit):
        if work is look:
            made.append(args)
            if len(made) == number:
                act()
        return former(work, *args)

    monkeypatch.setattr(job, "submit", submit)


def end_the_other():
    os.kill(worker.submit(os.getpid).result(), signal.SIGKILL)


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_second_process_costs_a_sweep_nothing(out, monkeypatch, capfd, number):
    at_video(monkeypatch, number, end_the_other)
    assert fastcache(*SWEEP, f"outputs={out}") == 0
    printed = capfd.readouterr()
    assert printed.out.count("its work is done in this one") == 1
    assert "2 done, 0 left, 0 failed" in printed.out and printed.err == ""
    assert len(runs(out)) == 3
    for folder in out.glob("*-*"):
        assert {"scores.json", "trace.json", "sheet.png"} <= {path.name for path in folder.iterdir()}
        assert (folder / "videos" / "0.mp4").is_file()


@pytest.mark.usefixtures("spare", "listening")
def test_an_interrupt_keeps_what_was_made_before_it(out, monkeypatch, capfd):
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    at_video(monkeypatch, 3, interrupt)
    assert fastcache(*SWEEP, f"outputs={out}") == 130
    assert [name.partition("-nodial")[0] for name in runs(out)] == ["none", "reuse"]
    assert not job._unfinished and not finished._desks
    with locked(only(out, "reuse-nodial-Fxxx-*") / ".lock"):  # nobody holds it
        pass
    monkeypatch.undo()
    assert fastcache(*SWEEP, f"outputs={out}") == 0
    assert len(runs(out)) == 3


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("apart", [True, False])
def test_one_folder_twice_and_a_reference_that_is_still_unfinished(out, monkeypatch, capfd, apart):
    if not apart:
        monkeypatch.setattr("fastcache.run.WORTH", 99)
    words = ("-m", "method=reuse,none,reuse", "schedule=FFFF,FxxF", "metric=psnr", "num_videos=1", "frames=3")
    assert fastcache(*words, f"outputs={out}") == 0
    assert "3 done, 0 left, 0 failed" in capfd.readouterr().out
    assert len(runs(out)) == 3
    assert read(only(out, "reuse-nodial-FxxF-*") / "scores.json")["psnr"] is not None


@pytest.mark.usefixtures("spare")
def test_a_run_whose_videos_fail_leaves_the_next_one_alone(out, monkeypatch, capfd):
    make_videos = make.make_videos

    def fail(s, *args):
        if s["schedule"] == "FxxF":
            raise RuntimeError("boom")
        make_videos(s, *args)

    monkeypatch.setattr(make, "make_videos", fail)
    assert fastcache(*SWEEP, f"outputs={out}", "tracking=offline") == 1
    assert "1 done, 0 left, 1 failed (reuse FxxF: RuntimeError: boom)" in capfd.readouterr().out
    assert len(runs(out)) == 2
    assert not finished._desks


@pytest.mark.slow
@pytest.mark.usefixtures("spare")
def test_a_single_run_that_cannot_be_finished_is_an_error(out, monkeypatch, capfd):
    assert fastcache("method=reuse", "num_videos=1", "frames=3", f"outputs={out}") == 0
    folder = only(out, "reuse-*")
    (folder / "done.json").unlink()
    (folder / "sheet.png").unlink()
    (folder / "sheet.png").mkdir()
    capfd.readouterr()
    assert fastcache("method=reuse", "num_videos=1", "frames=3", f"outputs={out}") == 1
    printed = capfd.readouterr()
    assert "error: " in printed.err and "Traceback" not in printed.err + printed.out
    assert "sheet.png" in read(folder / "failed.json")["error"]
    assert "Traceback" in (folder / "run.log").read_text()
    assert not (folder / "done.json").exists()
    (folder / "sheet.png").rmdir()
    assert fastcache("method=reuse", "num_videos=1", "frames=3", f"outputs={out}") == 0
    assert not (folder / "failed.json").exists()
