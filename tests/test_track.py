"""Offline W&B runs are read back from disk with W&B's own reader; online mode talks to an endpoint on this machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clips import noisy, scene
from wandb_endpoint import Endpoint

from fastcache.commit import describe, running
from fastcache.errors import UserError
from fastcache.media import SheetVideo, contact_sheet, write_mp4
from fastcache.track import chunk_rows, tracked

SCORES = {
    "signature": "50eeb5a7",
    "label": "motioncache 0.3 FxxF",
    "dial": 0.3,
    "psnr": 31.25,
    "lpips": 0.0625,
    "ssim": None,
    "ssim_why": "not asked for",
    "compute_fraction": 0.625,
    "per_video": [
        {"prompt": "a red circle", "per_chunk": {"psnr": [None, 30.5], "lpips": [0.0, 0.125], "ssim": [None, None]}},
        {"prompt": "a blue square", "per_chunk": {"psnr": [33.0, 29.5], "lpips": [0.03125, 0.25], "ssim": []}},
    ],
    "protocol": {"lpips": {"net": "alex", "weights_sha256": "443c"}},
}
KEY = "local-" + "f" * 40
TRACE = {"videos": [{"chunks": [{"letters": "FFFF"}, {"letters": "FPRF"}]}] * 2}


@pytest.fixture
def own_home(tmp_path, monkeypatch) -> Path:
    """W&B's caches and settings in tmp_path, so that nothing of this machine is read or written."""
    for name in ("CONFIG", "CACHE", "ARTIFACT"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("API_KEY", "BASE_URL", "MODE", "DIR", "DATA_DIR", "SILENT"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    return tmp_path


def job(folder: Path, mode: str, fail: bool = False) -> None:
    sheet = folder / "sheet.png"
    video = SheetVideo("a red circle", noisy(scene(), 20), scene(), [3, 3])
    with tracked(
        {"seed": 0, "method": {"thresh": 0.3}},
        mode=mode,
        name="motioncache-0.3-FxxF-50eeb5a7",
        id="50eeb5a7",
        dir=folder,
        group="pareto",
        job_type="eval",
        tags=["tiny"],
    ) as tracker:
        if fail:
            raise RuntimeError("out of memory")
        contact_sheet(sheet, [video], title="t")
        clips = [write_mp4(folder / "videos" / f"{i}.mp4", scene(2)) for i in range(4)]
        tracker.log_scores(SCORES, TRACE)
        tracker.log_media(sheet, [folder / "videos" / "missing.mp4", *clips])


def read_back(folder: Path) -> tuple[list[dict], Path]:
    """The records of the one offline run under ``folder``, by `wandb leet inspect`, and its folder."""
    (run,) = (folder / "wandb").glob("offline-run-*")
    (file,) = run.glob("*.wandb")
    wandb = shutil.which("wandb") or str(Path(sys.executable).with_name("wandb"))
    done = subprocess.run([wandb, "leet", "inspect", "--json", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()], run


def merged(records: list[dict], kind: str) -> dict:
    """All updates of one kind, later ones on top."""
    total: dict = {}
    for record in records:
        if record["type"] == kind:
            total |= record[kind]["update"]
    return total


# offline


def test_an_offline_run_holds_settings_scores_chunks_and_media(own_home):
    job(own_home / "run", "offline")
    records, folder = read_back(own_home / "run")
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    assert run["run_id"] == "50eeb5a7" and run["display_name"] == "motioncache-0.3-FxxF-50eeb5a7"
    assert (run["run_group"], run["job_type"], run["project"]) == ("pareto", "eval", "fastcache")
    assert run["config"]["update"]["method"] == {"thresh": 0.3} and "tiny" in run["tags"]
    assert merged(records, "config")["protocol"] == SCORES["protocol"]

    summary = merged(records, "summary")
    for name in ("psnr", "lpips", "ssim", "ssim_why", "dial", "compute_fraction", "label"):
        assert summary[name] == SCORES[name]
    assert "per_video" not in summary

    table = json.loads((folder / "files" / summary["chunks.path"]).read_text())
    assert table["columns"][:4] == ["video", "prompt", "chunk", "trace"]
    assert table["data"] == chunk_rows(SCORES, TRACE) and len(table["data"]) == 4
    assert table["data"][3] == [1, "a blue square", 1, "FPRF", None, 29.5, None, 0.25]

    (artifact,) = [record["artifact"] for record in records if record["type"] == "artifact"]
    kept = [Path(entry["local_path"]) for entry in artifact["manifest"]["contents"]]
    assert kept and all(path.is_relative_to(folder.parent) and path.is_file() for path in kept)
    assert "WANDB_DATA_DIR" not in os.environ

    media = folder / "files" / "media"
    assert [path.read_bytes() for path in (media / "images").iterdir()] == [(own_home / "run/sheet.png").read_bytes()]
    assert sorted(path.name[:7] for path in (media / "videos").iterdir()) == ["video_0", "video_1", "video_2"]
    first = (own_home / "run/videos/0.mp4").read_bytes()
    assert all(path.read_bytes() == first for path in (media / "videos").iterdir())
    assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [0]


def test_a_run_starts_without_looking_up_packages_or_git(own_home, monkeypatch):
    asked: list[list[str]] = []
    real = subprocess.Popen.__init__
    spied = lambda self, args, *rest, **more: (asked.append(args), real(self, args, *rest, **more))[1]  # noqa: E731
    monkeypatch.setattr(subprocess.Popen, "__init__", spied)
    for name in ("a", "b"):
        asked.clear()
        with tracked({}, mode="offline", name=name, id=name, dir=own_home / name):
            pass
    assert asked == []  # of the second: the first starts the client, and asks which commit this is
    records, folder = read_back(own_home / "b")
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    assert run.get("tags", []) == [*filter(None, [running()])] and not (folder / "files" / "requirements.txt").exists()


def test_a_failed_job_is_marked_failed_and_its_error_goes_on(own_home):
    with pytest.raises(RuntimeError, match="out of memory"):
        job(own_home / "run", "offline", fail=True)
    records, _ = read_back(own_home / "run")
    assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [1]


def test_two_jobs_of_a_process_are_two_runs(own_home, capfd):
    for name in ("a", "b"):
        with tracked({}, mode="offline", name=name, id=name, dir=own_home / name) as tracker:
            tracker.log_scores({"psnr": {"a": 1.0, "b": 2.0}[name]})
    for name, psnr in (("a", 1.0), ("b", 2.0)):
        records, _ = read_back(own_home / name)
        assert merged(records, "summary")["psnr"] == psnr
    assert capfd.readouterr() == ("", ""), "not quiet"


# disabled


def test_disabled_writes_nothing_and_does_not_import_wandb(tmp_path):
    code = (
        "import sys; from fastcache.track import tracked\n"
        "with tracked({}, mode='disabled', name='n', id='i', dir='run') as t:\n"
        "    t.log_scores({'psnr': 1.0}); t.log_media(None, [])\n"
        "sys.exit('wandb' in sys.modules or 'torch' in sys.modules)"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 0 and not list(tmp_path.iterdir())


# online, each in a process of its own: W&B reads the server's address once per process


def job_elsewhere(folder: Path, fail: bool = False, **environment: str) -> str:
    """The job in another process; what it printed, stderr last."""
    here = Path(__file__).resolve().parent
    code = f"import test_track, pathlib; test_track.job(pathlib.Path({str(folder)!r}), 'online', {fail})"
    environment |= {"PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)
    return done.stdout + done.stderr


def test_online_mode_sends_the_same_to_the_server(own_home):
    with Endpoint() as server:
        said = job_elsewhere(own_home / "run", WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY)
    assert said == ""
    run = server.runs["50eeb5a7"]
    assert run["groupName"] == "pareto" and run["jobType"] == "eval" and "tiny" in run["tags"]
    summary = json.loads(server.streams["50eeb5a7"]["wandb-summary.json"][-1])
    assert summary["psnr"] == 31.25 and summary["lpips"] == 0.0625 and summary["chunks"]["nrows"] == 4
    assert server.exits["50eeb5a7"] == 0
    media = {path: data for path, data in server.uploads.items() if path.endswith((".mp4", ".png"))}
    assert len(media) == 4 and (own_home / "run/sheet.png").read_bytes() in media.values()


def test_a_failed_online_job_is_marked_failed(own_home):
    with Endpoint() as server:
        said = job_elsewhere(own_home / "run", fail=True, WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY)
    assert said.endswith("RuntimeError: out of memory\n") and server.exits["50eeb5a7"] == 1


def test_online_without_a_key_says_what_to_type(own_home):
    said = job_elsewhere(own_home / "run").splitlines()[-1]
    assert said.startswith("fastcache.errors.UserError: tracking=online needs a W&B account") and "offline" in said


@pytest.mark.slow
def test_online_without_an_answer_keeps_an_offline_run_and_says_so(own_home):
    limits = {"WANDB_INIT_TIMEOUT": "1"}
    job(own_home / "before", "offline")  # what this process leaves in its environment is not for the other one
    assert str(os.getpid()) in os.environ["WANDB_SERVICE"]
    said = job_elsewhere(own_home / "run", WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY=KEY, **limits)
    assert said.startswith("warning: tracking=online: no login at W&B (http://127.0.0.1:9: no answer);")
    assert said.count("\n") == 1
    records, folder = read_back(own_home / "run")
    assert said.endswith(f"upload it later: wandb sync {folder}\n")
    assert merged(records, "summary")["psnr"] == 31.25
    assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [0]


def test_an_unknown_mode_is_refused(tmp_path):
    with pytest.raises(UserError, match="offlin: expected offline, online or disabled"):
        job(tmp_path, "offlin")


# rows and tags


def test_rows_of_scores_without_trace_or_series():
    only_psnr = {"per_video": [{"per_chunk": {"psnr": [30.0]}}]}
    assert chunk_rows(only_psnr, {}) == [[0, None, 0, None, None, 30.0, None, None]]
    assert chunk_rows({"per_video": [{}]}, TRACE)[1][:4] == [0, None, 1, "FPRF"]
    assert chunk_rows({}, TRACE) == []


def test_describe_names_the_commit_of_a_checkout_and_nothing_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("fastcache.commit.__file__", str(tmp_path / "fastcache" / "track.py"))
    assert describe() is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    subprocess.run([*git, "-c", "tag.gpgSign=false", "tag", "v1"], check=True)
    assert describe() == "v1"
