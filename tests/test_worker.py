"""Scoring and drawing in a second process: the same results, whatever becomes of either process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import fastcache, read

from fastcache import launchers, run, terminal, worker
from fastcache.results import Folder

SWEEP = ("-m", "method=reuse", "schedule=FxxF,Fxxx", "metric=[psnr,ssim]", "num_videos=1", "frames=3")
TIMED = ("speedup", "dit_s_per_video", "s_per_video", "overhead_fraction", "peak_bytes")


def untimed(path):
    scores = read(path)
    return {key: value for key, value in scores.items() if not key.startswith(TIMED) and key != "protocol"}


def alive(pid):
    """Whether a process runs; one that has ended and is not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def test_a_second_process_scores_and_draws_the_same(out, spare, monkeypatch):
    assert fastcache(*SWEEP, f"outputs={out / 'beside'}") == 0
    assert spare == ["begin", "look", "conclude"] * 3
    monkeypatch.setattr(launchers, "free_cores", lambda device: 0)
    assert fastcache(*SWEEP, f"outputs={out / 'here'}") == 0
    assert len(spare) == 9
    folders = sorted(path.name for path in (out / "here").glob("*-*"))
    assert len(folders) == 3
    for name in folders:
        ours, theirs = out / "beside" / name, out / "here" / name
        assert untimed(ours / "scores.json") == untimed(theirs / "scores.json")
        for file in ("videos/0.npz", "videos/0.mp4", "trace.json"):
            assert (ours / file).read_bytes() == (theirs / file).read_bytes()
        assert (ours / "sheet.png").is_file() and (ours / "done.json").is_file()


@pytest.mark.slow
def test_what_goes_wrong_there_is_the_jobs_own_error(out, spare, capfd):
    words = (*SWEEP, f"outputs={out}")
    assert fastcache(*words) == 0
    good, bad = sorted(out.glob("reuse-*"))
    for folder in (good, bad):
        (folder / "done.json").unlink()
        (folder / "videos" / "0.mp4").unlink()
    (bad / "videos" / "0.mp4").mkdir()  # no file, so it is to be drawn, which fails
    capfd.readouterr()
    assert fastcache(*words) == 1
    printed = capfd.readouterr()
    assert "1 done, 0 left, 1 failed (" in printed.out
    assert "Traceback" not in printed.out + printed.err
    assert "0.mp4" in read(bad / "failed.json")["error"]
    assert (good / "done.json").is_file() and not (bad / "done.json").exists()


def test_work_of_a_killed_process_is_done_here(capfd):
    with worker.beside(True, int):
        first = worker.submit(os.getpid).result()
        assert first != os.getpid()
        waiting = [worker.submit(time.sleep, 600), worker.submit(os.getpid)]
        os.kill(first, signal.SIGKILL)
        assert waiting[1].result() == os.getpid()
        assert worker.submit(os.getpid).result() == os.getpid()
        assert not worker.is_apart()
    assert capfd.readouterr().out.count("its work is done in this one") == 1


def test_a_result_or_an_error_comes_back_and_nothing_else_is_shared():
    with worker.beside(True, int):
        with pytest.raises(ValueError, match="invalid literal"):
            worker.submit(int, "x").result()
        assert worker.submit(int, "7").result() == 7
        assert worker.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"


def tell(*lines):
    for line in lines:
        terminal.say(line)
    int(lines[-1])  # raises ValueError where that is no number


def test_what_is_said_there_is_said_here_once_and_in_order(capfd):
    with worker.beside(True, int):
        task = worker.submit(tell, "1", "2")
        assert until(task.done)
        task.result()
        task.result()
        with pytest.raises(ValueError, match="three"):
            worker.submit(tell, "3", "three").result()
        worker.submit(tell, "4")  # which nobody waits for
        worker.submit(int).result()
    assert capfd.readouterr().out.split() == ["1", "2", "3", "three", "4"]


def test_a_dismissed_process_ends_and_work_is_done_here():
    with worker.beside(True, int):
        pid = worker.submit(os.getpid).result()
        worker.dismiss()
        assert until(lambda: not alive(pid))
        assert not worker.is_apart()
        assert worker.submit(os.getpid).result() == os.getpid()
        worker.dismiss()


def test_without_a_second_process_work_is_done_at_once():
    with worker.beside(False, int):
        assert not worker.is_apart()
        assert worker.submit(os.getpid).result() == os.getpid()
        with pytest.raises(ValueError, match="invalid literal"):
            worker.submit(int, "x")


def test_the_process_ends_with_the_block_whatever_it_does():
    began = time.monotonic()
    with worker.beside(True, int):
        pid = worker.submit(os.getpid).result()
        worker.submit(time.sleep, 600)
    assert until(lambda: not alive(pid))
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("listening")
def test_an_interrupt_is_left_to_the_first_process():
    with worker.beside(True, int):
        pid = worker.submit(os.getpid).result()
        os.kill(pid, signal.SIGINT)
        assert worker.submit(os.getpid).result() == pid
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)


@pytest.mark.usefixtures("listening")
def test_an_interrupt_while_the_process_starts_is_not_lost(monkeypatch):
    submit = worker.ProcessPoolExecutor.submit

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return submit(*args)

    monkeypatch.setattr(worker.ProcessPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt), worker.beside(True, time.sleep, 600):
        time.sleep(60)
    assert not worker.is_apart()


def test_the_process_ends_with_a_killed_first_one():
    code = """if True:
        import os, time
        from fastcache import worker
        with worker.beside(True, int):
            print(worker.submit(os.getpid).result(), flush=True)
            worker.submit(time.sleep, 600)
            time.sleep(600)
    """
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = subprocess.Popen([sys.executable, "-c", code], text=True, env=env, **streams)
    second = int(first.stdout.readline())
    assert alive(second)
    first.kill()
    assert first.communicate(timeout=60) == ("", "")  # which the second process holds open too
    assert until(lambda: not alive(second))


@pytest.mark.parametrize(
    ("device", "threads", "free"),
    [
        ("cpu", None, 0),
        ("cpu", "", 0),
        ("cpu", "many", 0),
        ("cpu", "4", 0),
        ("cpu", "3", 1),
        ("cpu", "1", 3),
        ("auto", None, 0),
        ("auto", "1", 3),
    ]
    + [("cpu", "0", 0), ("cpu", "8", -4), ("cuda", None, 3), ("cuda:1", "4", 3), ("cuda", "1", 1)],
)
def test_cores_are_free_where_a_run_leaves_them(monkeypatch, device, threads, free):
    monkeypatch.setattr(launchers, "_physical_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert launchers.free_cores(device) == free


def test_a_second_thread_of_a_core_is_no_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(
        Path, "read_text", lambda path: f"{int(path.parts[5][3:]) % 2},{int(path.parts[5][3:]) % 2 + 2}\n"
    )
    assert launchers._physical_cores() == 2


@pytest.mark.parametrize(
    ("cores", "given", "found"), [(8, None, "7"), (4, None, "3"), (3, None, None), (1, None, None), (8, "8", "8")]
)
def test_a_core_is_left_where_there_are_many_unless_the_user_says_otherwise(monkeypatch, cores, given, found):
    monkeypatch.setattr(launchers, "_physical_cores", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")  # restored afterwards, whatever it was
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    launchers.leave_a_core()
    assert os.environ.get("OMP_NUM_THREADS") == found


def test_finished_runs_few_videos_and_metrics_on_a_gpu_are_worth_no_process(out, monkeypatch):
    monkeypatch.setattr(run, "WORTH", 12)
    monkeypatch.setattr(launchers, "free_cores", lambda device: 1)
    s = {"force": False, "num_videos": 5, "device": "cpu", "outputs": str(out), "metric": {"lpips": {"device": "cpu"}}}
    done = []
    monkeypatch.setattr(Folder, "of", lambda s: type("F", (), {"finished": s["num_videos"] in done}))
    assert not run.worth_a_process([s])
    assert run.worth_a_process([s] * 3)
    assert run.worth_a_process([s, s | {"num_videos": 40}])
    done.append(40)
    assert not run.worth_a_process([s, s | {"num_videos": 40}])
    assert run.worth_a_process([s, s | {"num_videos": 40, "force": True}])
    assert not run.worth_a_process([])
    assert not run.worth_a_process([s] * 3 + [s | {"metric": {"psnr": {}, "lpips": {"device": "cuda"}}}])
    monkeypatch.setattr(launchers, "free_cores", lambda device: 0)
    assert not run.worth_a_process([s] * 3)
