"""What a reader sees of runs that are alike, nearly alike, or named by what they do not differ in."""

import json
import re

import pytest
from report_page import Page
from report_runs import write_run, write_study

from fastcache.report import figures, tables
from fastcache.report.__main__ import main
from fastcache.report.groups import DIGITS, front
from fastcache.report.load import load
from fastcache.report.looks import curves
from fastcache.report.pareto import few, pareto
from fastcache.report.study import Study


def of(root):
    return Study([root], load([root]))


def edit(folder, **numbers):
    path = folder / "scores.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | numbers))


def report(root, *words):
    return main([str(root), "--to", str(root.parent / "r"), *words])


@pytest.mark.usefixtures("undrawn")
def test_in_latex_only_a_factor_has_a_times_sign(tmp_path):
    root = tmp_path / "out"
    write_study(root)
    write_run(root, "reuse", None, "FFFR", 0.9, None, options={"path": r"a\b~c^d|x"})
    write_run(root, "reuse", None, "FFFR", 0.9, [0.1] * 4)
    assert report(root) == 0
    text = (tmp_path / "r" / "table.tex").read_text()
    (row,) = [line for line in text.splitlines() if "textbackslash" in line]
    assert r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d\textbar{}x" in row
    assert row.split(" & ")[-1] == r"exact \\" and r"1.25$\times$" in row and "times$act" not in text
    assert r"\textbf{motioncache 0.2 FxxF}" in text  # letters of a schedule stay letters


def test_what_decides_the_front_has_the_digits_of_the_table():
    forms = {column.key: column.form.removesuffix("x") for column in tables.COLUMNS if column.key in DIGITS}
    assert forms == {key: f"{{:.{digits}f}}" for key, digits in DIGITS.items()}


def test_ties_are_all_on_the_front_and_what_looks_beaten_is(tmp_path, capsys):
    root = tmp_path / "out"
    write_run(root)
    for dial, forward, value in ((0.1, 0.7, 0.02), (0.2, 0.7, 0.02), (0.3, 0.7, 0.021), (0.4, 0.6, 0.05)):
        write_run(root, "teacache", dial, "FxxF", forward, [value] * 4)
    edit(write_run(root, "motioncache", 0.1, "FxxF", 0.7, [0.02] * 4), forward_fraction=0.70004, lpips=0.01996)
    edit(write_run(root, "motioncache", 0.2, "FxxF", 0.99974, [1e-6] * 4), lpips=1e-6)
    edit(write_run(root, "flowcache", 0.1, "FxxF", 1.0, None), lpips=0.0)
    edit(write_run(root, "flowcache", 0.2, "FxxF", 0.8, [0.02] * 4), lpips=0.01999)
    best = ["teacache 0.1", "teacache 0.2", "teacache 0.4", "motioncache 0.1", "motioncache 0.2", "flowcache 0.1"]
    (group,) = of(root).groups
    assert {run["label"] for run in group.fronts} == {f"{name} FxxF" for name in best}
    costs = [run["forward_fraction"] for run in front(group.rivals, "forward_fraction", "lpips")]
    assert [round(cost, 3) for cost in costs] == [1, 1, 0.7, 0.7, 0.7, 0.6]
    assert [round(run["forward_fraction"], 3) for run in group.front_points] == [1, 0.7, 0.6]  # a figure shows these
    assert report(root) == 0
    said = capsys.readouterr().out
    page = Page(tmp_path / "r" / "index.html")
    for name in best:
        assert f"{name} FxxF *" in said and any(row[0] == f"{name} FxxF *" for row in page.rows)
    assert "flowcache 0.2 FxxF *" not in said and "ties all count" in said
    ranks = {run["label"]: run["rank"] for run in page.data["groups"][0]["runs"]}
    assert ranks["motioncache 0.1 FxxF"] == ranks["teacache 0.1 FxxF"] | {"psnr": ranks["motioncache 0.1 FxxF"]["psnr"]}


def test_engine_options_tell_runs_apart(tmp_path, capsys):
    root = tmp_path / "out"
    base = json.loads((write_run(root) / "scores.json").read_text())["signature"]
    for frames in (6, 9):
        engine = ("window", {"window_frames": frames, "sink_frames": 3})
        write_run(root, "reuse", None, "FRRF", 0.6, [0.1 / frames] * 4, engine=engine, reference=base)
        write_run(root, "teacache", 0.3, "Fxxx", 0.7, [0.1 / frames] * 4, engine=engine, reference=base)
    write_run(root, "reuse", None, "FRRF", 0.6, [0.2] * 4, reference=base)
    (group,) = of(root).groups
    windows = [f"reuse engine.window_frames={frames}, window" for frames in (6, 9)]
    assert sorted(group.lines)[:3] == [*windows, "reuse, vanilla"]
    titles = {group.title(run) for run in group.runs}
    assert len(titles) == 6 and "reuse FRRF engine.window_frames=6, window" in titles
    found = {one.run.signature: one.found["mask"]["lpips"].mean for one in of(root).controls(group)}
    masks = {group.options[run.signature]: run["lpips"] for run in group.runs if run["method"] == "reuse"}
    for run in (run for run in group.runs if run["method"] == "teacache"):  # 0.7: between its own mask at 0.6 and 1
        assert found[run.signature] == pytest.approx(run["lpips"] - 0.75 * masks[group.options[run.signature]])
    assert report(root) == 0
    assert "reuse FRRF engine.window_frames=6" in capsys.readouterr().out


def test_a_curve_has_a_look_of_its_own(tmp_path):
    write_study(tmp_path)
    for i in range(6):
        write_run(tmp_path, "teacache", 2 + i, "FxxF", 0.5 - 0.05 * i, [0.08] * 4)
    (group,) = of(tmp_path).groups
    made = curves(group, group.compared)
    assert len({tuple(look) for look in made}) == len(made) == 14
    teas = [look for run, look in zip(group.compared, made, strict=True) if run["method"] == "teacache"]
    assert len({look.colour for look in teas}) == 1 and len({look.dash for look in teas}) == 5


def test_the_runs_of_a_figure_are_the_front_and_one_of_each_line_in_turn(tmp_path):
    write_study(tmp_path)
    for i in range(12):
        write_run(tmp_path, "flowcache", 2 + i, "FxxF", 0.9 - 0.01 * i, [0.3] * 4)
    (group,) = of(tmp_path).groups
    shown = figures.shown_runs(group)
    assert len(shown) == 12 and all(run in shown for run in group.fronts)
    counts = {name: sum(run["method"] == name for run in shown) for name in ("flowcache", "reuse", "teacache")}
    assert counts == {"flowcache": 4, "reuse": 3, "teacache": 2}
    assert (
        figures._which(group, shown)
        == "12 of 20 runs: the front (*), one run of each tie; then one run of each line in turn"
    )
    assert figures._which(group, group.compared) == "* the front"


def drawn(figure):
    """Boxes of what a figure shows, in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return figure.bbox, lambda artist: artist.get_window_extent(canvas.get_renderer())


def test_ceilings_are_named_above_the_plots_and_apart(tmp_path):
    write_study(tmp_path, spread=0)
    write_run(tmp_path, "teacache", 0.01, "FxxF", 1.0, None)
    for schedule in ("FRFF", "FFRF"):
        write_run(tmp_path, "reuse", None, schedule, 0.8, [0.03] * 4)
    for i, steps in enumerate((9, 10, 11)):  # ceilings close to each other
        write_run(tmp_path, "flowcache", i, "F" * steps + "R", 0.95, [0.01] * 4)
    (group,) = of(tmp_path).groups
    figure = pareto(group)
    whole, box = drawn(figure)
    for axes in figure.axes:
        names = [box(text) for text in axes.texts]
        assert len(names) == len(group.ceilings) and all(one.y0 >= box(axes.patch).y1 for one in names)
        assert not any(a.overlaps(b) for i, a in enumerate(names) for b in names[:i])
        assert all(whole.x0 <= one.x0 and one.x1 <= whole.x1 and one.y1 <= whole.y1 for one in names)
        assert all(not points.get_clip_on() for points in axes.collections)
        missing = "1 run identical to the reference (exact) has no PSNR: not drawn" in axes.get_xlabel()
        assert missing == axes.get_ylabel().startswith("PSNR")
    assert few(["FRFF", "FFRF"]) == "FRFF FFRF" and few(["FFFR", "FFRF", "FRFF"]) == "FFFR and 2 more"


def test_the_scale_of_the_decisions_is_whole(tmp_path):
    write_study(tmp_path)
    (group,) = of(tmp_path).groups
    figure = figures.FIGURES["decisions"](group)
    whole, box = drawn(figure)
    labels = [box(label) for label in figure.axes[1].get_yticklabels()]
    assert len(labels) > 2 and all(whole.y0 <= label.y0 and label.y1 <= whole.y1 for label in labels)
    assert any("* the front" in text.get_text() for text in figure.texts)


@pytest.mark.usefixtures("undrawn")
def test_what_the_tables_mean_is_said_where_they_are(tmp_path, capsys):
    write_study(tmp_path / "out")
    write_run(tmp_path / "out", "none", None, "F-FF", 0.8, [0.2] * 4)
    assert report(tmp_path / "out") == 0
    said, page = capsys.readouterr().out, (tmp_path / "r" / "index.html").read_text()
    assert re.search(r"In parentheses: may be chance: .*fewer than three prompts", said) and "In grey: may be" in page
    for text in (said, page, (tmp_path / "r" / "table.md").read_text()):
        assert text.count("fewer steps (none F-FF) can be used as they are") == 1
