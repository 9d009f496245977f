"""Sweeps on Ray: on one of its own, and on a cluster that runs already. Needs an environment with the extra `ray`."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from sweeps import ROOT, check_sweep, folder, start

pytestmark = [pytest.mark.slow, pytest.mark.package("ray")]
WAIT = 240  # s


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def fastcache(*words):
    """In a process of its own: the launcher ends Ray with its process, and what workers print may come late."""
    return subprocess.run([sys.executable, "-m", "fastcache.run", *words]).returncode


@contextmanager
def cluster(log: Path):
    """Address of one node with two CPUs."""
    words = ("start", "--head", "--block", "--port=0", "--num-cpus=2", "--include-dashboard=false")
    with log.open("w") as file:
        command = [str(Path(sys.executable).with_name("ray")), *words]
        head = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + WAIT
        while not (told := re.search(r"ray start --address='(.*)'", log.read_text())):
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield told[1]
    finally:
        head.terminate()
        head.wait()


def test_ray_runs_a_sweep_to_its_end(out, capfd):
    check_sweep(out, capfd, "hydra/launcher=ray_local", fastcache=fastcache)
    assert folder(out, "method=reuse").info(0)["made_by"]["threads"] == 1


def test_a_ray_cluster_runs_a_sweep_to_its_end(out, capfd, tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("ray") / "head.log") as address:
        words = ("hydra/launcher=ray_cluster", f"hydra.launcher.ray.init.address={address}")
        check_sweep(out, capfd, *words, fastcache=fastcache)


def test_ray_starts_the_job_of_a_killed_worker_again(out):
    words = ("-m", "method=none", "seed=0,1", "frames=21", "num_videos=4", f"outputs={out}", "hydra/launcher=ray_local")
    first, second = (folder(out, "method=none", f"seed={seed}", "frames=21", "num_videos=4") for seed in (0, 1))
    with start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as sweep:
        deadline = time.monotonic() + WAIT
        while not (first.path / "videos" / "0.json").is_file() and time.monotonic() < deadline:
            time.sleep(0.01)
        worker = int((first.path / ".lock").read_text().split()[1])  # process N on HOST
        os.kill(worker, signal.SIGSTOP)
        made = set(range(4)) - set(first.missing())
        before = {i: (first.path / "videos" / f"{i}.npz").stat().st_mtime_ns for i in made}
        os.kill(worker, signal.SIGKILL)
        printed = sweep.communicate()[0]
    assert sweep.returncode == 0, printed
    assert "2 done, 0 left, 0 failed" in printed
    assert first.finished
    assert second.finished
    assert made
    assert made < set(range(4))
    assert {i: (first.path / "videos" / f"{i}.npz").stat().st_mtime_ns for i in made} == before
