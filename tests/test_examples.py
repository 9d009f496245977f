"""The inputs in examples/ are what its script draws, and the README's commands take them."""

import re
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command import fastcache, runs

from fastcache import catalog, config, shown
from fastcache.models import tiny_shown
from fastcache.world.scene import RADIUS, SIZE
from fastcache.world.words import read_prompt

ROOT = Path(__file__).resolve().parents[1]
make = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "make.py")))
PICTURE, CONTROL = ROOT / "examples" / "first_frame.png", ROOT / "examples" / "control.mp4"


def commands():
    """The words of every README command that shows a model something of examples/."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    found = [shlex.split(line)[3:] for line in re.findall(r"^python -m fastcache.run .*=examples/.*$", text, re.M)]
    assert len(found) == 2
    return found


def test_they_are_small_and_as_drawn():
    assert PICTURE.stat().st_size < 4000 and CONTROL.stat().st_size < 20_000
    picture = shown.read("image", PICTURE, (SIZE, SIZE)).astype(int)
    assert np.abs(picture - tiny_shown.first_frame(make.FIRST_FRAME, 0)).mean() < 2
    control = shown.read("control", CONTROL, (SIZE, SIZE)).astype(int)
    assert control.shape == (21, SIZE, SIZE, 3) and np.abs(control - make.control()).mean() < 2


def test_the_words_fit_the_picture_and_the_sprites_of_the_control_keep_apart():
    found = tiny_shown.shown_scene(make.FIRST_FRAME, 0, shown.read("image", PICTURE, (SIZE, SIZE)))
    drawn = tiny_shown.shown_scene(make.FIRST_FRAME, 0, tiny_shown.first_frame(make.FIRST_FRAME, 0))
    for a, b in zip(found.sprites, drawn.sprites, strict=True):
        assert np.abs(np.array(a.start) - b.start).max() < 0.3
    assert len(read_prompt(make.CONTROL).sprites) == 2
    covered = (make.control().max(-1) > 40).reshape(21, -1).sum(1)
    assert covered.min() > 0.85 * covered.max() > 6 * RADIUS  # neither hides the other nor leaves the frame


def test_the_readme_says_the_same_words():
    (image, image_prompt), (control, control_prompt) = (
        [word.partition("=")[2] for word in words if word.startswith(("image", "control", "prompt"))]
        for words in commands()
    )
    assert (image, image_prompt) == ("examples/first_frame.png", make.FIRST_FRAME)
    assert (control, control_prompt) == ("examples/control.mp4", make.CONTROL)


@pytest.mark.parametrize("words", commands(), ids=lambda words: words[0])
def test_the_readme_commands_compose_and_run_on_a_toy_of_the_layout(words, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (job,) = config.plan(words).jobs
    layout = job.cfg.model.layout
    assert catalog.load("model", words[0].partition("=")[2])["layout"] == layout
    quick = ("model=toy", f"model.layout={layout}", "method=reuse", "num_videos=1", f"outputs={tmp_path / 'out'}")
    assert fastcache(*quick, *words[1:]) == 0
    assert len(runs(tmp_path / "out")) == 2
