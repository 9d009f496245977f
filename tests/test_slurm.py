"""A sweep on a real SLURM of one node: one job array, resumed like any other."""

import os

import pytest
from slurm_node import slurm
from sweeps import check_sweep, folder

from fastcache import run


@pytest.mark.slow
@pytest.mark.program("slurmctld")
def test_slurm_runs_a_sweep_to_its_end(out, capfd, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(os.path.dirname(run.__file__)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with slurm(tmp_path_factory.mktemp("slurm"), cores=os.cpu_count()) as conf:
        monkeypatch.setenv("SLURM_CONF", str(conf))
        check_sweep(out, capfd, "hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1")
    assert folder(out, "method=reuse").info(0)["made_by"]["threads"] == 1
