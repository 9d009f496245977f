"""mp4 files decoded again, and a contact sheet on which the pictures and the words are where they should be."""

import av
import numpy as np
import pytest
from clips import noisy, scene
from PIL import Image

from fastcache.errors import UserError
from fastcache.media import SheetVideo, contact_sheet, difference, enlarge, side_by_side, write_mp4
from fastcache.media import sheet as sheets
from fastcache.media.text import fitting, font


def decode(path) -> tuple[np.ndarray, float]:
    with av.open(str(path)) as container:
        rate = float(container.streams.video[0].average_rate)
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]), rate


def inked(picture: np.ndarray) -> int:
    """Pixels much darker than paper."""
    return int((picture.min(axis=-1) < 140).sum())


# mp4


def test_mp4_holds_every_frame_at_its_size_and_rate(tmp_path):
    clip = side_by_side(noisy(scene(21), 20), scene(21))
    frames, rate = decode(write_mp4(tmp_path / "new" / "0.mp4", clip, fps=8))
    assert frames.shape == clip.shape and rate == 8
    assert np.abs(frames.astype(int) - clip).mean() < 6
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["0.mp4"]


def test_mp4_of_odd_sizes_is_made_even(tmp_path):
    frames, _ = decode(write_mp4(tmp_path / "a.mp4", np.full((2, 33, 47, 3), 90, np.uint8), fps=12.5))
    assert frames.shape == (2, 34, 48, 3) and abs(int(frames.mean()) - 90) < 4


def test_a_failed_encoding_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_mp4(tmp_path / "a.mp4", scene(2))
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_mp4(path, scene(3))
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("shape, dtype", [((2, 8, 8, 3), float), ((8, 8, 3), np.uint8), ((0, 8, 8, 3), np.uint8)])
def test_other_frames_are_refused(tmp_path, shape, dtype):
    with pytest.raises(UserError, match="height, width, 3"):
        write_mp4(tmp_path / "a.mp4", np.zeros(shape, dtype))
    assert not list(tmp_path.iterdir())


# side by side


def test_side_by_side_shows_reference_run_and_difference_in_that_order():
    reference, run = scene(3), noisy(scene(3), 30)
    both = side_by_side(run, reference, label="motioncache 0.3 FxxF")
    assert both.shape[1] >= 256 + 30 and both.shape[1] % 2 == both.shape[2] % 2 == 0
    for column, clip in enumerate((reference, run, difference(run, reference))):
        left = 8 + column * (256 + 8)
        assert np.array_equal(both[:, 30:286, left : left + 256], enlarge(clip, 256))
        assert inked(both[0, :30, left : left + 256]) > 100, "no label"
    assert inked(both[0, 286:]) > 30 and not np.array_equal(both[0, 286:], both[1, 286:]), "no clock"


def test_difference_is_four_times_the_error_and_does_not_wrap():
    reference = np.full((1, 2, 2, 3), 100, np.uint8)
    run = reference.copy()
    run[0, 0, 0], run[0, 1, 1] = (90, 100, 255), (101, 0, 100)
    assert difference(run, reference)[0, 0, 0].tolist() == [40, 0, 255]
    assert difference(run, reference)[0, 1, 1].tolist() == [4, 255, 0]


@pytest.mark.parametrize("height, factor", [(32, 8), (48, 6), (255, 2), (256, 1), (480, 1)])
def test_enlarging_repeats_pixels(height, factor):
    frames = np.arange(height * 4 * 3, dtype=np.uint32).astype(np.uint8).reshape(1, height, 4, 3)
    large = enlarge(frames, 256)
    assert large.shape == (1, height * factor, 4 * factor, 3)
    assert np.array_equal(large[:, ::factor, ::factor], frames)
    assert np.array_equal(large[:, factor - 1 :: factor, factor - 1 :: factor], frames)


def test_sizes_that_differ_are_refused():
    with pytest.raises(UserError, match=r"\[3, 32, 32, 3\] and \[4, 32, 32, 3\]"):
        side_by_side(scene(3), scene(4))


# contact sheet


def sheet_video(frames: int = 12, chunks: int = 4, **changes) -> SheetVideo:
    reference = scene(frames)
    fields = {
        "title": "video 0: a yellow square moves right",
        "run": noisy(reference, 20),
        "reference": reference,
        "frames_of_chunk": [frames // chunks] * chunks,
        "letters": ["FFFF", "FPRF", "FRRF", "FRRF"] * (chunks // 4),
        "fractions": [1.0, 0.6, 0.5, 0.5] * (chunks // 4),
        "values": {"LPIPS": [0.0, 0.1, 0.4, 0.2] * (chunks // 4), "PSNR": [None, 40.0, 30.0, 31.5] * (chunks // 4)},
    }
    return SheetVideo(**(fields | changes))


def picture_at(sheet: np.ndarray, head: int, row: int, column: int, size: int = 160) -> np.ndarray:
    top = head + 66 + row * (size + sheets.GUTTER)
    left = sheets.MARGIN + sheets.NAMES + column * (size + sheets.GUTTER)
    return sheet[top : top + size, left : left + size]


def test_sheet_shows_the_middle_frame_of_each_chunk_in_three_rows(tmp_path):
    video = sheet_video()
    path = contact_sheet(tmp_path / "sheet.png", [video], title="motioncache 0.3 FxxF", subtitle="PSNR 31 dB")
    sheet = np.asarray(Image.open(path))
    rows = (video.reference, video.run, difference(video.run, video.reference))
    for row, clip in enumerate(rows):
        for column, frame in enumerate((1, 4, 7, 10)):
            assert np.array_equal(picture_at(sheet, 76, row, column), enlarge(clip, 160)[frame])
    assert [entry.name for entry in tmp_path.iterdir()] == ["sheet.png"]


def test_every_line_of_words_is_there(tmp_path):
    sheet = np.asarray(Image.open(contact_sheet(tmp_path / "s.png", [sheet_video()], title="a title", subtitle="more")))
    left = sheets.MARGIN + sheets.NAMES
    bottom = 76 + 66 + 3 * (160 + sheets.GUTTER)
    assert inked(sheet[:45]) > 100 and inked(sheet[45:76]) > 30, "title, subtitle"
    assert inked(sheet[85:110]) > 100, "prompt"
    for row in range(3):
        assert inked(sheet[142 + 168 * row :, :left][:160]) > 100, "row name"
    for line in range(4):
        strip = sheet[bottom + 30 * line : bottom + 30 * (line + 1)]
        assert inked(strip[:, :left]) > 50, "line name"
        for column in range(4):
            assert inked(strip[:, left + 168 * column :][:, :160]) > 30, "trace, computed, LPIPS or PSNR of a chunk"
    assert inked(sheet[-46:]) > 300, "legend"


def red(picture: np.ndarray) -> bool:
    return bool(((picture[..., 0] > 150) & (picture[..., 1] < 80)).any())


def test_the_worst_chunk_alone_is_red(tmp_path):
    sheet = np.asarray(Image.open(contact_sheet(tmp_path / "s.png", [sheet_video()], title="t", subtitle="s")))
    left, bottom = sheets.MARGIN + sheets.NAMES, 76 + 66 + 3 * 168
    for line in (2, 3):
        strip = sheet[bottom + 30 * line : bottom + 30 * (line + 1)]
        assert [red(strip[:, left + 168 * column :][:, :160]) for column in range(4)] == [False, False, True, False]


@pytest.mark.parametrize("values", [[None, None], [0.0, 0.0], [0.3]])
def test_no_chunk_is_worst_where_all_are_alike(values):
    assert sheets._worst("LPIPS", values) is sheets._worst("PSNR", values) is None


def test_many_chunks_are_thinned_out_and_the_last_is_kept(tmp_path):
    columns, frames = sheets._picked([3] * 40)
    assert len(columns) == 10 and columns[0] == 0 and columns[-1] == 39 and frames[-1] == 118
    path = contact_sheet(tmp_path / "s.png", [sheet_video(frames=40, chunks=40)], title="long")
    assert Image.open(path).width < 2000


def test_a_reference_run_has_one_row(tmp_path):
    one = Image.open(contact_sheet(tmp_path / "a.png", [sheet_video(reference=None)], title="FFFF"))
    three = Image.open(contact_sheet(tmp_path / "b.png", [sheet_video()], title="FFFF"))
    assert three.height - one.height == 2 * 168


def test_large_frames_are_shrunk(tmp_path):
    big = np.repeat(np.repeat(scene(4), 15, axis=1), 26, axis=2)  # 480 x 832
    video = sheet_video(frames=4, run=big, reference=big, values={})
    assert Image.open(contact_sheet(tmp_path / "s.png", [video], title="big")).width == 20 + 118 + 4 * 328 + 20


def test_two_videos_and_missing_values(tmp_path):
    bare = sheet_video(letters=(), fractions=(), values={"LPIPS": [None] * 4})
    both = Image.open(contact_sheet(tmp_path / "s.png", [sheet_video(), bare], title="t"))
    assert both.height == 50 + 2 * (66 + 3 * 168 + 12) + 30 * (4 + 1) + 46


def test_sheets_of_nothing_or_of_two_sizes_are_refused(tmp_path):
    with pytest.raises(UserError, match="at least one video"):
        contact_sheet(tmp_path / "s.png", [], title="t")
    with pytest.raises(UserError, match="one size"):
        contact_sheet(tmp_path / "s.png", [sheet_video(reference=scene(13))], title="t")
    assert not list(tmp_path.iterdir())


def test_long_text_shrinks_then_is_cut():
    from PIL import ImageDraw

    draw = ImageDraw.Draw(Image.new("RGB", (10, 10)))
    assert fitting(draw, "short", 300, 17, False) == ("short", 17)
    text, size = fitting(draw, "many\n words " * 30, 300, 17, False)
    assert size == 11 and text.endswith("…") and "\n" not in text and draw.textlength(text, font(11)) <= 300
