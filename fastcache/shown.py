"""Pictures and control videos that a run is given: which files, and their frames at the model's size. No torch.

A picture or frame of another size is enlarged or reduced until it covers the model's frame and is cut to it about its
centre, so nothing is stretched. Cameras' rotation marks are followed; what is transparent is black.
"""

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fastcache.errors import UserError

KINDS = ("image", "control")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".webm", ".mov", ".mkv", ".avi", ".gif")


def resolve(kind: str, value: Any, videos: int) -> dict[str, Any] | None:
    """What image= or control= names, as {path, sha256, files: one a video}; None for auto.

    image=: a picture for every video, or a folder of them, one a video in the order of their names. control=: a video,
    a folder of its frames, or a folder of videos, one a video. Raises UserError where there is nothing of the kind.
    """
    if value in (None, "", "auto"):
        return None
    path = Path(str(value)).expanduser().absolute()
    wanted = PICTURES if kind == "image" else VIDEOS
    what = "a picture (PNG, JPEG)" if kind == "image" else "a video (mp4) or a folder of frames"
    if path.is_file():
        files = [path] * videos
    elif path.is_dir():
        files = listed(path, wanted)
        if kind == "control" and not files and listed(path, PICTURES):
            files = [path] * videos
    else:
        raise UserError(f"{kind}={path}: no such file or folder; expected {what}, or {kind}=auto")
    if not files:
        raise UserError(f"{kind}={path} holds no {' or '.join(wanted[:2])} files; expected {what}")
    if len(files) < videos:
        raise UserError(f"{kind}={path} holds {len(files)} files for {videos} videos; try num_videos={len(files)}")
    files = files[:videos]
    return {"path": str(path), "sha256": _sha256(kind, files), "files": [str(file) for file in files]}


def check(settings: Mapping[str, Any], needs: Sequence[str]) -> None:
    """Raise UserError where image= or control= is given to a model that ``needs`` no such thing."""
    for kind in KINDS:
        if settings[kind] and kind not in needs:
            model = settings["choices"]["model"]
            takes = " and ".join(f"{need}=" for need in needs) or "neither image= nor control="
            raise UserError(f"{kind}={settings[kind]['path']}: model={model} takes {takes}; leave {kind}= out")


def read(kind: str, file: str | Path, size: tuple[int, int], most: int | None = None) -> np.ndarray:
    """A picture uint8 [height, width, 3], or a control video uint8 [T, height, width, 3], at ``size`` (height, width).

    Of a video at most the first ``most`` frames are read. Raises UserError where it cannot be read.
    """
    path = Path(file)
    if kind == "image":
        return _fitted(_picture(kind, path), size)
    if path.is_dir():
        return np.stack([_fitted(_picture(kind, frame), size) for frame in listed(path, PICTURES)[:most]])
    return _video(path, size, most)


def listed(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Files of a folder with one of the suffixes, by name; numbers count as numbers (2.png before 10.png)."""
    try:
        files = [path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.is_file()]
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted((path for path in files if not path.name.startswith(".")), key=_in_order)


def _in_order(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Parts of the name that are numbers compare as numbers and come before words."""
    parts = [part for part in re.split(r"([0-9]+)", path.stem) if part]
    return [(int(part), "") if part[0] in "0123456789" else (sys.maxsize, part) for part in parts], path.name


def _fitted(picture: Image.Image, size: tuple[int, int]) -> np.ndarray:
    height, width = size
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return np.array(picture)  # a copy: torch wants to be able to write


def _picture(kind: str, path: Path) -> Image.Image:
    try:
        with Image.open(path) as picture:
            return _plain(ImageOps.exif_transpose(picture))
    except (OSError, Image.DecompressionBombError, ValueError, SyntaxError) as error:  # what Pillow raises on damage
        raise UserError(f"{kind}={path} cannot be read as a picture: {error}") from None


def _plain(picture: Image.Image) -> Image.Image:
    """RGB of any mode: 16-bit greys scaled, transparency over black."""
    if picture.mode.startswith("I"):
        grey = np.asarray(picture, dtype=np.float64) / 257
        return Image.fromarray(grey.clip(0, 255).round().astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        clear = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, (0, 0, 0, 255)), clear).convert("RGB")
    return picture.convert("RGB")


def _video(path: Path, size: tuple[int, int], most: int | None) -> np.ndarray:
    import av

    try:
        with av.open(str(path)) as container:
            shown = islice(container.decode(video=0), most)
            frames = [_fitted(Image.fromarray(frame.to_ndarray(format="rgb24")), size) for frame in shown]
    except (av.error.FFmpegError, IndexError, ValueError, OSError) as error:
        raise UserError(f"control={path} cannot be read as a video: {error}") from None
    if not frames:
        raise UserError(f"control={path} holds no frames that can be read")
    return np.stack(frames)


def _sha256(kind: str, files: Sequence[Path]) -> str:
    """Over the bytes of all files in order; the frames of a folder are its bytes."""
    known: dict[Path, bytes] = {}
    digest = hashlib.sha256()
    for file in files:
        if file not in known:
            parts = listed(file, PICTURES) if file.is_dir() else [file]
            known[file] = b"".join(_hash(kind, part) for part in parts)
        digest.update(known[file])
    return digest.hexdigest()


def _hash(kind: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UserError(f"{kind}={path} cannot be read: {error}") from None
