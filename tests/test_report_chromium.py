"""The page in a browser, where there is one: what its script draws, and that videos play."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from report_page import Page
from report_runs import write_run, write_study

from fastcache.media.video import write_mp4
from fastcache.report.__main__ import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBE = """
<script>
addEventListener("load", () => setTimeout(async () => {
  const count = (selector) => document.querySelectorAll(selector).length;
  const first = { points: count("#plots .point"), heat: count("#maps .heat"),
    absent: [...document.querySelectorAll("#plots figcaption")].map((node) => node.textContent),
    tops: count("#plots .top"),
    rings: [...document.querySelectorAll("#plots figure")].map((node) => node.querySelectorAll(".front").length),
    curves: count("#curves svg"), videos: count("#videos video"), count: document.getElementById("count").textContent };
  const chip = [...document.querySelectorAll("#filters .chip")].find((c) => c.textContent === "motioncache");
  chip.click();
  const shown = [...document.querySelectorAll("#runs tbody tr")].filter((row) => !row.hidden);
  const filtered = { points: count("#plots .point"), rows: shown.length };
  chip.click();
  document.getElementById("play").click();
  await new Promise((done) => setTimeout(done, 700));
  const videos = [...document.querySelectorAll("#videos video")];
  const times = videos.map((v) => [v.currentTime, v.error && v.error.message, v.videoWidth]);
  const told = JSON.stringify({ first, filtered, times });
  document.body.append(Object.assign(document.createElement("pre"), { id: "probe", textContent: told }));
}, 1500));
</script>
"""


def browse(*words):
    """Headless, offline."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required"]
    command = [CHROMIUM, *flags, "--window-size=1360,3000", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout


def probed(page, tmp_path):
    """What the page's script made of it, as JSON written into a copy of the page."""
    probe = page.with_name("probe.html")
    probe.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    dom = browse(
        f"--user-data-dir={tmp_path / 'profile'}",
        "--timeout=12000",
        "--virtual-time-budget=9000",
        "--dump-dom",
        probe.as_uri(),
    )
    return json.loads(dom.partition('<pre id="probe">')[2].partition("</pre>")[0])


@pytest.fixture
def page(tmp_path):
    clip = tmp_path / "clip.mp4"
    write_mp4(clip, np.random.default_rng(0).integers(0, 255, (24, 32, 96, 3), dtype=np.uint8))
    made = write_study(tmp_path / "out", mp4=clip.read_bytes())
    scores = json.loads((made["motion 0.2"] / "scores.json").read_text())
    tie = [entry["lpips"] for entry in scores["per_video"]]
    write_run(tmp_path / "out", "flowcache", 0.2, "FxxF", 0.8, tie, mp4=clip.read_bytes())
    write_run(tmp_path / "out", "flowcache", 0.1, "FxxF", 0.95, None, mp4=clip.read_bytes())
    assert main([str(tmp_path / "out"), "--to", str(tmp_path / "r")]) == 0
    return tmp_path / "r" / "index.html"


@pytest.mark.slow
def test_the_script_and_the_parser_agree(page, tmp_path):
    """Without a browser on the machine the page is checked as text alone."""
    data = Page(page).data["groups"][0]
    runs = [run for run in data["runs"] if run["kind"] == "run"]
    starred = [row for row in Page(page).rows if row[0].endswith("*")]
    assert len(runs) == 10 and len(starred) == 6
    if CHROMIUM is None:
        return
    seen = probed(page, tmp_path)
    first = seen["first"]
    assert first["points"] == 4 * len(runs) - 2 and first["heat"] == len(starred) - 1 and first["curves"] == 2
    assert first["count"] == "11 of 11 runs." and first["videos"] == 3 * first["heat"]  # one of the tie
    assert seen["filtered"] == {"points": 4 * 7 - 2, "rows": 8}
    assert first["absent"] == 2 * ["Not drawn, identical to the reference: flowcache 0.1 FxxF."]
    assert first["tops"] == 4 * 3 and first["rings"][1] == len(starred)  # three ceilings in each of four plots
    assert all(error is None and width == 96 for _, error, width in seen["times"])
    picture = tmp_path / "page.png"
    browse(
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=4000",
        f"--screenshot={picture}",
        page.as_uri(),
    )
    from PIL import Image

    shot = np.asarray(Image.open(picture).convert("RGB"))
    assert shot.shape[1] == 1360 and len(np.unique(shot.reshape(-1, 3), axis=0)) > 200  # plots, not a blank page
