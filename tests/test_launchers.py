"""Many jobs at once: what is refused, who waits for whom, and what a sweep on several processes leaves."""

import os
import signal
import subprocess
import threading
import time

import pytest
from command import fastcache, runs
from hydra import compose, initialize_config_dir
from sweeps import TINY, check_sweep, folder, reference, start

from fastcache import config, launchers, make, preflight, run, terminal
from fastcache.catalog import CONF
from fastcache.errors import UserError
from fastcache.settings import resolve

TWO = ("-m", "method=reuse", "schedule=FxxF,Fxxx", *TINY)


@pytest.mark.slow
def test_joblib_runs_a_sweep_to_its_end(out, capfd, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    check_sweep(out, capfd, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    share = max(1, launchers.cores() // 2)
    made_by = folder(out, "method=reuse").info(0)["made_by"]
    assert made_by["threads"] == share


@pytest.mark.slow
def test_a_run_waits_for_a_killed_makers_reference_and_takes_it_over(out):
    words = ("frames=21", "num_videos=3", f"outputs={out}")
    base = reference(out, "method=reuse", *words)
    with start("method=none", *words, stdout=subprocess.DEVNULL) as maker:
        deadline = time.monotonic() + 300
        while not (base.path / "videos" / "0.json").is_file() and time.monotonic() < deadline:
            time.sleep(0.01)
        maker.send_signal(signal.SIGSTOP)
        made = set(range(3)) - set(base.missing())
        before = {i: (base.path / "videos" / f"{i}.npz").stat().st_mtime_ns for i in made}
        with start("method=reuse", *words, stdout=subprocess.PIPE) as waiter:
            for line in waiter.stdout:
                if line.startswith("waiting for"):
                    break
            assert f"process {maker.pid} on " in line
            assert f"making {base.path.name}" in line
            assert made
            assert runs(out) == []
            maker.kill()
            waiter.stdout.read()
    assert waiter.returncode == 0
    assert len(runs(out)) == 2
    assert {i: (base.path / "videos" / f"{i}.npz").stat().st_mtime_ns for i in made} == before
    assert sorted(path.name for path in (base.path / "videos").glob("[0-9]*")) == sorted(
        f"{i}.{kind}" for i in range(3) for kind in ("npz", "json", "mp4")
    )


@pytest.mark.slow
def test_eight_processes_at_once_share_one_reference(out):
    schedules = ("FRFF", "FFRF", "FFFR", "FRRF", "FFRR", "FRFR", "FRRR", "FxxF")
    base = reference(out, "method=reuse")
    with base.lock():  # so that all eight come to it before it is there
        began = [
            start("method=reuse", f"schedule={s}", f"outputs={out}", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for s in schedules
        ]
        for process in began:
            assert any(line.startswith("waiting for process") for line in process.stdout)
    printed = [process.communicate()[0] for process in began]
    assert [process.returncode for process in began] == [0] * 8, printed
    assert sum(f"{base.signature}  toy" in text for text in printed) == 1  # its header, printed by who makes it
    assert len(runs(out)) == 9
    assert base.frames(0).shape[0] == 3
    for schedule in schedules:
        scores = folder(out, "method=reuse", f"schedule={schedule}").scores()
        assert scores["reference"] == base.signature
        assert scores["psnr"] is not None


@pytest.mark.slow
def test_submitit_runs_a_sweep_to_its_end(out, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(os.path.dirname(run.__file__)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    check_sweep(out, capfd, "hydra/launcher=submitit_local")
    assert folder(out, "method=reuse").info(0)["made_by"]["threads"] == max(1, launchers.cores() // 2)


def test_a_job_of_a_sweep_waits_for_another_process_that_makes_the_same(out, monkeypatch):
    held, told, said = threading.Event(), threading.Event(), []

    def hold():
        with folder(out, "method=reuse").lock():
            held.set()
            told.wait(300)

    def say(text):
        said.append(text)
        if text.startswith("waiting for process"):
            told.set()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    monkeypatch.setattr(terminal, "say", say)
    assert fastcache("-m", "method=reuse", *TINY, f"outputs={out}") == 0
    other.join()
    assert told.is_set()
    assert "1 done, 0 left, 0 failed" in said


def test_the_parent_of_a_parallel_sweep_loads_no_model_and_survives_a_lost_worker(out, capsys, monkeypatch):
    def lose(argv):
        raise RuntimeError("many\nlines, the last: killed by signal 9\n")

    monkeypatch.setattr(make, "get_model", None)
    monkeypatch.setattr(run, "launch", lose)
    assert fastcache(*TWO, "hydra/launcher=joblib", f"outputs={out}") == 1
    printed = capsys.readouterr()
    assert "lost a worker (RuntimeError: lines, the last: killed by signal 9); the same command goes on" in printed.err
    assert "0 done, 2 left, 0 failed" in printed.out
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hydra/launcher=joblb"], "hydra/launcher=joblb does not exist. Did you mean joblib?"),
        (["hydra/launcher=submitit_slurm", "device=auto"], "write device=cuda or device=cpu"),
        (["hydra/launcher=joblib", "thresold=1,2"], "no run reads thresold"),
        (["hydra/launcher=joblib", "outputs=/proc/fastcache"], "cannot be written"),
        (["hydra/launcher=joblib", "schedule=FxxF,xFFF"], "xFFF"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_its_first_job(words, told, out, capsys, monkeypatch):
    monkeypatch.setattr(run, "launch", None)
    monkeypatch.setattr(launchers, "installed", lambda _: True)
    keys = {word.partition("=")[0] for word in words}
    others = [word for word in (*TWO, f"outputs={out}") if word.partition("=")[0] not in keys]
    assert fastcache(*others, *words) == 1
    assert told in capsys.readouterr().err
    assert not list(out.glob("*"))


@pytest.mark.parametrize("name", sorted(launchers.LAUNCHERS))
def test_a_launcher_that_is_not_installed_names_its_extra(name, monkeypatch):
    monkeypatch.setattr(launchers, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=rf"pip install -e '\.\[{launchers.LAUNCHERS[name].extra}\]'"):
        config.plan(["-m", "method=reuse,none", f"hydra/launcher={name}"])


def test_a_ray_cluster_is_joined_where_every_machine_sees_the_outputs(monkeypatch):
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        cfg = compose("config", overrides=["hydra/launcher=ray_cluster"], return_hydra_config=True)
    assert cfg.hydra.launcher.ray.init == {"address": "auto", "object_store_memory": None}

    monkeypatch.setattr(launchers, "installed", lambda _: True)
    words = ["-m", "method=reuse", "schedule=FxxF,Fxxx", *TINY, "hydra/launcher=ray_cluster"]
    here, there = (config.plan([*words, f"outputs={outputs}"]).jobs[0] for outputs in ("out", "/shared/out"))
    with pytest.raises(UserError, match="give outputs= as a full path"):
        preflight.place(resolve(*here), "ray_cluster")
    assert preflight.place(resolve(*there), "ray_cluster")["outputs"] == "/shared/out"


def test_cores_are_shared_between_workers_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setattr(launchers, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for jobs, threads in ((1, "8"), (3, "2"), (20, "1")):
        with launchers.environment("submitit_local", jobs):
            assert os.environ["OMP_NUM_THREADS"] == threads
    for name in ("submitit_slurm", "basic"):  # SLURM hands the environment on to machines with other cores
        with launchers.environment(name, 3):
            assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with launchers.environment("submitit_local", 4):
        assert os.environ["OMP_NUM_THREADS"] == "5"


def test_ray_shows_its_token_where_there_is_one(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with launchers.environment("ray_cluster", 2):
        assert "RAY_AUTH_MODE" not in os.environ  # told to show one it has not, Ray gives up
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    for name, mode in (("ray_local", "token"), ("ray_cluster", "token"), ("joblib", None)):
        with launchers.environment(name, 2):
            assert os.environ.get("RAY_AUTH_MODE") == mode
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "elsewhere"))
    with launchers.environment("ray_cluster", 2):
        assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "told")
    with launchers.environment("ray_cluster", 2):
        assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_a_slurm_job_takes_the_cores_it_was_given(monkeypatch):
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "6")
    launchers.obey_slurm()
    assert "OMP_NUM_THREADS" not in os.environ  # in no job
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    launchers.obey_slurm()
    assert os.environ.pop("OMP_NUM_THREADS") == "6"
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    launchers.obey_slurm()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    launchers.obey_slurm()
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_workers_draw_no_bars_over_each_other(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert terminal.Bar(1, 1).progress is not None
    monkeypatch.setattr(terminal, "live", False)
    assert terminal.Bar(1, 1).progress is None
