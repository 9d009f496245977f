"""The report on runs written by hand: what it says, what it refuses, how long it takes."""

import csv
import json
import re
import subprocess
import sys
import time

import pytest
from report_page import Page
from report_runs import PROMPTS, write_run, write_study

from fastcache.report.__main__ import main


@pytest.fixture
def study(tmp_path):
    return write_study(tmp_path / "out"), tmp_path / "out", tmp_path / "report"


def run(*words):
    return main([str(word) for word in words])


def test_everything_is_written_and_the_page_needs_nothing_else(study, capsys):
    made, out, to = study
    assert run(out, "--to", to) == 0
    names = {path.name for path in to.iterdir()}
    figures = {f"{name}.{kind}" for name in ("pareto", "chunks", "decisions") for kind in ("png", "svg")}
    assert names == {"index.html", "table.csv", "table.md", "table.tex"} | figures
    page = Page(to / "index.html")
    assert page.unclosed == [] and page.outside == [] and len(page.rows) == len(made)
    said = capsys.readouterr().out
    assert "motioncache 0.2 FxxF *" in said and "baseline reuse FxxF" in said
    assert "reuse FxxF *" not in said  # motioncache 1 is better at the same cost


@pytest.mark.usefixtures("undrawn")
def test_the_front_is_what_nothing_beats(study):
    made, out, to = study
    run(out, "--to", to)
    starred = {row[0] for row in Page(to / "index.html").rows if row[0].endswith("*")}
    assert starred == {f"motioncache {d} FxxF *" for d in ("0.2", "0.5", "1")} | {"reuse Fxxx *"}


@pytest.mark.usefixtures("undrawn")
def test_the_csv_holds_the_numbers_of_scores_json_with_paired_differences(study):
    made, out, to = study
    run(out, "--to", to, "--baseline", "reuse FxxF")
    rows = {row["label"]: row for row in csv.DictReader((to / "table.csv").open())}
    scores = json.loads((made["motion 0.5"] / "scores.json").read_text())
    base = json.loads((made["FxxF"] / "scores.json").read_text())
    row = rows["motioncache 0.5 FxxF"]
    assert float(row["lpips"]) == scores["lpips"] and row["commit"] == "abc1234"
    assert float(row["lpips_vs_baseline"]) == pytest.approx(scores["lpips"] - base["lpips"])
    assert (
        float(row["lpips_vs_baseline_low"]) < float(row["lpips_vs_baseline"]) < float(row["lpips_vs_baseline_high"]) < 0
    )
    assert rows["reuse FxxF"]["lpips_vs_baseline"] == ""


@pytest.mark.usefixtures("undrawn")
def test_latex_has_a_row_a_run_and_escapes(tmp_path):
    write_study(tmp_path / "out")
    write_run(tmp_path / "out", "reuse", None, "FFxx", 0.6, [0.2] * 4, options={"of_all": "a%b"})
    assert run(tmp_path / "out", "--to", tmp_path / "r") == 0
    text = (tmp_path / "r" / "table.tex").read_text()
    assert r"of\_all=a\%b" in text and text.count(r" \\") == 1 + 10 and r"\textbf{motioncache 0.2 FxxF}" in text


@pytest.mark.usefixtures("undrawn")
def test_a_prompt_cannot_break_the_page(tmp_path):
    hostile = ["</script><script>alert(1)</script>", "<b>&\"'", "c", "d"]
    write_study(tmp_path / "out", prompts=hostile)
    assert run(tmp_path / "out", "--to", tmp_path / "r") == 0
    page = Page(tmp_path / "r" / "index.html")
    assert page.scripts == 2 and page.data["groups"][0]["runs"][1]["clips"][0]["prompt"] in hostile


@pytest.mark.usefixtures("undrawn")
def test_videos_fill_their_budget_the_front_first(tmp_path):
    write_study(tmp_path / "out", mp4=b"x" * 3000)
    run(tmp_path / "out", "--to", tmp_path / "r", "--video-mb", "0.05")  # 4000 bytes a video in the page
    runs = {r["label"]: r for r in Page(tmp_path / "r" / "index.html").data["groups"][0]["runs"]}
    clips = runs["motioncache 0.2 FxxF"]["clips"]
    assert [clip["place"] for clip in clips] == ["best", "median", "worst"]
    assert all(clip["src"].startswith("data:video/mp4;base64,") for clip in clips)
    assert sum("src" in clip for r in runs.values() for clip in r["clips"]) == 12
    (link,) = {clip["href"] for clip in runs["teacache 1 FxxF"]["clips"] if clip["place"] == "worst"}
    assert (tmp_path / "r" / link).is_file()
    scores = json.loads(next((tmp_path / "out").glob("motioncache-0.2-*")).joinpath("scores.json").read_text())
    values = [entry["lpips"] for entry in scores["per_video"]]
    assert clips[0]["lpips"] == min(values) and clips[-1]["lpips"] == max(values)


def test_different_protocols_are_kept_apart_and_said(tmp_path, capsys):
    write_study(tmp_path / "a")
    write_study(tmp_path / "b", model="tiny_t2v")
    assert run(tmp_path / "a", tmp_path / "b", "--to", tmp_path / "r") == 0
    said = capsys.readouterr().out
    assert "2 protocols, kept apart: model toy (9 runs); model tiny_t2v (9 runs)" in said
    assert [len(g["runs"]) for g in Page(tmp_path / "r" / "index.html").data["groups"]] == [9, 9]
    assert (tmp_path / "r" / "2-pareto.png").is_file()


@pytest.mark.parametrize("text", ["{", '{"lpips": NaN}', "[]", '{"signature": "x"}'])
@pytest.mark.usefixtures("undrawn")
def test_a_corrupt_scores_json_is_named_and_skipped(study, capsys, text):
    made, out, to = study
    (made["tea 1"] / "scores.json").write_text(text)
    assert run(out, "--to", to) == 1
    told = capsys.readouterr()
    assert f"{made['tea 1']}/scores.json" in told.err and "teacache 0.2" in told.out and "teacache 1" not in told.out
    assert len(Page(to / "index.html").rows) == 8


@pytest.mark.usefixtures("undrawn")
def test_unfinished_and_failed_runs_are_told_and_no_fault(study, capsys):
    made, out, to = study
    (made["tea 1"] / "done.json").unlink()
    (made["Fxxx"] / "done.json").unlink()
    (made["Fxxx"] / "failed.json").write_text('{"error": "out of memory"}')
    assert run(out, "--to", to) == 0
    said = capsys.readouterr().out
    assert "2 not finished" in said and "failed: out of memory" in said and "unfinished, 0 videos made" in said


def test_folders_without_a_finished_run_are_refused_in_a_sentence(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    half = write_run(tmp_path / "half")
    (half / "done.json").unlink()
    for name, told in (
        ("empty", "holds no run"),
        ("half", "holds 1 run, none of them finished"),
        ("no", "no such folder"),
    ):
        assert run(tmp_path / name, "--to", tmp_path / "r") == 1
        err = capsys.readouterr().err
        assert told in err and err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_an_unwritable_target_and_an_unknown_baseline_are_refused(study, capsys):
    made, out, to = study
    to.write_text("a file")
    assert run(out, "--to", to) == 1
    assert f"--to {to} cannot be written" in capsys.readouterr().err
    assert run(out, "--baseline", "nobody", "--to", to) == 1
    assert "no such run" in capsys.readouterr().err


def test_timings_that_cannot_be_true_are_told(tmp_path, capsys):
    write_study(tmp_path / "out")
    write_run(tmp_path / "out", "teacache", 0.9, "FxxF", 0.6, [0.1] * 4, speedup=3.0)
    run(tmp_path / "out", "--to", tmp_path / "r")
    told = capsys.readouterr().out
    assert "1 of 10 speed-ups is left out, timed beside other work (teacache 0.9 FxxF: 3.00x, where its for" in told
    assert not any("3.00x" in line for line in told.splitlines() if line.startswith("teacache"))
    assert '"speedup": 3.0' not in (tmp_path / "r" / "index.html").read_text()
    run(tmp_path / "out", "--to", tmp_path / "r", "--no-timing")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("motioncache") and "1.67x" in line]
    assert rows and all(re.search(r"1\.67x +- ", row) for row in rows)
    assert (tmp_path / "r" / "pareto.png").is_file()


def test_no_torch(study):
    made, out, to = study
    code = (
        "import sys; from fastcache.report.__main__ import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, out, "--to", to], check=True, stdout=subprocess.DEVNULL, timeout=120)


@pytest.mark.slow
def test_500_runs_are_told_in_time_that_grows_with_their_number(tmp_path, capsys):
    prompts = [f"{PROMPTS[0]}, number {i}" for i in range(16)]
    spent = {}
    for count in (0, 50, 500):  # the first for imports and fonts
        out = tmp_path / f"{count}"
        write_run(out, prompts=prompts)
        for i in range(count - 1):
            lpips = [0.01 + 0.0001 * (i * 37 % 499) + 0.001 * j for j in range(16)]
            write_run(out, f"method{i % 7}", i / 100, "FxxF", 1 - i / 1250, lpips, prompts=prompts)
        start = time.process_time()
        assert run(out, "--to", tmp_path / "r") == 0
        spent[count] = time.process_time() - start
    assert spent[500] < 15 * spent[50]
    assert "400 more runs, the front is shown" in capsys.readouterr().out
