"""A server that answers and does not take: what it refused for good is said and kept, what it took later is neither."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_track import KEY, merged, read_back
from test_track_runs import sync
from wandb_endpoint import Endpoint, alone

from fastcache.wandb_client import refusal

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
# By run: the request that is refused, with what statuses, and what is said of it.
REFUSALS = {
    "stream403": ("POST file_stream", [403], "refused its numbers: 403 Forbidden"),
    "stream404": ("POST file_stream", [404], "refused its numbers: 404 Not Found"),
    "stream400": ("POST file_stream", [400], "refused its numbers: 400 Bad Request"),
    "picture": ("PUT /run/media/images/.*", [403], "refused a file: 403 Forbidden"),
    "table": ("PUT /art/chunks.table.json", [403], "refused a file: 403 Forbidden"),
    "table_begun": ("POST CreateArtifact", [403], "refused a table: 403"),
    "places": ("POST CreateRunFiles", [400], "refused its files: 400"),
    "settings": ("POST UpsertBucket", [], "refused its settings: 403"),  # from the second on
}
TAKEN = {"taken": ("POST nothing", []), "taken_late": ("PUT /run/media/images/.*", [503, 0])}
JOBS = """
import sys
from pathlib import Path
import numpy as np
from fastcache.media import SheetVideo, contact_sheet
from fastcache.track import tracked

home, *names = sys.argv[1:]
video = np.zeros((6, 8, 8, 3), dtype=np.uint8)
sheet = contact_sheet(Path(home) / "sheet.png", [SheetVideo("p", video, video, [3, 3])], title="t")
for name in names:
    print(name, flush=True)
    with tracked({"seed": 0}, mode="online", name=name, id=name, dir=Path(home) / name) as tracker:
        tracker.log_scores({"psnr": 31.25, "per_video": [{"per_chunk": {"psnr": [30.0]}}], "protocol": {"seed": 1}})
        tracker.log_media(Path(home) / "sheet.png")
"""


class Refusing(Endpoint):
    def __init__(self) -> None:
        super().__init__()
        for name, (request, statuses, *_) in (REFUSALS | TAKEN).items():
            self.refused[f"{name} {request}"] = list(statuses)

    def refusal(self, request: str, run: str | None = None) -> int | None:
        again = run == "settings" and run in self.upserts and request == "POST UpsertBucket"
        return 403 if again else super().refusal(request, run)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """One process, a job for each refusal, with jobs that are taken before and after."""
    home = tmp_path_factory.mktemp("refusing")
    names = ["taken", *REFUSALS, "taken_late"]
    with Refusing() as server:
        env = alone(home / "own", PYTHONPATH=str(HERE.parent), WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url)
        command = [sys.executable, "-c", JOBS, str(home), *names]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line in names:
            said[line] = []
        else:
            said[list(said)[-1]].append(line)
    return home, server, said


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_server_refuses_is_said_and_kept_for_sync(name, jobs):
    home, _, said = jobs
    records, kept = read_back(home / name)
    why = REFUSALS[name][2]
    assert said[name] == [
        f"warning: W&B has not taken all of {name} ({why}); all of it is on disk, upload it later: wandb sync {kept}"
    ]
    assert merged(records, "summary")["psnr"] == 31.25 and merged(records, "config")["protocol"] == {"seed": 1}
    assert [record["run"]["run_id"] for record in records if record["type"] == "run"] == [name]
    assert len(list((kept / "files" / "media" / "images").iterdir())) == 1


@pytest.mark.parametrize("name", TAKEN)
def test_nothing_is_said_where_all_is_taken_in_the_end(name, jobs):
    home, server, said = jobs
    assert said[name] == [] and not list((home / name / "wandb").glob("offline-run-*"))
    assert json.loads(server.streams[name]["wandb-summary.json"][-1])["psnr"] == 31.25 and server.exits[name] == 0


def test_sync_of_what_was_kept_makes_up_for_it(jobs):
    home, _, _ = jobs
    _, kept = read_back(home / "stream403")
    with Endpoint() as server:
        synced = sync(home / "own", kept, server)
    assert synced.returncode == 0, synced.stderr
    assert json.loads(server.streams["stream403"]["wandb-summary.json"][-1])["psnr"] == 31.25
    assert (home / "sheet.png").read_bytes() in server.uploads.values()


def test_errors_that_lose_nothing_and_lines_cut_short_are_no_refusal(tmp_path):
    log = tmp_path / "debug-internal.log"
    assert refusal(log) is None
    lines = ['{"level":"ERROR","msg":"api: HTTP error","status":404}', '{"level":"INFO","msg":"filestream: closed"}']
    log.write_text("\n".join([*lines, '{"level":"ERROR","msg":"filestream: fat']))
    assert refusal(log) is None
    log.write_text(log.read_text() + 'al error: no route"}')
    assert refusal(log) == "refused its numbers: filestream: fatal error: no route"
