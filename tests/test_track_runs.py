"""Whole commands with tracking=online, against an endpoint on this machine: what arrives, and what happens where it
does not. Each command line in a process of its own: W&B keeps the first server it meets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import only, read
from test_track import KEY
from wandb_endpoint import Endpoint, alone

HERE = Path(__file__).resolve().parent
QUICK = ["model=toy", "frames=3", "num_videos=1", "metric=psnr", "tracking=online", "tracking.group=study"]
FAIL = "import fastcache.make as m; m.render = lambda *a: 1 / 0"


def commands(home: Path, *lines: list[str], fail: int | None = None, **environment: str):
    """Several command lines in one process; those from ``fail`` on break while a video is drawn."""
    places = [i if fail is None else fail for i in range(len(lines))]
    code = "import json, sys; from fastcache import calibrate, run\nstatus = []\n"
    for i, line in enumerate(lines):
        code += f"{FAIL}\n" if fail is not None and i >= fail else ""
        main = "calibrate" if line[0] == "calibrate" else "run"
        code += f"status.append({main}.main({line[main == 'calibrate':] + [f'outputs={home}/out']!r}))\n"
    assert places
    code += "print('status', *status)"
    env = alone(home, PYTHONPATH=f"{HERE.parent}", OMP_NUM_THREADS="1", WANDB_API_KEY=KEY, **environment)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=240)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A mask, made twice; an adaptive method whose fit has to be made; a fit asked for; a job that fails."""
    home = tmp_path_factory.mktemp("online")
    mask = [*QUICK, "method=reuse"]
    lines = [mask, [*mask, "force=true"], [*QUICK, "method=teacache", "thresh=0.5"]]
    lines += [["calibrate", *QUICK[:3], "tracking=online", "seed=3"], [*QUICK, "method=reuse", "schedule=Fxxx"]]
    with Endpoint() as server:
        done = commands(home, *lines, fail=4, WANDB_BASE_URL=server.url)
    assert done.stdout.endswith("status 0 0 0 0 1\n"), done.stdout + done.stderr
    return server, home / "out", done


def test_every_job_is_a_run_of_its_kind_named_by_its_signature(study):
    server, out, _ = study
    folders = [path.parent for path in out.glob("*/config.yaml")]
    probes = [path.stem for path in (out / "fits").glob("*.yaml")]
    kinds = {name: (sent["displayName"], sent["jobType"], sent.get("groupName")) for name, sent in server.runs.items()}
    expected = {
        folder.name.rpartition("-")[2]: (folder.name, "reference" if "none" in folder.name else "eval", "study")
        for folder in folders
    }
    assert kinds == expected | {
        name.rpartition("-")[2]: (name, "probe", kinds[name.rpartition("-")[2]][2]) for name in probes
    }
    assert sorted(kind for _, kind, _ in kinds.values()) == ["eval"] * 3 + ["probe"] * 2 + ["reference"]
    assert sorted(str(group) for _, kind, group in kinds.values() if kind == "probe") == ["None", "study"]
    failed = only(out, "reuse-nodial-Fxxx-*").name.rpartition("-")[2]
    assert server.exits == {name: int(name == failed) for name in kinds}


def test_scores_chunks_and_media_arrive(study):
    server, out, _ = study
    folder = only(out, "reuse-nodial-FxxF-*")
    name, scores = folder.name.rpartition("-")[2], read(folder / "scores.json")
    summary = json.loads(server.streams[name]["wandb-summary.json"][-1])
    for key in ("psnr", "compute_fraction", "forward_fraction", "speedup", "s_per_video"):
        assert summary[key] == scores[key]
    assert summary["chunks"]["nrows"] == 1
    sent = [data for path, data in server.uploads.items()]
    assert (folder / "sheet.png").read_bytes() in sent and (folder / "videos" / "0.mp4").read_bytes() in sent
    tables = [json.loads(data) for path, data in server.uploads.items() if path.endswith("chunks.table.json")]
    assert tables[0]["columns"][:4] == ["video", "prompt", "chunk", "trace"]


def test_the_same_settings_are_the_same_run(study):
    server, out, _ = study
    name = only(out, "reuse-nodial-FxxF-*").name.rpartition("-")[2]
    assert server.upserts.count(name) > 1 and list(server.runs).count(name) == 1
    assert len(list(out.glob("reuse-nodial-FxxF-*/wandb/run-*"))) == 2


def test_a_probe_tells_what_its_fit_is_worth(study):
    server, out, _ = study
    for path in (out / "fits").glob("*.yaml"):
        summary = json.loads(server.streams[path.stem.rpartition("-")[2]]["wandb-summary.json"][-1])
        assert summary["name"] == path.stem.rpartition("-")[0] and summary["n"] > 0
        assert path.with_suffix(".png").read_bytes() in server.uploads.values()


class Leaving(Endpoint):
    """Stops once a run has started: gone, or answering with errors."""

    how = "gone"

    def query(self, operation, values):
        answer = super().query(operation, values)
        if operation == "UpsertBucket":
            threading_close = self.close if self.how == "gone" else lambda: setattr(self, "failing", True)
            threading_close()
        return answer
