"""A run whose videos are there is finished while the next one is made: what is on disk, whatever goes wrong."""

import os
import signal
import threading

import pytest
from command import fastcache, only, read, runs
from test_track import read_back
from test_worker import SWEEP

from fastcache import finished, job, make, terminal, worker
from fastcache.results import locked


def at(monkeypatch, step, number, act):
    """Have ``act(order)`` called before the step of that name is asked for the ``number``th time."""
    asked, submit = [], job.submit

    def watched(work, *args):
        if work.__name__ == step:
            asked.append(args)
            if len(asked) == number:
                act(args[0])
        return submit(work, *args)

    monkeypatch.setattr(job, "submit", watched)


def end_the_other(order):
    os.kill(worker.submit(os.getpid).result(), signal.SIGKILL)


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_second_process_costs_a_sweep_nothing(out, monkeypatch, capfd, number):
    at(monkeypatch, "look", number, end_the_other)
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
    at(monkeypatch, "look", 3, lambda order: os.kill(os.getpid(), signal.SIGINT))
    assert fastcache(*SWEEP, f"outputs={out}") == 130
    assert [name.partition("-nodial")[0] for name in runs(out)] == ["none", "reuse"]
    assert not job._unfinished and not finished._desks
    with locked(only(out, "reuse-nodial-Fxxx-*") / ".lock"):  # nobody holds it
        pass
    monkeypatch.undo()
    assert fastcache(*SWEEP, f"outputs={out}") == 0
    assert len(runs(out)) == 3


@pytest.mark.usefixtures("spare", "listening")
def test_what_an_interrupt_comes_upon_is_finished(out, monkeypatch):
    result = worker.Task.result
    at(monkeypatch, "conclude", 3, lambda order: monkeypatch.setattr(worker.Task, "result", interrupted))

    def interrupted(task):
        monkeypatch.setattr(worker.Task, "result", result)
        raise KeyboardInterrupt

    assert fastcache(*SWEEP, f"outputs={out}") == 130
    assert len(runs(out)) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("spare")
def test_sweeps_that_make_the_same_runs_in_other_order_do_not_wait_for_each_other(out, monkeypatch):
    """The other one has the last run's lock and wants the one before it."""
    assert fastcache("-m", "method=reuse", "schedule=FxxF,Fxxx", *SWEEP[3:], f"outputs={out}") == 0
    first, last = (only(out, f"reuse-nodial-{schedule}-*") for schedule in ("FxxF", "Fxxx"))
    for folder in (first, last):
        (folder / "done.json").unlink()
        (folder / "videos" / "0.json").unlink()
    held, told, say = threading.Event(), threading.Event(), terminal.say

    def hold():
        with locked(last / ".lock"):
            held.set()
            told.wait(60)
            with locked(first / ".lock", wait=True):
                pass

    def heard(text):
        say(text)
        if text.startswith("waiting for process"):
            told.set()

    other = threading.Thread(target=hold, daemon=True)
    other.start()
    held.wait()
    monkeypatch.setattr(terminal, "say", heard)
    assert fastcache(*SWEEP, f"outputs={out}") == 0
    other.join(60)
    assert told.is_set() and not other.is_alive()


@pytest.mark.slow
@pytest.mark.usefixtures("spare")
def test_force_waits_for_what_still_reads_a_folder(out, monkeypatch, capfd):
    words = ("-m", "method=reuse,none", *SWEEP[3:], f"outputs={out}")
    assert fastcache(*words) == 0
    at(monkeypatch, "begin", 2, lambda order: worker.submit(int).result())  # the other process comes to it now
    assert fastcache(*words, "force=true") == 0
    assert capfd.readouterr().out.count("2 done, 0 left, 0 failed") == 2


@pytest.mark.usefixtures("spare")
def test_a_reference_that_cannot_be_finished_is_an_error_of_the_command(out, monkeypatch, capfd):
    def block(order):
        if order.alone:
            (order.folder.path / "sheet.png").mkdir()

    at(monkeypatch, "begin", 1, block)
    assert fastcache(*SWEEP, f"outputs={out}") == 1
    printed = capfd.readouterr()
    assert printed.err.startswith("error: none FFFF: ") and "sheet.png" in printed.err
    assert len(runs(out)) == 2


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
    for schedule, code in (("FxxF", 1), ("Fxxx", 0)):
        records, _ = read_back(only(out, f"reuse-nodial-{schedule}-*"))
        assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [code]


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
