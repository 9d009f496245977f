"""Hydra's launchers, which run the jobs of a sweep: what each needs, how many threads its workers take. No torch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from fastcache.catalog import options, unknown
from fastcache.errors import UserError


class Launcher(NamedTuple):
    """``extra`` of pyproject.toml brings ``package``. ``here``: its workers run on this machine."""

    extra: str
    package: str
    here: bool = True


LAUNCHERS = {
    "joblib": Launcher("joblib", "hydra_joblib_launcher"),
    "submitit_local": Launcher("slurm", "hydra_submitit_launcher"),
    "submitit_slurm": Launcher("slurm", "hydra_submitit_launcher", here=False),
    "ray": Launcher("ray", "hydra_ray_launcher"),
    "ray_local": Launcher("ray", "hydra_ray_launcher"),
    "ray_cluster": Launcher("ray", "hydra_ray_launcher", here=False),
}
MANY_CORES = 4  # of which a run leaves one to what else there is to do
BASIC = "basic"  # one job after the other in the process that was started


def check(name: str, dirs: Sequence[Path]) -> None:
    """Raise UserError where a launcher does not exist or its package is not installed."""
    if name in LAUNCHERS:
        if not installed(name):
            extra = LAUNCHERS[name].extra
            raise UserError(
                f"hydra/launcher={name} needs a package that is not installed; type: pip install -e '.[{extra}]'"
            )
        return
    Plugins.instance()  # fills the store
    stored = [file.removesuffix(".yaml") for file in ConfigStore.instance().list("hydra/launcher")]
    names = sorted({*stored, *LAUNCHERS, *options("hydra/launcher", dirs)})
    if name not in names:
        raise UserError(unknown("hydra/launcher", name, names))


def installed(name: str) -> bool:
    try:
        return find_spec(f"hydra_plugins.{LAUNCHERS[name].package}") is not None
    except ModuleNotFoundError:  # no plugin at all
        return False


def is_here(name: str) -> bool:
    """Whether the jobs run on this machine, so that its devices and memory are theirs."""
    return name not in LAUNCHERS or LAUNCHERS[name].here


@contextmanager
def environment(name: str, jobs: int) -> Iterator[None]:
    """What the workers of ``jobs`` jobs inherit; a variable that the user has set stays.

    OMP_NUM_THREADS shares this machine's cores between jobs that all start at once (submitit_local). joblib does so by
    itself, as does Ray (one thread for each CPU of a job), and SLURM says in the job what it was given: see obey_slurm.
    """
    wanted = {}
    if name == "submitit_local":
        wanted["OMP_NUM_THREADS"] = str(max(1, cores() // max(1, jobs)))
    if name.startswith("ray"):
        wanted["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere unasked
        if has_ray_token():
            wanted["RAY_AUTH_MODE"] = "token"
    if name != BASIC:
        wanted["HYDRA_FULL_ERROR"] = "1"  # a worker that was lost is an exception here, not Hydra's own exit
    with patch.dict(os.environ, {key: value for key, value in wanted.items() if key not in os.environ}):
        yield


def has_ray_token() -> bool:
    """Whether Ray finds its token here. `ray start` then lets nobody in without it; others show it only if told to."""
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or Path(file).expanduser().is_file()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_cores(device: str) -> int:
    """Cores that a run in this process leaves free, on device=auto at least. torch takes every core of a CPU, on a GPU
    one that drives it; OMP_NUM_THREADS is how many it may take, on a GPU also of those that are free."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(given) if given.isdigit() and int(given) else _physical_cores()
    return _physical_cores() - threads if device in ("cpu", "auto") else min(threads, _physical_cores() - 1)


def leave_a_core() -> None:
    """Leave one core of a CPU to the second process, where there are enough of them to hardly miss it. To be called
    before torch is imported; what the user has set stays."""
    if _physical_cores() >= MANY_CORES:
        os.environ.setdefault("OMP_NUM_THREADS", str(_physical_cores() - 1))


def _physical_cores() -> int:
    """cores() without those that are a second thread of another, which would slow it down."""
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        return len({Path(siblings.format(cpu)).read_text() for cpu in os.sched_getaffinity(0)})
    except (OSError, AttributeError):  # no Linux
        return cores()


def obey_slurm() -> None:
    """In a SLURM job, as many threads as it was given cores. torch reads the variable when it is imported."""
    given = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or ""
    if "SLURM_JOB_ID" in os.environ and given.isdigit():
        os.environ.setdefault("OMP_NUM_THREADS", given)


def lost(name: str, error: Exception) -> str:
    """A sentence on what a launcher raised: a job's own sentence, or that of a worker that did not come back."""
    if isinstance(error, UserError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
    return f"hydra/launcher={name} lost a worker ({told}); the same command goes on where it stopped"
