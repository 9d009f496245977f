"""The K/V study: its arithmetic, and that what it measures agrees with it."""

import pytest
from command import read

from fastcache import kv_study
from fastcache.study import arithmetic, decoder
from fastcache.study.engines import NAMES, summary_bytes


def test_the_arithmetic_of_the_summary():
    counted = arithmetic.tokens(4, 3, 10)
    assert counted == (300, 52)
    assert f"{counted.saved:.1%}" == "82.7%" and f"{counted.ratio:.2f}" == "5.77"
    assert arithmetic.cache_bytes(12, 1000, 512) == 49_152_000
    assert arithmetic.tokens(1, 640, 3).without == 640 + 641 + 642


@pytest.mark.parametrize(("chunks", "ratio"), [(1, 1.0), (3, 2.0), (7, 4.0), (28, 14.5)])
def test_chunks_save_half_their_number(chunks, ratio):
    counted = arithmetic.chunks(chunks, 72, 5)
    assert counted.ratio == ratio == (chunks + 1) / 2
    assert arithmetic.chunks(3, 72, 5) == (2160, 1080)


def test_the_toy_computes_as_many_positions_as_counted_and_says_the_same():
    measured = decoder.measure(layers=4, prompt=3, new=10, dim=64, repeats=1)
    assert (measured.without, measured.cached) == (300, 52)
    assert measured.difference < 1e-4 and measured.speedup > 0
    assert decoder.one_more(layers=1, positions=20, dim=64, repeats=1) > 0


def test_bytes_of_every_engine_are_those_of_the_formula():
    rows = {row.name: row for row in summary_bytes(layers=2, positions=40, heads=2, chunk=20)}
    assert tuple(rows) == NAMES
    assert rows["vanilla"].bytes == rows["static"].bytes == rows["offload"].host_bytes == 2 * 40 * 2 * 128 * 4
    for row in rows.values():
        assert row.bytes + row.host_bytes == row.expected, row.name
    assert rows["offload"].bytes == 0


@pytest.mark.slow
def test_the_study_on_the_toy_model(out, capsys):
    words = ["--model", "toy", "--frames", "18", "--long", "0", "--outputs", str(out), "--tracking", "disabled"]
    assert kv_study.main(words) == 0
    printed = capsys.readouterr().out
    for text in ("300", "52", "82.7%", "49.152", "12 layers x 1000 positions x 512", "attention error", "study.png"):
        assert text in printed
    made = read(out / "kv_study" / "study.json")
    assert (out / "kv_study" / "study.png").stat().st_size > 10_000
    assert [row["counted"] for row in made["growth"]] == [1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    assert made["largest_difference"] < 1e-4
    rows = {row["name"]: row for row in made["engines"]}
    assert rows["vanilla"]["attention_error"] == rows["static"]["attention_error"] == 0
    assert rows["offload"]["attention_error"] == rows["offload"]["k_error"] == 0
    assert 0 < rows["int8"]["attention_error"] < rows["int4"]["attention_error"] / 4
    assert 0 < rows["int8"]["k_error"] < rows["int4"]["k_error"] / 4
    for row in rows.values():
        assert row["bytes"] + row["host_bytes"] == row["expected"], row["name"]
        assert row["peak"] >= row["bytes"]


def test_long_rollouts_keep_their_memory_and_are_looked_at():
    from fastcache import api
    from fastcache.study.drift import long_rollout

    model = api.load_model("tiny_t2v")
    drift = long_rollout(model, ["a red circle moves left"], 12, 6, 3, "relative")
    assert drift.constant and len(drift.kv_bytes) == len(drift.near) == len(drift.error) == 4
    assert drift.mean(drift.near, 0, 4) > 0.5 and drift.mean(drift.error, 0, 4) < 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--frames", "20"], "multiple of 3"),
        (["--long", "-3"], "multiple of 3"),
        (["--model", "tiny_t2"], "Did you mean tiny_t2v"),
        pytest.param(
            ["--window", "4", "--long", "12", "--frames", "6"], "window_frames=4 is too small", marks=pytest.mark.slow
        ),
    ],
)
def test_bad_input_is_said_in_a_sentence(argv, message, capsys, tmp_path):
    words = ["--model", "toy", "--outputs", str(tmp_path), "--tracking", "disabled"]
    assert kv_study.main([*words, *argv]) == 1
    assert message in capsys.readouterr().err
