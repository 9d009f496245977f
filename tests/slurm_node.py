"""A SLURM of one node on this machine, from Debian's slurmctld, slurmd, slurm-client and munge. Needs root."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONF = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm(folder: Path, cores: int) -> Iterator[Path]:
    """The path of its slurm.conf, for SLURM_CONF. Its daemons end with the context."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname().partition(".")[0], folder=folder, cores=cores))
    pids = [folder / "slurmd.pid", folder / "slurmctld.pid"]
    if not _munge_answers():
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge")
        subprocess.run(["runuser", "-u", "munge", "--", "munged"], check=True)
        pids.append(Path("/run/munge/munged.pid"))
    env = os.environ | {"SLURM_CONF": str(conf)}
    try:
        subprocess.run(["slurmctld", "-c"], env=env, check=True, capture_output=True)
        subprocess.run(["slurmd"], env=env, check=True, capture_output=True)
        deadline = time.monotonic() + 60
        while "idle" not in _state(env):
            assert time.monotonic() < deadline, _state(env) + (folder / "slurmctld.log").read_text()
            time.sleep(0.2)
        yield conf
    finally:
        for path in pids:
            with suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)


def _state(env: dict[str, str]) -> str:
    return subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True).stdout


def _munge_answers() -> bool:
    return subprocess.run("munge -n | unmunge", shell=True, capture_output=True).returncode == 0
