"""W&B, or nothing: what is told to it. One W&B run per job, always finished, failures marked.

The only door to W&B: its client, how it is started and ended, is ``wandb_client``, which no other file imports.
W&B is a copy for looking at; the run folder holds the truth and is enough to redraw everything. So once a job has
started, W&B cannot make it fail: what a server does not take is kept as an offline run for ``wandb sync``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastcache import terminal
from fastcache.chunk_rows import CHUNK_SCORES, chunk_rows
from fastcache.commit import running
from fastcache.errors import UserError
from fastcache.wandb_client import (
    LIMITS,
    NoAnswer,
    connect,
    finish,
    first_line,
    reason,
    staged_in,
    start,
    start_after_failure,
)
from fastcache.wandb_client import (
    warm_up as warm_up,
)

MAX_VIDEOS = 3
FIT_NUMBERS = ("name", "degree", "r2", "loo", "rank", "n")
SYNC = "wandb sync outputs/*/wandb/offline-run-*"


class Tracker:
    """What a job may tell W&B. Does nothing where ``run`` is None. ``trouble``: why an online run is not whole."""

    def __init__(self, run: Any = None, online: bool = False):
        self.run, self.online = run, online
        self.told: list[Callable[[Any], None]] = []
        self.trouble: str | None = None

    def log_scores(self, scores: Mapping[str, Any], trace: Mapping[str, Any] | None = None) -> None:
        """Every single value of scores.json as summary, its protocol as config, and one table row per chunk, with the
        letters of trace.json."""

        def tell(run: Any) -> None:
            run.summary.update(_plain(scores))
            run.config.update({"protocol": scores.get("protocol", {})}, allow_val_change=True)
            if rows := chunk_rows(scores, trace or {}):
                run.log({"chunks": _table(["video", "prompt", "chunk", "trace", *CHUNK_SCORES], rows)})

        self._tell(tell)

    def log_fit(self, fit: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], picture: Path) -> None:
        """What a fit is worth as summary, where it comes from as config, its samples as a table, its picture."""

        def tell(run: Any) -> None:
            run.summary.update({key: fit.get(key) for key in FIT_NUMBERS})
            run.config.update({key: fit.get(key) for key in ("coefficients", "domain", "steps", "gate", "fitted_on")})
            columns = sorted(_plain(samples[0])) if samples else []
            if columns:
                run.log({"samples": _table(columns, [[sample.get(key) for key in columns] for sample in samples])})
            run.log(_media(picture, (), "fit"))

        self._tell(tell)

    def log_media(self, sheet: Path | None = None, videos: Sequence[Path] = ()) -> None:
        """The contact sheet and the first three mp4 files, each by its path; missing files are passed over."""

        def tell(run: Any) -> None:
            if media := _media(sheet, videos, "sheet"):
                run.log(media)

        self._tell(tell)

    def _tell(self, tell: Callable[[Any], None]) -> None:
        if self.run is None:
            return
        self.told.append(tell)
        if not self.online:
            tell(self.run)
        elif self.trouble is None:
            try:
                tell(self.run)
            except Exception as error:  # a table asks the server before it is sent
                self.trouble = reason(error)


def job(s: Mapping[str, Any], name: str, id: str, dir: Path, job_type: str) -> dict[str, Any]:
    """What ``tracked`` is to be called with for a job of these settings; its group is the study it belongs to."""
    group = s["tracking"]["group"] or s["choices"].get("experiment")
    return s["tracking"] | {"group": group, "name": name, "id": id, "dir": dir, "job_type": job_type}


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
    Where W&B does not answer, or stops answering, an offline run is kept and that is said. Raises UserError on an
    unknown mode and, online, without a key.
    """
    if mode not in ("offline", "online", "disabled"):
        raise UserError(f"tracking.mode={mode}: expected offline, online or disabled; e.g. tracking=offline")
    if mode == "disabled":
        yield Tracker()
        return
    fields: dict[str, Any] = {"id": id, "name": name, "project": project, "entity": entity, "group": group}
    fields |= {"job_type": job_type, "tags": [*tags, *filter(None, [running()])], "config": dict(config), "mode": mode}
    with staged_in(Path(dir) / "wandb"):
        tracker = _begin(fields, Path(dir))
        code = 1
        try:
            yield tracker
            code = 0
        finally:
            _end(tracker, fields, Path(dir), code)


def check(nodes: Iterable[Mapping[str, Any]]) -> None:
    """Raise UserError where W&B would refuse a name in these ``tracking`` settings."""
    for node in nodes:
        project = str(node["project"])
        if node["mode"] != "disabled" and (not project or len(project) > 128 or set(project) & set("/\\#?%:")):
            raise UserError(
                f"tracking.project={project}: expected up to 128 characters without / \\ # ? % or :; "
                "an account or team is named by tracking.entity"
            )


def known_runs(entity: str, project: str, names: Sequence[str]) -> set[str]:
    """Those of the run names that W&B has in a project. Raises ValueError where there is no such project."""
    import wandb

    api = wandb.Api(timeout=LIMITS["init_timeout"])
    found = api.runs(f"{entity}/{project}", filters={"displayName": {"$in": list(names)}})
    return {str(run.name) for run in found}


def entity() -> str:
    """The default entity of the account that the key belongs to."""
    import wandb

    return str(wandb.Api(timeout=LIMITS["init_timeout"]).default_entity)


def _begin(fields: dict[str, Any], folder: Path) -> Tracker:
    """A started run: where W&B does not answer, an offline one, which is said."""
    if fields["mode"] == "offline":
        return Tracker(start(fields, folder))
    try:
        connect("tracking=online", "or use tracking=offline")  # an id stays taken where W&B fails to start
        return Tracker(start(fields, folder), online=True)
    except NoAnswer as error:
        told = str(error).removesuffix("; or use tracking=offline")
    try:
        run = start_after_failure(fields | {"mode": "offline"}, folder)
    except NoAnswer:
        _say(f"{told}; {fields['name']} is made without W&B")
        return Tracker()
    _say(f"{told}; {fields['name']} is kept on disk, upload it later: wandb sync {Path(run.dir).parent}")
    return Tracker(run)


def _end(tracker: Tracker, fields: dict[str, Any], folder: Path, code: int) -> None:
    """Finish a run. What a server did not take is kept in an offline run of the same id, which is said."""
    if tracker.run is None:
        return
    if not tracker.online:
        tracker.run.finish(exit_code=code)
        return
    trouble = finish(tracker.run, code, tracker.trouble)
    if trouble is None:
        return
    told = f"W&B has not taken all of {fields['name']} ({trouble})"
    try:
        run = start(fields | {"mode": "offline"}, folder)
        for tell in tracker.told:
            tell(run)
        run.finish(exit_code=code)
    except Exception as error:
        _say(f"{told}, nor could a copy be kept ({first_line(error)}); the run's own folder is whole")
    else:
        _say(f"{told}; all of it is on disk, upload it later: wandb sync {Path(run.dir).parent}")


def _say(text: str) -> None:
    terminal.say(f"warning: {text}")
    if terminal.LOG.handlers:  # of a run; none writes a log elsewhere
        terminal.LOG.warning(text)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is None or isinstance(v, int | float | str)}


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    import wandb

    return wandb.Table(columns=list(columns), data=[list(row) for row in rows])


def _media(picture: Path | None, videos: Sequence[Path], name: str) -> dict[str, Any]:
    import wandb

    media: dict[str, Any] = {}
    if picture is not None and Path(picture).is_file():
        media[name] = wandb.Image(str(picture))
    for path in [Path(video) for video in videos if Path(video).is_file()][:MAX_VIDEOS]:
        media[f"video_{path.stem}"] = wandb.Video(str(path), format="mp4")
    return media
