"""Every file of conf/ composes, and the command line means what it says; torch plays no part."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fastcache import catalog, config, terminal
from fastcache.build import build
from fastcache.errors import UserError
from fastcache.settings import resolve
from fastcache.world.words import read_prompt

EVERY = [(group, name) for group in catalog.GROUPS for name in catalog.options(group) if name != "file"]


def settings(*words):
    (job,) = config.plan(["model=toy", *words]).jobs
    return resolve(*job)


@pytest.mark.parametrize(("group", "name"), EVERY, ids=[f"{group}={name}" for group, name in EVERY])
def test_every_choice_composes(group, name):
    word = f"metric=[{name}]" if group == "metric" else f"{group}={name}"
    words = [word] if group == "model" else ["model=toy", word]
    with initialize_config_dir(version_base="1.3", config_dir=str(catalog.CONF)):
        ((cfg, choices),) = config.compose_jobs([], [words])
    assert group == "metric" or choices[group] == name
    assert set(cfg) <= {*catalog.KEYS, *catalog.DIALS}


@pytest.mark.parametrize("name", catalog.options("method"))
def test_every_method_builds_from_its_yaml(name):
    method = settings(f"method={name}")["method"]
    built = build(method)
    assert built.config()["name"] == name.removesuffix("_paper")
    assert (built.dial is None) == (not {"thresh", "interval", "skip"} & method.keys())


def test_dials_come_from_the_methods_own_yaml():
    found = {m.name: m for m in catalog.methods()}
    assert found["motioncache"].dial == "thresh"
    assert found["none"].dial is None
    assert all(m.idea for m in found.values())
    assert settings("method=teacache", "thresh=0.4")["dial"] == 0.4
    assert settings("method=teacache", "method.thresh=0.4")["dial"] == 0.4


def test_none_and_euler_bring_their_schedule_and_sampler():
    assert settings("method=none")["schedule"] == "FFFF"
    euler = settings("method=euler")
    assert (euler["schedule"], euler["choices"]["sampler"]) == ("FFFF", "euler")
    assert settings("method=reuse", "schedule=Fxxx")["schedule"] == "Fxxx"


LINES = [
    ["method=teacache", "thresh=0.3"],
    ["method=teacache", "~thresh", "method.thresh=0.2", "sampler.renoise=shared"],
    ["method=motioncache", "++method.thresh=0.7", "thresh=0.2"],
    ["method=motioncache", "+method.more={a: 1, b: [2, 3]}", "frames=3"],
    ["model=toy", "model.layout=i2v", "sampler=euler", "prompt='a b'", "seed=4"],
    ["experiment=store"],
    ["experiment=store", "seed=2", "metric=[]"],
    ["engine=window", "engine.window_frames=9", "outputs=elsewhere", "hydra.job.name=other"],
    ["tracking=disabled", "+tracking.more=1", "schedule=FFxx"],
]


def test_jobs_that_share_their_files_are_composed_as_hydra_would():
    with initialize_config_dir(version_base="1.3", config_dir=str(catalog.CONF)):
        twice = config.compose_jobs([], [*LINES, *LINES])
        for line, first, job in zip(LINES, twice, twice[len(LINES) :], strict=False):
            assert OmegaConf.to_container(first.cfg) == OmegaConf.to_container(job.cfg)
            whole = OmegaConf.to_container(compose("config", overrides=line, return_hydra_config=True))
            choices = whole.pop("hydra")["runtime"]["choices"]
            assert job.choices == {group: str(name) for group, name in choices.items()}
            whole.pop("grids", None)
            assert OmegaConf.to_container(job.cfg) == whole
            assert OmegaConf.is_struct(job.cfg)


def test_jobs_that_share_their_files_share_nothing_else():
    first, second = config.plan(["-m", "model=toy", "method=teacache", "thresh=0.1,0.2"]).jobs
    first.cfg.sampler.renoise, first.cfg.thresh = "shared", 3.0
    assert (second.cfg.sampler.renoise, second.cfg.thresh) == ("fresh", 0.2)
    third, _ = config.plan(["-m", "model=toy", "method=teacache", "thresh=0.1,0.2"]).jobs
    assert third.cfg.thresh == 0.1


def test_a_sweep_expands_as_hydra_would():
    plan = config.plan(["model=toy", "method=teacache,motioncache", "-m", "thresh=0.1,0.2"])
    assert plan.sweep
    assert [(job.choices["method"], job.cfg.thresh) for job in plan.jobs] == [
        ("teacache", 0.1), ("teacache", 0.2), ("motioncache", 0.1), ("motioncache", 0.2)
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["a red circle moves left, a square", "it's {a}: [b], c=d\\", "'quoted'", "${x}"])
def test_a_prompt_is_taken_literally(text):
    assert settings(f"prompt={text}")["prompts"] == [text.strip("'")]


def test_prompts_may_be_a_file(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("a red circle stays\n\n  a blue square moves up, fast\n")
    assert settings(f"prompts={path}")["prompts"] == ["a red circle stays", "a blue square moves up, fast"]
    assert settings(f"prompts={path}", "num_videos=1")["prompts"] == ["a red circle stays"]


def test_prompt_lists_are_long_enough_and_share_nothing():
    lists = {name: catalog.load("prompts", name)["texts"] for name in ("smoke", "eval", "calibration")}
    assert len(lists["smoke"]) == 4
    assert min(len(lists["eval"]), len(lists["calibration"])) >= 32
    everything = [text for texts in lists.values() for text in texts]
    assert len(set(everything)) == len(everything)
    for text in everything:
        assert 1 <= len(read_prompt(text).sprites) <= 3


def test_a_yaml_of_the_users_is_found(tmp_path):
    (tmp_path / "method").mkdir()
    shutil.copy(catalog.CONF / "method" / "reuse.yaml", tmp_path / "method" / "mine.yaml")
    (job,) = config.plan(["--config-dir", str(tmp_path), "model=toy", "method=mine"]).jobs
    assert job.choices["method"] == "mine"
    with pytest.raises(UserError, match="method=mine does not exist"):
        config.plan(["model=toy", "method=mine"])


def test_help_shows_examples_and_every_method():
    text = terminal.help_text()
    assert text.count("python -m fastcache.run") == 3
    for method in catalog.options("method"):
        assert f"\n  {method} " in text


@pytest.mark.parametrize("layout", ["checkout", "wheel"])
def test_help_and_composition_need_no_torch_and_no_particular_folder(layout, tmp_path):
    """A wheel holds conf/ inside the package, a checkout beside it."""
    package = Path(catalog.__file__).parent
    root = package.parent
    if layout == "wheel":
        root = tmp_path / "site"
        shutil.copytree(package, root / "fastcache", ignore=shutil.ignore_patterns("__pycache__", "weights"))
        shutil.copytree(catalog.CONF, root / "fastcache" / "conf", dirs_exist_ok=True)
    code = (
        "import sys, fastcache, fastcache.run as run, fastcache.config as config, fastcache.catalog as catalog\n"
        "assert run.main(['--help']) == 0\n"
        "assert config.plan(['model=toy', 'thresh=0.3']).jobs[0].cfg.thresh == 0.3\n"
        "assert not {'torch', 'wandb', 'matplotlib'} & set(sys.modules), 'imported too early'\n"
        "print(catalog.CONF)\n"
    )
    before = os.times()
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    after = os.times()
    assert done.returncode == 0, done.stderr
    inside = root / "fastcache" / "conf" if layout == "wheel" else catalog.CONF
    assert done.stdout.splitlines()[-1] == str(inside)
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert seconds < 3, f"{seconds:.1f} s of CPU time"
