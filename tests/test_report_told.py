"""Sentences of the report: what sets protocols apart, references that are gone, refused words, one and many."""

import json
import shutil

import pytest
from report_runs import PROMPTS, PROTOCOL, write_run, write_study

from fastcache.report.__main__ import main
from fastcache.report.load import load
from fastcache.report.protocols import told_apart
from fastcache.report.study import Study


def of(*roots):
    return Study(list(roots), load(roots))


@pytest.mark.parametrize("text", ["-3", "nan", "inf", "many"])
def test_a_budget_that_is_no_number_is_refused_in_a_sentence(tmp_path, capsys, text):
    write_run(tmp_path / "out")
    assert main([str(tmp_path / "out"), "--to", str(tmp_path / "r"), "--video-mb", text]) == 1
    told = capsys.readouterr()
    assert told.err == (
        f"error: --video-mb {text}: expected a number, 0 or more; e.g. --video-mb 24, or 0 for links alone\n"
    )
    assert told.out == "" and not (tmp_path / "r").exists()


def test_a_reference_that_is_gone_is_named_with_what_to_type(tmp_path):
    made = write_study(tmp_path / "out")
    assert not any("not among" in line for line in of(tmp_path / "out").told())
    name = json.loads((made["reference"] / "scores.json").read_text())["signature"]
    shutil.move(made["reference"], tmp_path / made["reference"].name)
    (line,) = of(tmp_path / "out").told()
    assert line.startswith(f"reference {name} (of 8 runs) is not among the finished runs in {tmp_path / 'out'}: ")
    assert f"python -m fastcache.run model=toy method=motioncache schedule=FxxF outputs={tmp_path / 'out'}" in line
    assert of(tmp_path / "out", tmp_path / made["reference"].name).told() == []


def test_references_of_a_study_are_made_by_its_command_and_named_ones_are_not(tmp_path):
    for i in range(5):
        write_run(tmp_path / "out", "reuse", None, "FRRF", 0.6, [0.1] * 4, seed=i, reference=f"{i}2345678")
    for path in (tmp_path / "out").glob("*/config.yaml"):
        path.write_text(path.read_text().replace("choices:", "choices:\n  experiment: pareto"))
    (line,) = of(tmp_path / "out").told()
    assert line.startswith("references ") and line.count(" (of 1 run)") == 3 and ", 2 more are not among" in line
    assert line.endswith(
        f"makes them and keeps the runs: python -m fastcache.run experiment=pareto outputs={tmp_path}/out"
    )
    for path in (tmp_path / "out").glob("*/config.yaml"):
        path.write_text(path.read_text() + "reference: 12345678\n")
    (line,) = of(tmp_path / "out").told()
    assert line.endswith("Name the folder that holds them as well")


@pytest.mark.usefixtures("undrawn")
def test_one_is_one_and_two_are_two(tmp_path, capsys):
    root = tmp_path / "out"
    write_run(root, prompts=PROMPTS[:1])
    write_run(root, "reuse", None, "FRRF", 0.6, [0.1], prompts=PROMPTS[:1])
    folder = write_run(root, "teacache", 0.1, "FRRF", 0.8, None, prompts=PROMPTS[:1], mp4=b"x" * 30)
    half = write_run(root, "teacache", 0.3, "FRRF", 0.7, [0.1], prompts=PROMPTS[:1])
    (half / "done.json").unlink()
    assert main([str(root), "--to", str(tmp_path / "r"), "--video-mb", "0"]) == 0
    said, page = capsys.readouterr().out, (tmp_path / "r" / "index.html").read_text()
    assert "1 video is identical to its reference" in said
    assert "1 run is not finished" in page and "1 more is a link to a file beside this page" in page
    assert "3 runs of" in (tmp_path / "r" / "table.md").read_text() and folder.is_dir()
    assert ", 1 video each." in (tmp_path / "r" / "table.md").read_text()
    write_run(tmp_path / "other", model="tiny_t2v")
    assert "model tiny_t2v, 4 prompts (1 run)" in of(root, tmp_path / "other").told()[0]


def test_protocols_are_told_by_what_differs_alone(tmp_path):
    alex = PROTOCOL["lpips"]
    common = {"model": "toy", "weights": "a" * 64, "lpips": alex, "frame_shape": [12, 32, 32, 3], "prompts": PROMPTS}
    other = common | {"model": "tiny", "weights": "b" * 64, "prompts": PROMPTS[:1]}
    assert told_apart([common, other]) == ["model toy, 4 prompts", "model tiny, 1 prompt"]
    vgg = common | {"lpips": alex | {"net": "vgg", "weights_sha256": "99"}}
    assert told_apart([common, vgg]) == ["lpips net=alex", "lpips net=vgg"]
    assert told_apart([common, common | {"lpips": None}]) == ["with lpips", "no lpips"]
    assert told_apart([common, common | {"weights": "b" * 64}]) == ["weights aaaaaaaa", "weights bbbbbbbb"]
    long = common | {"frame_shape": [21, 32, 32, 3], "prompts": ["a green circle stays, on blue dots", *PROMPTS[1:]]}
    assert told_apart([common, long]) == [
        '12 frames of 32x32, 4 prompts ("a red circle moves left, take 0")',
        '21 frames of 32x32, 4 prompts ("a green circle stays, on blue dots")',
    ]
    ruled = common | {"ssim": "gaussian 11x11, sigma 1.5, data range 1, per channel"}
    assert told_apart([common, ruled]) == ["no ssim", "with ssim"]
    blur = common | {"negative_prompt": "blur", "guidance_scale": 2.0}
    assert told_apart([common | {"guidance_scale": 1.0}, blur]) == [
        "guidance scale 1, no negative prompt",
        "guidance scale 2, negative prompt blur",
    ]
