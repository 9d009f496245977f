"""A run on disk: the folder its signature names, what is done and what is missing, and its reference. No torch.

Files appear whole or not at all (written aside, then renamed); ``done.json`` comes last. One process writes a folder at
a time: it holds a lock that ends with the process, so nothing that a killed one leaves behind blocks the next.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fastcache import encoders
from fastcache.errors import UserError
from fastcache.files import read_yaml, written_aside
from fastcache.settings import Settings, guided, number

SIGNED = ("model", "engine", "sampler", "method", "schedule", "prompts", "frames", "seed", "device", "dtype")


def signed(s: Settings) -> dict[str, Any]:
    """What can change a pixel: the settings without names, paths, metrics and switches; weights by their hash."""
    payload = {key: s[key] for key in SIGNED}
    payload["device"] = str(s["device"]).partition(":")[0]
    payload["weights"] = s["weights"] and s["weights"]["sha256"]
    payload["rescale"] = s["rescale"]["signed"]
    payload |= guided(s)
    payload["model"] = {key: value for key, value in s["model"].items() if key not in encoders.OPTIONS}
    payload |= {"encoders": s["encoders"]} if s.get("encoders") else {}
    payload |= {kind: s[kind]["sha256"] for kind in ("image", "control") if s.get(kind)}
    return _canonical(payload)


def signature(s: Settings) -> str:
    """Eight hex digits that name a run."""
    text = json.dumps(signed(s), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def folder_name(s: Settings) -> str:
    """<method>-<dial>-<schedule>-<signature>"""
    dial = "nodial" if s["dial"] is None else number(s["dial"])
    return f"{s['choices']['method']}-{dial}-{s['schedule']}-{signature(s)}"


class Busy(UserError):
    """Another process is writing the folder."""


@dataclass(frozen=True)
class Folder:
    """The folder of one run of ``count`` videos."""

    path: Path
    signature: str
    count: int

    @classmethod
    def of(cls, s: Settings) -> "Folder":
        return cls(Path(s["outputs"]).expanduser().absolute() / folder_name(s), signature(s), s["num_videos"])

    @classmethod
    def open(cls, path: Path) -> "Folder":
        """A finished run of whatever settings. Raises UserError where there is none."""
        done = read_json(path / "done.json")
        if not isinstance(done, dict) or not {"signature", "num_videos"} <= done.keys():
            raise UserError(f"{path} is not a finished run: no done.json; expected a folder of outputs/")
        return cls(path, str(done["signature"]), int(done["num_videos"]))

    @property
    def finished(self) -> bool:
        done = read_json(self.path / "done.json")
        return isinstance(done, dict) and done.get("signature") == self.signature and not self.missing()

    def missing(self) -> list[int]:
        """Videos still to be made."""
        return [
            i for i in range(self.count) if not (self._video(i, "npz").is_file() and self._video(i, "json").is_file())
        ]

    def save_frames(self, idx: int, frames: np.ndarray) -> None:
        """Keep frames uint8 [T, H, W, 3] without loss. The video counts as made once save_info has followed."""
        with written_aside(self._video(idx, "npz")) as path, path.open("wb") as file:
            np.savez_compressed(file, frames=frames)

    def save_info(self, idx: int, info: Mapping[str, Any]) -> None:
        """Keep what was noted while a video was made: its trace, times and sizes."""
        write_json(self._video(idx, "json"), info)

    def frames(self, idx: int) -> np.ndarray:
        """Frames uint8 [T, H, W, 3]. Raises UserError if the file is missing or damaged."""
        path = self._video(idx, "npz")
        try:
            with np.load(path) as file:
                return file["frames"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} cannot be read ({error}); make the run again with force=true") from None

    def info(self, idx: int) -> dict[str, Any]:
        """What save_info was given."""
        info = read_json(self._video(idx, "json"))
        if not isinstance(info, dict):
            raise UserError(f"{self._video(idx, 'json')} is missing or damaged; make the run again with force=true")
        return info

    def mp4(self, idx: int) -> Path:
        return self._video(idx, "mp4")

    def settings(self) -> dict[str, Any]:
        """config.yaml as it was written."""
        loaded = read_yaml(self.path / "config.yaml")
        return loaded if isinstance(loaded, dict) else {}

    def scores(self) -> dict[str, Any] | None:
        scores = read_json(self.path / "scores.json")
        return scores if isinstance(scores, dict) else None

    def start(self, s: Settings) -> None:
        """Make the folder ready to be filled; with force=true, empty it first."""
        if s["force"]:
            (self.path / "done.json").unlink(missing_ok=True)
            shutil.rmtree(self.path / "videos", ignore_errors=True)
            for name in ("scores.json", "trace.json", "sheet.png", "failed.json"):
                (self.path / name).unlink(missing_ok=True)
        (self.path / "videos").mkdir(parents=True, exist_ok=True)
        self.describe(s)

    def describe(self, s: Settings) -> None:
        """Write config.yaml: every setting of the run, and its signature."""
        text = yaml.safe_dump(s | {"signature": self.signature}, sort_keys=False, allow_unicode=True, width=120)
        write_text(self.path / "config.yaml", text)

    def failure(self) -> str | None:
        """Why the last attempt failed, or None."""
        failed = read_json(self.path / "failed.json")
        return str(failed.get("error")) if isinstance(failed, dict) else None

    def fail(self, error: Exception) -> None:
        """Keep what went wrong in failed.json; nothing, where another process is at work."""
        if isinstance(error, Busy):
            return
        told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        kept = {"error": told, "type": type(error).__name__, "traceback": traceback.format_exception(error)}
        with suppress(OSError):  # a full disk, say: the error itself has been printed
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / "failed.json", kept | {"time": _now()})

    def finish(self) -> None:
        """Everything is there: say so, last of all."""
        (self.path / "failed.json").unlink(missing_ok=True)
        if self.finished:
            return
        write_json(self.path / "done.json", {"signature": self.signature, "num_videos": self.count, "time": _now()})

    @contextmanager
    def lock(self, wait: bool = False, say: Callable[[str], None] | None = None) -> Iterator[None]:
        """Be the only writer. Raises UserError if another process is, unless ``wait``."""
        with locked(self.path / ".lock", wait, say):
            yield

    def _video(self, idx: int, kind: str) -> Path:
        return self.path / "videos" / f"{idx}.{kind}"


def find_run(outputs: str, name: str) -> Folder:
    """The finished run of a signature under ``outputs``, or of a folder. Raises UserError where there is none."""
    if Path(name).expanduser().is_dir():
        return Folder.open(Path(name).expanduser().absolute())
    root = Path(outputs).expanduser().absolute()
    found = [path.parent for path in sorted(root.glob(f"*-{name}/done.json"))] if "/" not in name else []
    if not found:
        raise UserError(
            f"reference={name}: no finished run of that signature in {root}, no such folder; reference=auto makes one"
        )
    return Folder.open(found[0])


def differing(s: Settings, other: Mapping[str, Any]) -> list[str]:
    """The signed keys in which two runs differ beyond method, schedule and engine: "frames: 21 here, 6 there"."""
    ours = signed(s)
    try:
        theirs = signed(dict(other))
        theirs["prompts"] = theirs["prompts"][: len(ours["prompts"])]  # more videos there do no harm
    except (KeyError, AttributeError, TypeError):
        return ["config.yaml: not readable there"]
    keys = [key for key in ours | theirs if key not in ("method", "schedule", "engine", "rescale")]
    pairs = [(key, ours.get(key), theirs.get(key)) for key in keys]  # some keys are there only where they are used
    return [f"{key}: {_short(here)} here, {_short(there)} there" for key, here, there in pairs if here != there]


def check_writable(outputs: str, try_it: bool = True, name: str = "outputs=") -> None:
    """Raise UserError unless files can be written under ``outputs``; ``try_it`` makes the folder to find out. ``name``
    is how the command line calls it."""
    root = Path(outputs).expanduser().absolute()
    try:
        if try_it:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                return
        near = next(path for path in (root, *root.parents) if path.exists())
        if not near.is_dir() or not os.access(near, os.W_OK | os.X_OK):
            raise PermissionError(f"{near} is not a folder that can be written")
    except OSError as error:
        raise UserError(
            f"{name}{outputs} cannot be written ({error.strerror or error}); choose another: {name}DIR"
        ) from None


@contextmanager
def locked(path: Path, wait: bool = False, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a lock file, for as long as this process lives at most. Raises UserError if another process holds it, unless
    ``wait``; ``say`` is told who is waited for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read() or "another process"
            if not wait:
                raise Busy(f"{path.parent} is being written by {owner}; let it finish") from None
            if say is not None:
                say(f"waiting for {owner}, which is making {path.parent.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(
                f"{path.parent} is on a file system without locks ({error}); choose another outputs="
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def write_json(path: Path, value: Any) -> None:
    """Strict JSON, whole or not at all. Raises ValueError on NaN and Infinity."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def read_json(path: Path) -> Any:
    """The value, or None where the file is missing or no JSON."""
    with suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _canonical(value: Any) -> Any:
    """Equal settings in equal form: 0 and 0.0, tuples and lists."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
