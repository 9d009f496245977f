import pytest

from fastcache import api, bench
from fastcache.bench import Figures, Timing


def test_overhead_is_what_neither_dit_nor_decoding_took():
    assert Timing(wall=10.0, dit=8.0, decode=1.5).overhead == pytest.approx(0.05)


def test_medians_are_of_pairs(monkeypatch):
    times = iter([Timing(4.0, 3.0, 0.5), Timing(2.5, 2.0, 0.5), Timing(8.0, 6.0, 1.0), Timing(5.0, 4.0, 1.0)] * 2)
    model = api.load_model("toy")
    monkeypatch.setattr(bench, "_time", lambda *args: next(times))
    figures = bench.measure(model, "a red circle", frames=3, repeats=4)
    assert figures == Figures(6.0, 4.5, speedup=1.5, ceiling=pytest.approx(5 / 3), overhead_fraction=0.125)


def test_one_run_prints_every_figure(capsys):
    assert bench.main(["--model", "toy", "--frames", "6", "--repeats", "1"]) == 0
    head, video, reuse, overhead = capsys.readouterr().out.splitlines()
    assert "toy, 6 latent frames" in head
    assert video.startswith("FFFF: ") and "s a video" in video
    assert "of its ceiling 1.667x" in reuse and float(reuse.split()[2].rstrip("x")) > 0
    assert 0 < float(overhead.split()[1].rstrip("%")) < 100


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "toyy"], "Did you mean toy?"),
        (["--model", "toy", "--frames", "4"], "3 or 6"),
        (["--model", "toy", "--repeats", "0"], "expected 1 or more"),
    ],
)
def test_bad_input_is_said_in_a_sentence(argv, message, capsys):
    assert bench.main(argv) == 1
    out = capsys.readouterr()
    assert message in out.err and "Traceback" not in out.err
