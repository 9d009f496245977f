"""One sweep of two jobs, the second of which fails, on any launcher: what it must print, keep, and not do again."""

import os
import subprocess
import sys
from pathlib import Path

from command import fastcache, times

from fastcache import config, preflight
from fastcache.results import Folder
from fastcache.settings import reference_of, resolve

ROOT = Path(__file__).resolve().parent.parent
TINY = ("model=toy", "frames=3", "num_videos=1", "rescale=none", "metric=psnr", "tracking=disabled", "device=cpu")


def folder(out, *words):
    """Where a run of these settings goes."""
    (job,) = config.plan([*TINY, f"outputs={out}", *words]).jobs
    return Folder.of(preflight.place(resolve(*job)))


def reference(out, *words):
    (job,) = config.plan([*TINY, f"outputs={out}", *words]).jobs
    return Folder.of(reference_of(preflight.place(resolve(*job))))


def start(*words, **options):
    """`python -m fastcache.run TINY... words...` in a process of its own."""
    keys = {word.partition("=")[0] for word in words}
    command = [sys.executable, "-m", "fastcache.run", *(w for w in TINY if w.partition("=")[0] not in keys), *words]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, text=True, **options)


def kept(out):
    return {name: when for name, when in times(out).items() if not name.startswith((".sweep", "basic"))}


def check_sweep(out, capfd, *launcher, fastcache=fastcache):
    words = ("-m", "method=reuse", "schedule=FxxF,Fxxx", *TINY, f"outputs={out}", *launcher)
    good, bad = (folder(out, "method=reuse", f"schedule={schedule}") for schedule in ("FxxF", "Fxxx"))
    in_the_way = bad.path / "videos" / "0.npz"
    in_the_way.mkdir(parents=True)
    assert fastcache(*words) == 1
    printed = capfd.readouterr()
    assert "1 done, 0 left, 1 failed (reuse Fxxx: IsADirectoryError: " in printed.out
    assert "Traceback" not in printed.out + printed.err, printed.out + printed.err
    assert "IsADirectoryError" in (bad.path / "run.log").read_text()
    assert good.finished
    assert not bad.finished

    in_the_way.rmdir()
    before = kept(out)
    assert fastcache(*words) == 1
    assert "1 done, 0 left, 1 failed (reuse Fxxx: IsADirectoryError: " in capfd.readouterr().out
    assert kept(out) == before
    assert fastcache(*words, "retry=true") == 0
    assert "2 done, 0 left, 0 failed" in capfd.readouterr().out
    assert before.items() - kept(out).items() <= {item for item in before.items() if item[0].startswith(bad.path.name)}

    assert fastcache("-m", "method=reuse", "schedule=FxxF,Fxxx", *TINY, f"outputs={out / 'basic'}") == 0
    for run in (good, bad, reference(out, "method=reuse")):
        same = out / "basic" / run.path.name / "videos" / "0.npz"
        assert (run.path / "videos" / "0.npz").read_bytes() == same.read_bytes()
