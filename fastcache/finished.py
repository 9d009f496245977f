"""What is done with videos that are on disk: the metrics' word on each, its mp4, the contact sheet, the scores, W&B.

Needs no model, and so can be done in a second process while the next videos are made (worker.py): ``begin`` a run,
``look`` at each of its videos, then ``conclude`` it, or ``abandon`` it where its videos could not be made. What one
step leaves for the next is kept here; where it was lost with its process, it is done again. No torch of its own.
"""

import gc
import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fastcache import scores, terminal, track
from fastcache.build import build
from fastcache.media import SheetVideo, contact_sheet, side_by_side, write_mp4
from fastcache.metrics.base import Metric
from fastcache.metrics.score import prepare, protocol, score_video
from fastcache.results import Folder, write_json
from fastcache.scores import Scored
from fastcache.settings import Settings, label

SHEET_VIDEOS = 4


class Order(NamedTuple):
    """A run whose videos are to be finished: against ``reference`` and ``twin``, the FFFF run on the same engine, if
    any; ``anew``: it was scored against another reference before."""

    s: Settings
    folder: Folder
    reference: Folder
    twin: Folder | None
    anew: bool

    @property
    def alone(self) -> bool:
        """Whether the run is its own reference."""
        return self.reference.path == self.folder.path

    @property
    def others(self) -> list[Folder]:
        return [self.reference] if self.twin is None else [self.reference, self.twin]


class Desk(NamedTuple):
    """A run in this process: its W&B run, open until ``open`` is closed, and which videos have been seen to."""

    open: ExitStack
    tracker: track.Tracker
    scored: dict[int, Scored]
    drawn: set[int]


class Abandoned(Exception):
    """The videos of a run could not be made."""


_desks: dict[Path, Desk] = {}


def warm_up(s: Settings) -> None:
    """Import at once what the first run would wait for. W&B first: its import takes longer with torch there. What is
    imported stays, so that looking for garbage in it is a tenth of the time for nothing."""
    gc.disable()
    try:
        if s["tracking"]["mode"] != "disabled":
            track.warm_up(s["tracking"]["mode"])
        load_metrics(s)
    finally:
        gc.freeze()
        gc.enable()


def begin(order: Order) -> None:
    """Load what a run will need and start its W&B run. Raises UserError where W&B asks for a key."""
    s, folder = order.s, order.folder
    if folder.path in _desks:
        return
    with terminal.logged(folder.path / "run.log"), ExitStack() as opened:
        for problem in load_metrics(s):
            terminal.say(f"note: {problem}")
        kind = "reference" if order.alone else "eval"
        job = track.job(s, folder.path.name, folder.signature, folder.path, kind)
        tracker = opened.enter_context(track.tracked(s, **job))
        _desks[folder.path] = Desk(opened.pop_all(), tracker, {}, set())


def look(order: Order, idx: int) -> None:
    """A video is there: score and draw it."""
    _see_to(order, idx, _desk(order))


def conclude(order: Order, former: scores.Scores | None) -> None:
    """All videos are there: scores.json, trace.json, sheet.png, W&B, and last of all done.json. Numbers of ``former``,
    the scores so far, that were not asked for again are kept."""
    desk, folder = _desk(order), order.folder
    del _desks[folder.path]
    with terminal.logged(folder.path / "run.log"), desk.open:
        for idx in set(range(folder.count)) - desk.drawn:
            _see_to(order, idx, desk)
        found = [desk.scored[idx] for idx in range(folder.count)]
        made = scores.measure(order.s, folder, order.reference, found, former, order.twin)
        trace = scores.trace(folder)
        draw_sheet(order, made)
        write_json(folder.path / "trace.json", trace)
        write_json(folder.path / "scores.json", made)
        desk.tracker.log_scores(made, trace)
        desk.tracker.log_media(folder.path / "sheet.png", [folder.mp4(i) for i in range(folder.count)])
        folder.finish()


def abandon(order: Order) -> None:
    """Mark the W&B run of a run as failed."""
    if order.folder.path in _desks:
        with suppress(Abandoned), _desks.pop(order.folder.path).open:
            raise Abandoned


def _see_to(order: Order, idx: int, desk: Desk) -> None:
    desk.scored[idx] = score(order, idx)
    if order.anew or not order.folder.mp4(idx).is_file():
        render(order, idx)
    desk.drawn.add(idx)


def _desk(order: Order) -> Desk:
    if order.folder.path not in _desks:
        begin(order)
    return _desks[order.folder.path]


def get_metrics(s: Settings) -> dict[str, Metric]:
    """The metrics asked for, kept so that a network is loaded once."""
    return {name: _metric(json.dumps(node, sort_keys=True)) for name, node in s["metric"].items()}


@lru_cache(maxsize=8)
def _metric(key: str) -> Any:
    return build(json.loads(key))


def load_metrics(s: Settings) -> list[str]:
    """Load networks before the videos are made; a sentence for each metric that cannot be had here."""
    return prepare(list(get_metrics(s).values()))


def score(order: Order, idx: int) -> Scored:
    """Compare video ``idx`` with that of each of the others. Raises UserError where they differ in size."""
    metrics = list(get_metrics(order.s).values())
    frames, info = order.folder.frames(idx), order.folder.info(idx)
    entries = [score_video(frames, other.frames(idx), info["frames_of_chunk"], metrics) for other in order.others]
    for entry in entries:
        entry["per_chunk"]["compute_fraction"] = [fmean(chunk["fractions"]) for chunk in info["chunks"]]
    return Scored(entries, protocol(metrics, frames.shape))


def render(order: Order, idx: int) -> None:
    """The mp4 of a video: reference, run and difference side by side; of a reference, itself."""
    frames, reference = order.folder.frames(idx), order.reference
    if not order.alone:
        frames = side_by_side(frames, reference.frames(idx), label(order.s), reference.settings().get("schedule", ""))
    write_mp4(order.folder.mp4(idx), frames, order.folder.info(idx)["fps"])


def draw_sheet(order: Order, made: Mapping[str, Any]) -> None:
    """sheet.png: at most four videos, with more than that the worst, the best and two from the middle."""
    s, folder, reference, entries = order.s, order.folder, order.reference, made["per_video"]
    ranked = sorted(range(folder.count), key=lambda i: _quality(entries[i]))
    if folder.count > SHEET_VIDEOS:
        last = folder.count - 1
        ranked = [ranked[round(last * place / (SHEET_VIDEOS - 1))] for place in range(SHEET_VIDEOS)]
    videos = []
    for i in sorted(ranked):
        info, per_chunk = folder.info(i), entries[i]["per_chunk"]
        scored = [] if order.alone else [key for key in ("lpips", "psnr") if entries[i][key] is not None]
        videos.append(
            SheetVideo(
                title=f"{i}: {info['prompt']}",
                run=folder.frames(i),
                reference=None if order.alone else reference.frames(i),
                frames_of_chunk=info["frames_of_chunk"],
                letters=[chunk["letters"] for chunk in info["chunks"]],
                fractions=per_chunk["compute_fraction"],
                values={key.upper(): per_chunk[key] for key in scored},
            )
        )
    under = [made[key] for key in ("model", "engine", "sampler")]
    under += [f"seed {s['seed']}", f"{made['speedup']:.2f}x", f"reference {reference.signature}"]
    contact_sheet(folder.path / "sheet.png", videos, label(s), ", ".join(under))


def _quality(entry: Mapping[str, Any]) -> float:
    """PSNR, infinite where identical."""
    return float("inf") if entry["psnr"] is None else entry["psnr"]
