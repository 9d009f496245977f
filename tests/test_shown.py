"""Reading what image= and control= name: every kind of file, at the model's size, or a sentence."""

import random

import numpy as np
import pytest
from PIL import Image

from fastcache import shown
from fastcache.errors import UserError
from fastcache.media import write_mp4

SIZE = (16, 24)  # height, width
RED, GREEN = (200, 30, 30), (30, 200, 30)


def halves(height=16, width=24):
    """Red to the left, green to the right."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:, : width // 2], pixels[:, width // 2 :] = RED, GREEN
    return pixels


def save(path, picture, **options):
    picture = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    picture.save(path, **options)
    return path


def is_halves(pixels, near=12):
    error = np.abs(pixels.astype(int) - halves())
    return pixels.shape == (*SIZE, 3) and pixels.dtype == np.uint8 and error[:, :10].max() <= near


def test_a_picture_of_the_right_size_is_taken_pixel_by_pixel(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    for name in ("a.png", "a.bmp", "a.PNG"):
        read = shown.read("image", save(tmp_path / name, noise), SIZE)
        assert (read == noise).all() and read.flags.writeable


def rotated(path):
    """A camera held sideways: the pixels are turned, a mark says how to turn them back."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return save(path, np.rot90(halves()).copy(), exif=exif, quality=95, subsampling=0)


MODES = {
    "jpeg": lambda path: save(path.with_suffix(".jpg"), halves(), quality=95, subsampling=0),
    "webp": lambda path: save(path.with_suffix(".webp"), halves(), lossless=True),
    "turned by EXIF": lambda path: rotated(path.with_suffix(".jpg")),
    "palette": lambda path: save(path, Image.fromarray(halves()).quantize(4)),
    "opaque alpha": lambda path: save(path, Image.fromarray(halves()).convert("RGBA")),
    "CMYK": lambda path: save(path.with_suffix(".jpg"), Image.fromarray(halves()).convert("CMYK"), quality=95),
}


@pytest.mark.parametrize("make", MODES.values(), ids=MODES.keys())
def test_every_mode_of_picture_comes_to_the_same_pixels(tmp_path, make):
    assert is_halves(shown.read("image", make(tmp_path / "a.png"), SIZE))


def test_what_is_transparent_is_black(tmp_path):
    clear = Image.fromarray(halves()).convert("RGBA")
    clear.putalpha(Image.fromarray(np.where(np.arange(24) < 12, 255, 0).astype(np.uint8)[None].repeat(16, 0)))
    palette = Image.new("P", (24, 16), 1)
    palette.putpalette([*RED, *GREEN])
    palette.paste(0, (0, 0, 12, 16))
    for picture, options in ((clear, {}), (palette, {"transparency": 1})):
        read = shown.read("image", save(tmp_path / "a.png", picture, **options), SIZE)
        assert (read[:, :12] == RED).all() and (read[:, 12:] == 0).all()


def test_greys_of_8_and_16_bits(tmp_path):
    ramp = np.linspace(0, 255, 24).round().astype(np.uint8)[None].repeat(16, 0)
    for grey in (ramp, ramp.astype(np.uint16) * 257):
        read = shown.read("image", save(tmp_path / "a.png", grey), SIZE)
        assert (read == ramp[..., None]).all()
    one_bit = Image.fromarray(halves()[..., 1] > 100)
    assert set(np.unique(shown.read("image", save(tmp_path / "a.png", one_bit), SIZE))) == {0, 255}


@pytest.mark.parametrize(("height", "width"), [(16, 60), (160, 600), (40, 24), (400, 240), (5, 9), (16, 24), (1, 1)])
def test_another_aspect_ratio_is_covered_and_cut_about_its_centre(tmp_path, height, width):
    """Coordinates as colors: what is kept is the centred rectangle of the model's shape, scaled evenly."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    pixels = np.stack([255 * y / height, 255 * x / width, np.full_like(x, 90)], -1).round().astype(np.uint8)
    read = shown.read("image", save(tmp_path / "a.png", pixels), SIZE).astype(float)
    assert read.shape == (*SIZE, 3)
    scale = max(SIZE[0] / height, SIZE[1] / width)
    kept = SIZE[0] / scale / height, SIZE[1] / scale / width
    assert max(kept) == pytest.approx(1)
    if min(height, width) < 16:
        return
    for axis, channel in ((0, 0), (1, 1)):
        line = read[..., channel].mean(1 - axis)
        middle = (SIZE[axis] - 1) / 2
        slope, at = np.polyfit(np.arange(SIZE[axis])[2:-2], line[2:-2], 1)
        assert slope * SIZE[axis] == pytest.approx(255 * kept[axis], rel=0.05)
        assert slope * middle + at == pytest.approx(127.5, abs=4)


def moving(frames=6):
    """A grey that brightens, so that frames can be told apart."""
    return np.stack([np.full((*SIZE, 3), 20 + 19 * t, np.uint8) for t in range(frames)])


def test_an_mp4_is_read_frame_by_frame(tmp_path):
    path = write_mp4(tmp_path / "a.mp4", moving())
    read = shown.read("control", path, SIZE)
    assert read.shape == (6, *SIZE, 3)
    assert np.abs(read.astype(int) - moving()).max() <= 6
    assert (shown.read("control", path, SIZE, most=2) == read[:2]).all()
    assert shown.read("control", path, (8, 8)).shape == (6, 8, 8, 3)


def test_a_folder_of_frames_is_read_in_the_order_of_their_numbers(tmp_path):
    for t, frame in enumerate(moving(12)):
        save(tmp_path / f"frame_{t}.png", frame)
    (tmp_path / "notes.txt").write_text("not a frame")
    (tmp_path / ".frame_0.png").write_text("nor is this")
    (tmp_path / "old.png").mkdir()
    assert (shown.read("control", tmp_path, SIZE) == moving(12)).all()
    assert (shown.read("control", tmp_path, SIZE, most=3) == moving(3)).all()


@pytest.mark.parametrize("names", [
    ["1.png", "2.png", "10.png"], ["a1.png", "a2.png", "a10.png"], ["001.png", "2.png", "010.png"],
    ["1.png", "10.png", "b.png"], ["x1y9.png", "x1y10.png", "x2y1.png"], ["a.png", "b2.png", "b10.png", "²².png"],
])  # fmt: skip
def test_numbers_in_names_count_as_numbers(tmp_path, names):
    for name in random.Random(0).sample(names, len(names)):
        (tmp_path / name).touch()
    assert [path.name for path in shown.listed(tmp_path, (".png",))] == names


def test_one_file_serves_every_video_and_a_folder_has_one_each(tmp_path):
    for name in ("2.png", "10.png", "1.png"):
        save(tmp_path / name, halves())
    one = shown.resolve("image", str(tmp_path / "2.png"), 3)
    assert one["files"] == [str(tmp_path / "2.png")] * 3
    each = shown.resolve("image", tmp_path, 2)
    assert each["files"] == [str(tmp_path / name) for name in ("1.png", "2.png")]
    frames = shown.resolve("control", tmp_path, 2)
    assert frames["files"] == [str(tmp_path)] * 2  # pictures are the frames of one control video
    for name in ("b.mp4", "a.mp4"):
        write_mp4(tmp_path / name, moving())
    videos = shown.resolve("control", tmp_path, 2)
    assert videos["files"] == [str(tmp_path / name) for name in ("a.mp4", "b.mp4")]


@pytest.mark.parametrize("value", [None, "auto", ""])
def test_auto_names_nothing(value):
    assert shown.resolve("image", value, 2) is None


def test_the_hash_is_of_bytes_and_their_order_not_of_names(tmp_path):
    def made(folder, *colors):
        path = tmp_path / folder
        path.mkdir()
        for i, color in enumerate(colors):
            save(path / f"{folder}{i}.png", np.full((4, 4, 3), color, np.uint8))
        return path

    a, same, swapped, other = made("a", 1, 2), made("b", 1, 2), made("c", 2, 1), made("d", 1, 3)
    for kind in shown.KINDS:
        hashes = [
            shown.resolve(kind, path, 1 if kind == "control" else 2)["sha256"] for path in (a, same, swapped, other)
        ]
        assert hashes[0] == hashes[1] and len(set(hashes)) == 3
    assert shown.resolve("image", a, 1)["sha256"] != shown.resolve("image", a, 2)["sha256"]


def test_nothing_of_the_kind_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").touch()
    save(tmp_path / "a.png", halves())
    for kind, what in (("image", "a picture"), ("control", "a video")):
        with pytest.raises(UserError, match=f"{kind}=.*no such file or folder; expected {what}.*or {kind}=auto"):
            shown.resolve(kind, tmp_path / "nowhere.png", 1)
        for folder in ("empty", "texts"):
            with pytest.raises(UserError, match=f"{folder} holds no .* files; expected {what}"):
                shown.resolve(kind, tmp_path / folder, 1)
    with pytest.raises(UserError, match="holds 1 files for 3 videos; try num_videos=1"):
        shown.resolve("image", tmp_path, 3)


def damaged(path, kind):
    rng = random.Random(1)
    whole = path.read_bytes()
    if kind == "cut":
        return whole[: len(whole) // 2]
    if kind == "empty":
        return b""
    if kind == "text":
        return b"this is no picture"
    spoilt = bytearray(whole)
    for _ in range(40):
        spoilt[rng.randrange(8, len(spoilt))] = rng.randrange(256)
    return bytes(spoilt)


@pytest.mark.parametrize("kind", ["cut", "empty", "text", "spoilt"])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".bmp"])
def test_a_damaged_picture_is_refused_or_read(tmp_path, kind, suffix):
    """Spoilt bytes may still be a picture where there is no checksum; all else is a sentence that names the file."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    path = save(tmp_path / f"a{suffix}", noise)
    path.write_bytes(damaged(path, kind))
    try:
        assert shown.read("image", path, SIZE).shape == (*SIZE, 3)
        assert kind == "spoilt"
    except UserError as error:
        assert str(path) in str(error) and "cannot be read as a picture" in str(error)


@pytest.mark.parametrize("kind", ["cut", "empty", "text"])
def test_a_damaged_video_is_refused(tmp_path, kind):
    path = write_mp4(tmp_path / "a.mp4", moving())
    path.write_bytes(damaged(path, kind))
    with pytest.raises(UserError, match="control=.*a.mp4 (cannot be read as a video|holds no frames)"):
        shown.read("control", path, SIZE)


def test_a_picture_is_no_image_folder_and_a_sound_no_video(tmp_path):
    import av

    with pytest.raises(UserError, match="cannot be read as a picture"):
        shown.read("image", tmp_path, SIZE)
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(UserError, match="cannot be read as a video"):
        shown.read("control", tmp_path / "a.mp4", SIZE)
