"""Whole commands with tracking=online, against an endpoint on this machine: what arrives, and what happens where it
does not. Each command line in a process of its own: W&B keeps the first server it meets."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import fastcache, only, read
from test_track import KEY, merged, read_back
from wandb_endpoint import Endpoint, alone

HERE = Path(__file__).resolve().parent
QUICK = ["model=toy", "frames=3", "num_videos=1", "metric=psnr", "tracking=online", "tracking.group=study"]
FAIL = "import fastcache.finished as m; m.render = lambda *a: 1 / 0"


def commands(home: Path, *lines: list[str], fail: int | None = None, **environment: str):
    """Several command lines in one process; those from ``fail`` on break while a video is drawn."""
    code = "import json, sys; from fastcache import calibrate, run\nstatus = []\n"
    for i, line in enumerate(lines):
        code += f"{FAIL}\n" if fail is not None and i >= fail else ""
        main = "calibrate" if line[0] == "calibrate" else "run"
        code += f"status.append({main}.main({line[main == 'calibrate' :] + [f'outputs={home}/out']!r}))\n"
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_same_settings_are_the_same_run(study):
    server, out, _ = study
    name = only(out, "reuse-nodial-FxxF-*").name.rpartition("-")[2]
    assert server.upserts.count(name) > 1 and list(server.runs).count(name) == 1
    assert len(list(out.glob("reuse-nodial-FxxF-*/wandb/run-*"))) == 2


@pytest.mark.slow
def test_a_probe_tells_what_its_fit_is_worth(study):
    server, out, _ = study
    for path in (out / "fits").glob("*.yaml"):
        summary = json.loads(server.streams[path.stem.rpartition("-")[2]]["wandb-summary.json"][-1])
        assert summary["name"] == path.stem.rpartition("-")[0] and summary["n"] > 0
        assert path.with_suffix(".png").read_bytes() in server.uploads.values()


class Leaving(Endpoint):
    """Stops once a run has started: gone, or answering with errors."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def query(self, operation, values):
        begun = any(self.runs.values())
        answer = super().query(operation, values)
        if operation == "UpsertBucket" and self.how == "gone":
            self.close()
        elif (begun and operation != "UpsertBucket") or (operation == "UpsertBucket" and self.how == "failing at once"):
            # else the start itself is answered
            self.failing = True
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "failing"])
def test_a_server_gone_mid_run_costs_nothing_but_the_upload_which_sync_makes_up_for(how, tmp_path):
    limits = {"WANDB_FINISH_TIMEOUT": "2", "WANDB_INIT_TIMEOUT": "10", "WANDB_HTTP_TIMEOUT": "2"}
    with Leaving(how) as server:
        done = commands(tmp_path, [*QUICK, "method=none"], WANDB_BASE_URL=server.url, **limits)
    assert done.stdout.endswith("status 0\n") and done.stderr == "", done.stdout + done.stderr
    folder = only(tmp_path / "out", "none-*")
    assert (folder / "done.json").is_file() and read(folder / "scores.json")["compute_fraction"] == 1.0
    records, kept = read_back(folder)
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("warning: ")]
    assert said.startswith(f"warning: W&B has not taken all of {folder.name} (")
    assert said.endswith(f"; all of it is on disk, upload it later: wandb sync {kept}")
    assert said.removeprefix("warning: ") in (folder / "run.log").read_text()
    assert merged(records, "summary")["compute_fraction"] == 1.0

    with Endpoint() as server:  # what is said to be typed, typed
        synced = sync(tmp_path, kept, server)
    name = folder.name.rpartition("-")[2]
    assert synced.returncode == 0, synced.stderr
    sent = server.runs[name]
    assert (sent["displayName"], sent["jobType"], sent["groupName"]) == (folder.name, "reference", "study")
    assert json.loads(server.streams[name]["wandb-summary.json"][-1])["compute_fraction"] == 1.0
    assert server.exits[name] == 0 and (folder / "sheet.png").read_bytes() in server.uploads.values()


@pytest.mark.slow
def test_a_run_that_a_server_does_not_let_start_is_kept_on_disk(tmp_path):
    limits = {"WANDB_FINISH_TIMEOUT": "2", "WANDB_INIT_TIMEOUT": "5", "WANDB_HTTP_TIMEOUT": "2"}
    with Leaving("failing at once") as server:
        done = commands(tmp_path, [*QUICK, "method=none"], WANDB_BASE_URL=server.url, **limits)
    assert done.stdout.endswith("status 0\n"), done.stdout + done.stderr
    records, kept = read_back(only(tmp_path / "out", "none-*"))
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("warning: ")]
    assert said.endswith(f"is kept on disk, upload it later: wandb sync {kept}")
    assert merged(records, "summary")["compute_fraction"] == 1.0


def sync(home: Path, folder: Path, server: Endpoint):
    """`wandb sync FOLDER` by its owner, on a machine with a network."""
    env = alone(home, WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY)
    wandb = shutil.which("wandb") or str(Path(sys.executable).with_name("wandb"))
    return subprocess.run([wandb, "sync", str(folder)], capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.parametrize("sweep", [[], ["-m", "seed=0,1"]], ids=["run", "sweep"])
def test_without_a_login_nothing_is_begun(sweep, tmp_path, monkeypatch, capsys):
    for name, value in alone(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    assert fastcache("tracking=online", "method=reuse", *sweep, f"outputs={tmp_path / 'out'}") == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert "needs a W&B account on this machine: type `wandb login`; or use tracking=offline" in told.err
    assert not (tmp_path / "out").exists()


def test_a_project_that_wandb_would_refuse_is_refused_before_anything_is_made(tmp_path, capsys):
    for mode in ("offline", "online"):
        assert fastcache(f"tracking={mode}", "tracking.project=me/mine", f"outputs={tmp_path / 'out'}") == 1
        assert "tracking.project=me/mine: expected" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
