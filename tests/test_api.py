"""The Python interface, without Hydra."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastcache as fc
from fastcache.build import build, locate
from fastcache.errors import UserError
from fastcache.metrics.psnr import Psnr

PROMPT = "a red circle moves left, a blue square stays"


def test_six_lines():
    model = fc.load_model("toy")
    model.dit.set_kv_engines(lambda branch: fc.VanillaKVCacheEngine())
    reference = fc.generate(model, PROMPT, fc.NoCache(), schedule="FFFF", frames=6)
    video = fc.generate(model, PROMPT, fc.DirectReuse(), schedule="FxxF", frames=6)
    scores = fc.score(video, reference)
    assert video.frames.shape == (6, 16, 16, 3)
    assert [chunk.letters for chunk in video.rollout.chunks] == ["FRRF", "FRRF"]
    assert 5 < scores["psnr"] < 60
    assert scores["lpips"] > 0
    assert len(scores["per_chunk"]["psnr"]) == 2


def test_the_command_line_makes_the_same_video(tmp_path):
    from command import fastcache

    assert fastcache("method=reuse", "seed=3", f"outputs={tmp_path}") == 0
    (path,) = tmp_path.glob("reuse-*/videos/1.npz")
    prompt = "a fast yellow triangle moves right and a slow white cross moves down, on purple stripes"
    video = fc.generate(fc.load_model("toy"), prompt, fc.DirectReuse(), frames=6, seed=3, idx=1)
    with np.load(path) as file:
        assert (file["frames"] == video.frames).all()


def test_the_name_is_all_that_an_import_costs():
    code = "import sys, fastcache; assert 'torch' not in sys.modules and 'hydra' not in sys.modules; fastcache.nonsense"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert "has no attribute 'nonsense'" in done.stderr
    assert set(fc.__all__) <= set(dir(fc))
    assert all(callable(getattr(fc, name)) for name in fc.__all__)


def test_what_is_asked_wrongly():
    with pytest.raises(UserError, match="Did you mean toy"):
        fc.load_model("toyy")
    with pytest.raises(UserError, match="no such file"):
        fc.load_fit("nowhere")
    with pytest.raises(UserError, match="draws its weights"):
        fc.load_model("toy", weights="x.safetensors")
    model = fc.load_model("toy")
    with pytest.raises(UserError, match="chunks of 3"):
        fc.generate(model, PROMPT, frames=4)
    short, long = (fc.generate(model, PROMPT, frames=frames) for frames in (3, 6))
    with pytest.raises(UserError, match="one size"):
        fc.score(short, long, [Psnr()])


def test_nodes_are_built_strictly():
    with pytest.raises(UserError, match="Did you mean thresh"):
        build({"_target_": "fastcache.methods.teacache.TeaCache", "tresh": 0.3})
    with pytest.raises(UserError, match="cannot be imported: No module named 'fastcache.methods.nothing'"):
        locate("fastcache.methods.nothing.Nothing")
    for name in ("fastcache.methods.teacache.Nothing", "Nothing"):
        with pytest.raises(UserError, match="does not exist"):
            locate(name)


@pytest.mark.slow
def test_the_readmes_lines_run(capsys):
    """The first Python block of the README, as it stands, on the bundled model."""
    readme = Path(__file__).parents[1] / "README.md"
    block = re.search(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(compile(block[1], "README.md", "exec"), names)
    assert names["video"].frames.shape == names["reference"].frames.shape == (21, 32, 32, 3)
    assert names["video"].rollout.compute_fraction < 1
    assert "'psnr': " in capsys.readouterr().out
