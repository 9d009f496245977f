"""W&B, or nothing: one W&B run per job, always finished, failures marked. The only file that knows W&B.

W&B is a copy for looking at; the run folder holds the truth and is enough to redraw everything.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastcache.errors import UserError

MAX_VIDEOS = 3
CHUNK_SCORES = ("compute_fraction", "psnr", "ssim", "lpips")
CONNECT_TIMEOUT = 30  # seconds, online


class Tracker:
    """What a job may tell W&B. Does nothing where ``run`` is None."""

    def __init__(self, run: Any = None):
        self.run = run

    def log_scores(self, scores: Mapping[str, Any], trace: Mapping[str, Any] | None = None) -> None:
        """Every single value of scores.json as summary, its protocol as config, and one table row per chunk, with the
        letters of trace.json."""
        if self.run is None:
            return
        self.run.summary.update({k: v for k, v in scores.items() if v is None or isinstance(v, int | float | str)})
        self.run.config.update({"protocol": scores.get("protocol", {})}, allow_val_change=True)
        rows = chunk_rows(scores, trace or {})
        if rows:
            import wandb

            table = wandb.Table(columns=["video", "prompt", "chunk", "trace", *CHUNK_SCORES], data=rows)
            self.run.log({"chunks": table})

    def log_media(self, sheet: Path | None = None, videos: Sequence[Path] = ()) -> None:
        """The contact sheet and the first three mp4 files, each by its path; missing files are passed over."""
        if self.run is None:
            return
        import wandb

        media: dict[str, Any] = {}
        if sheet is not None and Path(sheet).is_file():
            media["sheet"] = wandb.Image(str(sheet))
        for path in [Path(video) for video in videos if Path(video).is_file()][:MAX_VIDEOS]:
            media[f"video_{path.stem}"] = wandb.Video(str(path), format="mp4")
        if media:
            self.run.log(media)


@contextmanager
def tracked(
    config: Mapping[str, Any],
    *,
    mode: str,
    name: str,
    id: str,
    dir: Path | str,
    project: str = "fastcache",
    entity: str | None = None,
    group: str | None = None,
    job_type: str = "eval",
    tags: Sequence[str] = (),
) -> Iterator[Tracker]:
    """A W&B run for the time of a job, its files under ``dir``/wandb. An exception inside marks it failed and goes on.

    ``config`` is a plain, resolved dict; ``id`` is the run's signature, so the same settings are the same W&B run.
    Raises UserError on an unknown mode and, online, without a key or an answer.
    """
    if mode not in ("offline", "online", "disabled"):
        raise UserError(f"tracking.mode={mode}: expected offline, online or disabled; e.g. tracking=offline")
    if mode == "disabled":
        yield Tracker()
        return
    fields: dict[str, Any] = {"id": id, "name": name, "project": project, "entity": entity, "group": group}
    fields |= {"job_type": job_type, "tags": [*tags, *filter(None, [describe()])], "config": dict(config), "mode": mode}
    with _staged_in(Path(dir) / "wandb"):
        run = _start(fields, Path(dir))
        try:
            yield Tracker(run)
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish(exit_code=0)


def chunk_rows(scores: Mapping[str, Any], trace: Mapping[str, Any]) -> list[list[Any]]:
    """One row per chunk of each video: video, prompt, chunk, letters, then CHUNK_SCORES; None where unknown."""
    rows = []
    for video, entry in enumerate(scores.get("per_video", [])):
        series = entry.get("per_chunk", {})
        letters = [chunk.get("letters") for chunk in _item(trace.get("videos", []), video, {}).get("chunks", [])]
        for chunk in range(max([len(letters), *(len(values) for values in series.values())])):
            values = [_item(series.get(name, []), chunk) for name in CHUNK_SCORES]
            rows.append([video, entry.get("prompt"), chunk, _item(letters, chunk), *values])
    return rows


def has_key() -> bool:
    """Whether W&B has a key here, from the environment or `wandb login`. Asks nobody."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return bool(wandb.login(prompt=False))


def entity() -> str:
    """The default entity of the account that the key belongs to."""
    import wandb

    return str(wandb.Api(timeout=CONNECT_TIMEOUT).default_entity)


def describe() -> str | None:
    """``git describe --always --dirty`` of the checkout this package lies in; None outside one."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--tags"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()[:64] or None
    return None


@contextmanager
def _staged_in(folder: Path) -> Iterator[None]:
    """W&B keeps the files of tables until they are uploaded: have it do so in the run's folder, not in the home of
    whoever runs, so that an offline run can be moved and synced. A place that the user set stays."""
    if "WANDB_DATA_DIR" in os.environ:
        yield
        return
    os.environ["WANDB_DATA_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("WANDB_DATA_DIR", None)


def _start(fields: dict[str, Any], folder: Path) -> Any:
    """wandb.init, silent. Raises UserError whatever keeps it from starting."""
    os.environ.setdefault("WANDB_SILENT", "true")  # W&B reads both when it is first imported
    if fields["mode"] == "offline":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would look up a host name
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, init_timeout=CONNECT_TIMEOUT)
    if fields["mode"] == "online":
        fields = fields | {"resume": "allow"}  # offline there is nothing to resume
    try:
        return wandb.init(dir=str(folder), settings=quiet, **fields)
    except wandb.errors.UsageError as error:
        raise UserError(f"W&B refused: {_first_line(error)} Type `wandb login`, or tracking=offline") from error
    except Exception as error:  # no network, no server, a server's own error
        hint = "with tracking=offline the run is kept on disk for `wandb sync`"
        raise UserError(f"W&B did not start: {_first_line(error)}; {hint}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _item(values: Sequence[Any], index: int, default: Any = None) -> Any:
    return values[index] if index < len(values) else default
