"""The W&B report: what it holds, and the real client saving it to a local endpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_runs import write_study
from wandb_endpoint import Endpoint

from fastcache.report import publish
from fastcache.report.__main__ import main
from fastcache.report.load import load
from fastcache.report.study import Study


@pytest.fixture
def study(tmp_path):
    made = write_study(tmp_path / "out")
    return made, Study([tmp_path / "out"], load([tmp_path / "out"]))


def test_the_report_has_scatter_runs_media_and_curves(study):
    made, data = study
    blocks = json.loads(publish.spec(publish.build(data, "fastcache", "")))["blocks"]
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    panels = [panel for grid in grids for panel in grid["panelBankSectionConfig"]["panels"]]
    scatter = {(p["config"]["xAxis"], p["config"]["yAxis"]) for p in panels if p["viewType"] == "Scatter Plot"}
    assert scatter == {
        (f"summary:{c}", f"summary:{q}") for q in ("lpips", "psnr") for c in ("speedup", "forward_fraction")
    }
    (media,) = [p for p in panels if p["viewType"] == "Media Browser"]
    assert media["config"]["mediaKeys"] == ["sheet", "video_0", "video_1", "video_2"]
    curves = [json.dumps(p["config"]) for p in panels if p["viewType"] not in ("Scatter Plot", "Media Browser")]
    assert len(curves) == 2 and all('"chunks"' in c and "wandb/line/v0" in c for c in curves)
    feed = grids[0]["runSets"][0]
    assert set(feed["filters"]["filters"][0]["value"]) == {path.name for path in made.values()}
    assert feed["runFeed"]["columnVisible"]["summary:lpips"]
    assert any("reuse FxxF" in json.dumps(block) and "motioncache 0.2" in json.dumps(block) for block in blocks)


@pytest.fixture
def nobody(tmp_path, monkeypatch):
    """A machine without a W&B account."""
    for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR", "DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "wandb"))
    (tmp_path / "wandb").mkdir()
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("undrawn")
def test_without_a_login_it_ends_in_one_sentence_and_the_page_is_there(study, nobody, tmp_path, capsys):
    assert main([str(tmp_path / "out"), "--to", str(tmp_path / "r"), "--wandb"]) == 1
    err = capsys.readouterr().err
    assert "wandb login" in err and "local report is complete" in err and err.count("\n") == 1
    assert (tmp_path / "r" / "index.html").is_file()


class Reports(Endpoint):
    """Has the runs in these folders and takes reports: ``views`` by name. With ``projects`` False it has no project to
    put them in."""

    def __init__(self, folders, projects=True):
        super().__init__()
        self.projects, self.views = projects, []
        for folder in folders:
            self.runs[folder.name.rpartition("-")[2]] = {"displayName": folder.name}

    def query(self, operation, values):
        if operation == "ProjectInternalId":
            return {"project": {"id": "P", "internalId": "P"} if self.projects else None}
        if operation == "GetProjects":
            node = {"__typename": "Project", "id": "P", "name": "fastcache", "entityName": "tester"}
            node |= {"createdAt": "2026-01-01T00:00:00Z", "isBenchmark": False, "user": None}
            return {
                "models": {
                    "pageInfo": {"hasNextPage": False, "endCursor": None},
                    "edges": [{"cursor": "c", "node": node}],
                }
            }
        if operation == "upsertView":
            self.views.append(values)
            view = {key: values[key] for key in ("type", "name", "displayName", "description", "spec")}
            project = {"id": "P", "name": values["projectName"], "entityName": values["entityName"]}
            times = {"updatedAt": "2026-01-01T00:00:00", "createdAt": "2026-01-01T00:00:00"}
            return {"upsertView": {"view": {"id": "Vmlldzox", "project": project, **view, **times}, "inserted": True}}
        return super().query(operation, values)


def elsewhere(server, *words):
    """The command in a process of its own: W&B keeps the first server it meets."""
    keyed = os.environ | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "local-" + "a" * 40, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fastcache.report", *map(str, words)]
    return subprocess.run(
        command, env=keyed, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=240
    )


@pytest.mark.slow
def test_the_real_client_saves_the_report(study, nobody, tmp_path):
    with Reports(study[0].values()) as server:
        done = elsewhere(server, tmp_path / "out", "--to", tmp_path / "r", "--wandb", "tester/fastcache")
    assert done.returncode == 0, done.stderr
    assert "W&B report: http" in done.stdout and "not on W&B" not in done.stdout
    (view,) = server.views
    assert (view["entityName"], view["projectName"]) == ("tester", "fastcache")
    assert "motioncache-0.2-FxxF-" in view["spec"] and "Scatter Plot" in view["spec"]


@pytest.mark.slow
def test_a_server_that_does_not_take_it_ends_in_one_sentence(study, nobody, tmp_path):
    with Reports(study[0].values(), projects=False) as server:
        done = elsewhere(server, tmp_path / "out", "--to", tmp_path / "r", "--wandb", "tester/fastcache")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: the W&B report was not saved")
    assert (tmp_path / "r" / "index.html").is_file()


@pytest.mark.slow
def test_runs_that_are_not_on_wandb_are_told(study, nobody, tmp_path):
    with Reports(list(study[0].values())[:-2]) as server:
        done = elsewhere(server, tmp_path / "out", "--to", tmp_path / "r", "--wandb", "tester/fastcache")
    assert done.returncode == 0, done.stderr
    assert "2 of 9 runs are not on W&B: teacache-0.2-FxxF-" in done.stdout and "wandb sync" in done.stdout


@pytest.mark.slow
def test_a_study_of_which_nothing_is_on_wandb_ends_in_one_sentence(study, nobody, tmp_path):
    with Reports([]) as server:
        done = elsewhere(server, tmp_path / "out", "--to", tmp_path / "r", "--wandb", "tester/fastcache")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and server.views == []
    assert "none of these runs is in tester/fastcache" in done.stderr and "wandb sync" in done.stderr
    assert (tmp_path / "r" / "index.html").is_file()


@pytest.mark.slow
def test_a_server_that_is_down_ends_in_one_sentence(study, nobody, tmp_path):
    gone = SimpleNamespace(url="http://127.0.0.1:9")
    done = elsewhere(gone, tmp_path / "out", "--to", tmp_path / "r", "--wandb", "tester/fastcache")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "no login at W&B (http://127.0.0.1:9: no answer); the local report is complete" in done.stderr


@pytest.mark.usefixtures("undrawn")
def test_without_the_extra_it_ends_in_one_sentence(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert main([str(tmp_path / "out"), "--to", str(tmp_path / "r"), "--wandb"]) == 1
    err = capsys.readouterr().err
    assert err == 'error: --wandb needs wandb-workspaces: pip install "fastcache[report]"\n'
    assert (tmp_path / "r" / "index.html").is_file()
