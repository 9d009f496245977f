"""Finished runs from disk, and a sentence for everything in their place that is none. No torch."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fastcache.errors import UserError
from fastcache.files import read_yaml
from fastcache.results import read_json

TEXTS = ("signature", "label", "model", "engine", "method", "schedule", "sampler", "reference")
NUMBERS = ("compute_fraction", "forward_fraction", "ceiling", "num_videos", "method_bytes")
MAYBE = ("dial", "psnr", "ssim", "lpips", "speedup")
CONTROLS = ("oracle", "random")


@dataclass(frozen=True)
class Run:
    """One finished run: its folder, scores.json, config.yaml and trace.json (None where that is missing)."""

    path: Path
    scores: dict[str, Any]
    settings: dict[str, Any]
    trace: dict[str, Any] | None = None
    when: str | None = None

    def __getitem__(self, key: str) -> Any:
        return self.scores[key]

    @property
    def signature(self) -> str:
        return str(self.scores["signature"])

    @property
    def is_reference(self) -> bool:
        return bool(self.scores["signature"] == self.scores["reference"])

    @property
    def computes_all(self) -> bool:
        return bool(self.scores["method"] == "none" and set(self.scores["schedule"]) == {"F"})

    @cached_property
    def role(self) -> str:
        """What a run is in a comparison: "oracle" and "random" (controls that nobody would use), "mask" (the same steps
        reused in every chunk), "part" (in some chunks only), "fewer" (steps left out of the sampler), or "method"."""
        method = self.scores["method"]
        if method in CONTROLS:
            return str(method)
        if method == "reuse":
            return "mask" if (self.settings.get("method") or {}).get("chunks") is None else "part"
        return "fewer" if "-" in self.scores["schedule"] else "method"

    @property
    def made_by(self) -> list[dict[str, Any]]:
        return list(self.scores["protocol"].get("made_by") or [])

    @cached_property
    def exact_end(self) -> bool:
        """Whether computing everything would leave this run no error: its reference is the FFFF run of its own
        settings, not one of another seed, sampling or store."""
        asked = str(self.settings.get("reference", "auto"))
        return asked == "auto" or (asked == "clean" and self.store == "clean")

    @cached_property
    def store(self) -> str:
        """How chunks are committed: "clean", or "reuse_last" where the store pass is left out."""
        return str((self.settings.get("sampler") or {}).get("store", "clean"))

    @cached_property
    def per_prompt(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The entries of per_video by what makes two videos comparable: prompt and seed."""
        return {(entry["prompt"], entry["seed"]): entry for entry in self.scores["per_video"]}

    def series(self, name: str) -> list[float | None]:
        """The mean over videos of a per-chunk number, one a chunk; None where no video has it."""
        lists = [entry["per_chunk"].get(name) or [] for entry in self.scores["per_video"]]
        return [_mean(values) for values in _columns(lists)]

    def mp4(self, idx: int) -> Path:
        return self.path / "videos" / f"{idx}.mp4"


@dataclass
class Found:
    """``broken``: files that cannot be used, each named; ``notes``: what is not finished, which is no
    fault. ``twice``: the same settings in two folders. ``known``: runs by signature and reference."""

    runs: list[Run] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    twice: list[tuple[Run, Run]] = field(default_factory=list)
    known: dict[tuple[str, str], Run] = field(default_factory=dict)


def load(roots: Sequence[Path]) -> Found:
    """Every finished run in folders of runs (or that are runs). Raises UserError where a root holds none."""
    found = Found()
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; expected the outputs= of python -m fastcache.run")
        before = len(found.runs) + len(found.broken) + len(found.twice)
        folders = list(_folders(root))
        for folder in folders:
            _take(folder, found)
        if len(found.runs) + len(found.broken) + len(found.twice) == before:
            count = f"{len(folders)} run{'s' * (len(folders) > 1)}, none of them finished" if folders else "no run"
            why = f" ({found.notes[-1]})" if folders else ""
            raise UserError(f"{root} holds {count}{why}; make one with python -m fastcache.run outputs={root}")
    return found


def _folders(root: Path) -> Iterator[Path]:
    """Folders of runs: the root itself, what lies in it, and one level deeper (folders of studies)."""
    if _is_run(root):
        yield root
        return
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if _is_run(folder):
            yield folder
        else:
            yield from sorted(path for path in folder.iterdir() if path.is_dir() and _is_run(path))


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("scores.json", "done.json", "failed.json")) or (
        (folder / "config.yaml").is_file() and (folder / "videos").is_dir()
    )


def _take(folder: Path, found: Found) -> None:
    """Add one folder to what it is: a run, something broken, or something unfinished."""
    done = read_json(folder / "done.json")
    if not (folder / "done.json").is_file():
        failed = read_json(folder / "failed.json")
        made = len(list((folder / "videos").glob("*.npz")))
        why = f"failed: {failed.get('error')}" if isinstance(failed, dict) else f"unfinished, {made} videos made"
        found.notes.append(f"{folder.name}: {why}")
        return
    try:
        scores = _scores(folder / "scores.json")
        settings = _settings(folder / "config.yaml")
    except UserError as error:
        found.broken.append(str(error))
        return
    trace = read_json(folder / "trace.json")
    if not _good_trace(trace):
        trace = None
        found.broken.append(f"{folder / 'trace.json'} is missing or damaged: the run is shown without its decisions")
    when = str(done["time"]) if isinstance(done, dict) and "time" in done else None
    run = Run(folder, scores, settings, trace, when)
    former = found.known.setdefault((run.signature, run["reference"]), run)
    if former is run:
        found.runs.append(run)
    elif former.path.resolve() != run.path.resolve():
        found.twice.append((former, run))


def _scores(path: Path) -> dict[str, Any]:
    """scores.json, checked as far as a report reads it. Raises UserError naming the file and what is wrong."""
    hint = "the same command with force=true makes it again"
    try:
        scores = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except FileNotFoundError:
        raise UserError(f"{path} is missing, though the run is finished; {hint}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); {hint}") from None
    if wrong := list(_wrong(scores)):
        raise UserError(f"{path} is damaged ({', '.join(wrong[:3])}); {hint}")
    return scores


def _wrong(scores: Any) -> Iterator[str]:
    """What is missing or of the wrong kind."""
    if not isinstance(scores, dict):
        yield "no object"
        return
    yield from (f"{key} is no text" for key in TEXTS if not isinstance(scores.get(key), str))
    yield from (f"{key} is no number" for key in NUMBERS if not _is_number(scores.get(key)))
    yield from (f"{key} is missing" for key in MAYBE if key not in scores)
    yield from (
        f"{key} is no number" for key in MAYBE if scores.get(key) is not None and not _is_number(scores.get(key))
    )
    if not isinstance(scores.get("protocol"), dict):
        yield "protocol is missing"
    videos = scores.get("per_video")
    if not isinstance(videos, list) or not videos:
        yield "per_video is missing"
        return
    good = all(
        isinstance(v, dict) and {"prompt", "seed", "lpips", "psnr", "ssim", "per_chunk"} <= v.keys() for v in videos
    )
    if not good or not all(isinstance(v["per_chunk"], dict) for v in videos):
        yield "an entry of per_video is incomplete"


def _settings(path: Path) -> dict[str, Any]:
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise UserError(f"{path} is damaged: it holds no settings")
    return settings


def _good_trace(trace: Any) -> bool:
    try:
        chunks = [chunk for video in trace["videos"] for chunk in video["chunks"]]
        return bool(chunks) and all(isinstance(c["letters"], str) and isinstance(c["fractions"], list) for c in chunks)
    except (TypeError, KeyError):
        return False


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _columns(lists: Sequence[Sequence[Any]]) -> list[list[Any]]:
    longest = max(map(len, lists), default=0)
    return [[values[i] for values in lists if i < len(values)] for i in range(longest)]


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def value_of(run: Mapping[str, Any] | Run, name: str) -> float | None:
    """A number of scores.json, or None."""
    number = run.scores.get(name) if isinstance(run, Run) else run.get(name)
    return float(number) if number is not None else None
