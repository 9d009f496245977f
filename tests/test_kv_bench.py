"""The K/V benchmark runs and says what it measured; its figures are not for a test to judge."""

import pytest

from fastcache import kv_bench
from fastcache.study.engines import NAMES

QUICK = ["--frames", "6", "15", "--frame-tokens", "4", "--heads", "2", "--head-dim", "8", "--repeats", "1"]


def test_every_engine_has_a_ratio_at_every_length(capsys):
    assert kv_bench.main(QUICK) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("attention + append of one chunk / attention alone")
    assert [line.split(":")[0] for line in lines] == ["6 frames", "15 frames"]
    for line in lines:
        ratios = dict(part.split() for part in line.split(": ")[1].split(", "))
        assert tuple(ratios) == NAMES and all(float(ratio.rstrip("x")) > 0 for ratio in ratios.values())


@pytest.mark.parametrize("argv", [["--frames", "4"], ["--frames", "3"], ["--repeats", "0"], ["--forwards", "0"]])
def test_bad_input_is_said_in_a_sentence(argv, capsys):
    assert kv_bench.main(argv) == 1
    assert "expected" in capsys.readouterr().err
