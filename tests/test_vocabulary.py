"""Chunk is time, block is depth, and files stay small."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fastcache"
TIME_ROOMS = ["methods", "sample.py", "results.py", "calibrate.py", "schedule.py", "step.py", "metrics", "media"]


def files(*rooms: str) -> list[Path]:
    found = []
    for name in rooms:
        path = PACKAGE / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


@pytest.mark.parametrize("path", files(*TIME_ROOMS), ids=lambda p: p.name)
def test_rooms_about_time_never_say_block_idx(path: Path) -> None:
    assert not re.search(r"\bblock_idx\b", path.read_text())


def test_rooms_about_depth_never_count_chunks() -> None:
    for path in files("kv_cache"):
        if path.name != "context.py":  # the one place that carries both, as metadata of a forward
            assert not re.search(r"\bchunk_idx\b", path.read_text()), path.name


def test_upstream_chunk_size_names_stay_out() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert not re.search(r"frames?_per_block", path.read_text()), path.name


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300
