"""A run on disk: what names it, what counts as finished, what a reference is. No torch."""

import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fastcache import config, results
from fastcache.errors import UserError
from fastcache.results import Folder
from fastcache.settings import label, reference_of, resolve


def settings(*words, device="cpu"):
    """Composed once a line; what is on disk is read anew each time."""
    return resolve(*composed(f"device={device}", *words))


@functools.cache
def composed(*words):
    (job,) = config.plan(["model=toy", "rescale=none", *words]).jobs
    return job


def signature(*words):
    return results.signature(settings(*words))


BASE = ("method=motioncache", "thresh=0.3")


@pytest.mark.parametrize(
    "word",
    ["seed=1", "frames=6", "num_videos=2", "prompt=a red circle stays", "prompts=eval", "schedule=Fxxx", "thresh=0.2",
     "method=teacache", "method.weight_norm=max", "indicator=e0", "dtype=bfloat16", "sampler.renoise=shared",
     "sampler=euler", "sampler.store=reuse_last", "model.layers=3", "engine.debug=true"],
)  # fmt: skip
def test_what_can_change_a_pixel_changes_the_signature(word):
    words = [w for w in BASE if w.partition("=")[0] != word.partition("=")[0]]
    assert signature(*words, word) != signature(*BASE)


@pytest.mark.parametrize(
    "word",
    ["outputs=elsewhere", "metric=[psnr]", "tracking=disabled", "tracking.project=x", "force=true", "retry=true",
     "dry=true", "reference=abc", "thresh=0.30", "method.thresh=0.3"],
)  # fmt: skip
def test_what_cannot_does_not(word):
    words = [w for w in BASE if w.partition("=")[0] != word.partition("=")[0]]
    assert signature(*words, word) == signature(*BASE)


def test_equal_numbers_are_equal_settings():
    assert signature("method=teacache", "thresh=0") == signature("method=teacache", "thresh=0.0")
    assert signature("method=teacache", "thresh=1") == signature("method=teacache", "thresh=1.0")


def test_prompts_enter_by_their_texts(tmp_path):
    smoke = settings()["prompts"]
    path = tmp_path / "copy.txt"
    path.write_text("\n".join(smoke))
    assert signature(f"prompts={path}") == signature()
    assert signature("num_videos=4") == signature()


def test_weights_enter_by_their_bytes(tmp_path):
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    one.write_bytes(b"abc")
    same.write_bytes(b"abc")
    other.write_bytes(b"abd")
    assert signature(f"weights={one}") == signature(f"weights={same}")
    assert len({signature(), signature(f"weights={one}"), signature(f"weights={other}")}) == 3


def test_a_rescale_enters_only_where_a_method_takes_it_and_then_by_its_numbers(tmp_path):
    assert signature("method=none") == signature("method=none", "rescale=auto")
    assert signature("method=reuse") == signature("method=reuse", "rescale=auto")
    assert signature(*BASE) != signature(*BASE, "rescale=auto")
    assert signature(*BASE, "rescale=auto") != signature(*BASE, "rescale=auto", "rescale.degree=1")
    fit = settings(*BASE, "rescale=auto")["rescale"]["signed"]["auto"]
    paths = [tmp_path / f"{name}.yaml" for name in "abc"]
    for path, slope in zip(paths, (0.5, 0.5, 0.6), strict=True):
        path.write_text(json.dumps({"coefficients": [slope, 0], "degree": 1, "domain": [0, 1], "fitted_on": fit}))
    assert signature(*BASE, f"rescale={paths[0]}") == signature(*BASE, f"rescale={paths[1]}")
    assert signature(*BASE, f"rescale={paths[0]}") != signature(*BASE, f"rescale={paths[2]}")


def test_auto_keeps_its_name_when_its_fit_has_been_made(tmp_path):
    from fastcache import fits

    words = (*BASE, "rescale=auto", f"outputs={tmp_path}")
    before = settings(*words)
    assert before["rescale"]["probe"]
    wanted = before["rescale"]["signed"]["auto"]
    samples = [{"x": x, "y": x / 2} for x in (0.1, 0.5, 0.9)]
    asked = fits.asked_of(before["rescale"]["signed"])
    made = fits.make_fit(samples, fitted_on=wanted, **asked)
    fits.save_fit(made, samples, fits.fit_path(tmp_path / "fits", wanted, asked))
    after = settings(*words)
    assert not after["rescale"]["probe"]
    assert np.polyval(after["rescale"]["used"]["coefficients"], 0.7) == pytest.approx(0.35)
    assert results.signature(after) == results.signature(before)


def test_the_device_enters_without_its_number():
    assert results.signature(settings(device="cuda:1")) == results.signature(settings(device="cuda"))
    assert results.signature(settings(device="cpu")) != results.signature(settings(device="cuda"))


def test_folder_names():
    assert results.folder_name(settings(*BASE)) == f"motioncache-0.3-FxxF-{signature(*BASE)}"
    assert results.folder_name(settings("method=none")) == f"none-nodial-FFFF-{signature('method=none')}"
    assert [label(settings(*words)) for words in (BASE, ["method=euler"], ["method=reuse"])] == [
        "motioncache 0.3 FxxF", "euler", "reuse FxxF"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [BASE, ["method=reuse", "schedule=Fxxx"], ["method=teacache", "rescale=auto", "thresh=1"], ["method=none"],
     ["method=none", "schedule=FxxF"], [*BASE, "method.weight_norm=max", "force=true", "reference=auto"]],
)  # fmt: skip
def test_every_run_of_equal_settings_shares_one_reference(words):
    reference = reference_of(settings(*words))
    assert results.folder_name(reference) == results.folder_name(settings("method=none"))
    assert reference["force"] is False


def test_a_reference_keeps_seed_sampler_and_size():
    for word in ("seed=3", "sampler.renoise=shared", "sampler=euler", "frames=9", "prompts=eval", "dtype=bfloat16"):
        assert results.signature(reference_of(settings(*BASE, word))) == signature("method=none", word)


def test_euler_is_scored_against_the_stock_sampler_and_is_no_reference():
    euler = settings("method=euler")
    assert results.signature(reference_of(euler)) == signature("method=none")
    assert results.signature(euler) != signature("method=none")
    fewer = ("sampler.steps=[1000,500]", "schedule=FF")
    assert results.signature(reference_of(settings("method=euler", *fewer))) == signature("method=none", *fewer)


def finished_run(tmp_path, *words, count=2):
    s = settings(*BASE, f"num_videos={count}", *words) | {"outputs": str(tmp_path)}
    folder = Folder.of(s)
    folder.start(s)
    for i in range(count):
        folder.save_frames(i, np.full((3, 4, 4, 3), i, np.uint8))
        folder.save_info(i, {"prompt": "x"})
    folder.finish()
    return s, folder


def test_a_video_is_kept_without_loss_and_counts_once_whole(tmp_path):
    s = settings(*BASE) | {"outputs": str(tmp_path)}
    folder = Folder.of(s)
    folder.start(s)
    frames = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), np.uint8)
    assert folder.missing() == [0, 1, 2, 3]
    folder.save_frames(1, frames)
    assert 1 in folder.missing()
    folder.save_info(1, {"prompt": "x"})
    assert folder.missing() == [0, 2, 3]
    assert (folder.frames(1) == frames).all()
    with np.load(folder.path / "videos" / "1.npz") as file:
        assert file.files == ["frames"]
    assert not folder.finished


@pytest.mark.parametrize("loss", ["done.json", "videos/1.npz", "videos/0.json"])
def test_a_folder_that_lacks_anything_is_not_finished(tmp_path, loss):
    _, folder = finished_run(tmp_path)
    assert folder.finished
    (folder.path / loss).unlink()
    assert not folder.finished


def test_another_runs_done_file_does_not_count(tmp_path):
    _, folder = finished_run(tmp_path)
    (folder.path / "done.json").write_text('{"signature": "ffffffff", "num_videos": 2}')
    assert not folder.finished
    (folder.path / "done.json").write_text('{"signature": "')
    assert not folder.finished


def test_force_empties_the_folder_before_anything_else(tmp_path):
    s, folder = finished_run(tmp_path)
    folder.start(s | {"force": True})
    assert folder.missing() == [0, 1]
    assert not (folder.path / "done.json").exists()


def test_a_damaged_video_is_named(tmp_path):
    _, folder = finished_run(tmp_path)
    path = folder.path / "videos" / "0.npz"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match=r"0\.npz.*force=true"):
        folder.frames(0)


def test_files_appear_whole_or_not_at_all(tmp_path):
    path = tmp_path / "scores.json"
    results.write_json(path, {"psnr": None})
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            results.write_json(path, {"psnr": bad})
    with pytest.raises(RuntimeError), results.written_aside(path) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert results.read_json(path) == {"psnr": None}
    assert [p.name for p in tmp_path.iterdir()] == ["scores.json"]


def test_only_one_writer(tmp_path):
    _, folder = finished_run(tmp_path)
    order = []

    def waiting():
        with folder.lock(wait=True):
            order.append("second")

    with folder.lock():
        with pytest.raises(UserError, match=f"process {os.getpid()}"), folder.lock():
            raise AssertionError
        thread = threading.Thread(target=waiting)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_killed_writer_holds_no_lock(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fastcache.results import locked\n"
        f"with locked(Path({str(tmp_path / '.lock')!r})):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    root = str(Path(results.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {process.pid}"), results.locked(tmp_path / ".lock"):
            raise AssertionError
        process.kill()
        process.wait()
        with results.locked(tmp_path / ".lock"):
            pass


def test_a_reference_is_found_by_signature_or_folder(tmp_path):
    _, folder = finished_run(tmp_path)
    for name in (folder.signature, str(folder.path)):
        assert results.find_run(str(tmp_path), name) == folder
    for name in ("00000000", str(tmp_path / "nowhere"), "*"):
        with pytest.raises(UserError, match="reference="):
            results.find_run(str(tmp_path / "empty"), name)
    (folder.path / "done.json").unlink()
    with pytest.raises(UserError, match="not a finished run"):
        results.find_run(str(tmp_path), str(folder.path))


def test_differing_settings_are_named(tmp_path):
    s, folder = finished_run(tmp_path)
    assert results.differing(s, folder.settings()) == []
    other = settings("method=reuse", "schedule=Fxxx", "frames=6", "seed=1", "num_videos=2")
    assert results.differing(other, folder.settings()) == ["frames: 6 here, 21 there", "seed: 1 here, 0 there"]
    assert results.differing(s, {"method": {}}) == ["config.yaml: not readable there"]


def test_an_unwritable_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        for try_it in (True, False):
            with pytest.raises(UserError, match="cannot be written"):
                results.check_writable(str(place), try_it)
    with pytest.raises(UserError, match="cannot be written"):
        results.check_writable("/proc/fastcache")  # not even for root, which os.access does not know
    results.check_writable(str(tmp_path / "new"), try_it=False)
    assert not (tmp_path / "new").exists()
