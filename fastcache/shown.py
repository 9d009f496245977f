"""Pictures and control videos that a run is given: which files, and their frames at the model's size. No torch.

A picture or frame of another size is enlarged or reduced until it covers the model's frame and is cut to it about its
centre, so nothing is stretched.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fastcache.errors import UserError

KINDS = ("image", "control")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".webm", ".mov", ".mkv", ".avi", ".gif")


def resolve(kind: str, value: Any, videos: int) -> dict[str, Any] | None:
    """What image= or control= names, as {path, sha256, files: one a video}; None for auto.

    image=: a picture for every video, or a folder of them, one a video in the order of their names. control=: a video,
    a folder of its frames, or a folder of videos, one a video. Raises UserError where there is nothing of the kind.
    """
    if value in (None, "auto"):
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
    return {"path": str(path), "sha256": _sha256(files, kind), "files": [str(file) for file in files]}


def read(kind: str, file: str | Path, size: tuple[int, int]) -> np.ndarray:
    """A picture uint8 [height, width, 3], or a control video uint8 [T, height, width, 3], at ``size`` (height, width).

    Raises UserError where it cannot be read.
    """
    path = Path(file)
    if kind == "image":
        return _fitted(_picture(kind, path), size)
    frames = [_picture(kind, frame) for frame in listed(path, PICTURES)] if path.is_dir() else _video(path)
    return np.stack([_fitted(frame, size) for frame in frames])


def listed(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Files of a folder with one of the suffixes, by name; numbers count as numbers (2.png before 10.png)."""
    if not folder.is_dir():
        return []
    files = [path for path in folder.iterdir() if path.suffix.lower() in suffixes]
    return sorted(files, key=lambda path: (not path.stem.isdigit(), int(path.stem) if path.stem.isdigit() else 0, path))


def _fitted(picture: Image.Image, size: tuple[int, int]) -> np.ndarray:
    height, width = size
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture)


def _picture(kind: str, path: Path) -> Image.Image:
    try:
        with Image.open(path) as picture:
            return ImageOps.exif_transpose(picture).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError) as error:
        raise UserError(f"{kind}={path} cannot be read as a picture: {error}") from None


def _video(path: Path) -> list[Image.Image]:
    import av

    try:
        with av.open(str(path)) as container:
            frames = [Image.fromarray(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    except (av.error.FFmpegError, IndexError, ValueError, OSError) as error:
        raise UserError(f"control={path} cannot be read as a video: {error}") from None
    if not frames:
        raise UserError(f"control={path} holds no frames")
    return frames


def _sha256(files: list[Path], kind: str) -> str:
    """Over the bytes of all files in order."""
    digest = hashlib.sha256()
    for file in files:
        for part in listed(file, PICTURES) if file.is_dir() else [file]:
            try:
                digest.update(part.read_bytes())
            except OSError as error:
                raise UserError(f"{kind}={part} cannot be read: {error}") from None
    return digest.hexdigest()
