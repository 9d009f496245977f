"""Which runs may be compared, along which axes they differ, and which of them nothing beats. No torch."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastcache.catalog import DIALS
from fastcache.report.load import CONTROLS, Run
from fastcache.report.protocols import protocol, told_apart
from fastcache.settings import number

AXES = ("method", "schedule", "dial", "engine", "sampler", "renoise", "store", "rescale", "seed")
LINE = ("method", "engine", "sampler", "renoise", "store", "rescale", "seed")  # axes that tell two lines apart
SAMPLING = ("sampler", "renoise", "store")  # sets what the reference is: errors are not compared across it
NAMES = {"oracle": "oracle masks", "random": "random masks", "part": "reuse in some chunks", "fewer": "fewer steps"}
HIGHER = {"psnr": True, "ssim": True, "lpips": False, "speedup": True, "forward_fraction": False}
DIGITS = {"forward_fraction": 3, "lpips": 4, "ssim": 4, "psnr": 2, "speedup": 2}
"""Decimals that tables show, and that decide what beats what."""


def axis(run: Run, name: str) -> Any:
    """The value of a run on an axis. A named variant (motioncache_paper) is told by its options."""
    if name == "store":
        return run.store
    return run.scores.get(name)


@dataclass(frozen=True)
class Group:
    """Runs of one protocol. ``told``: what sets it apart from the other groups."""

    runs: list[Run]
    protocol: dict[str, Any]
    told: str

    @cached_property
    def varying(self) -> list[str]:
        """Axes on which these runs differ (a missing value does not tell two runs apart)."""
        return _varying(self.runs)

    @cached_property
    def told_apart(self) -> list[str]:
        """Axes that tell two lines apart."""
        return [name for name in _varying(self.compared) if name in LINE and name != "method"]

    @cached_property
    def options(self) -> dict[str, str]:
        """By signature: the options that not all runs of that method, or of that engine, share, as they are typed:
        " compare_with=cached engine.window_frames=6"."""
        methods = _differing(self.runs, "method", lambda run: _flat(run.settings.get("method") or {}) | _fit(run))
        engines = _differing(self.runs, "engine", engine_options)
        return {signature: told + engines[signature] for signature, told in methods.items()}

    def label(self, run: Run) -> str:
        """What names a run among those of its sampling, engine and seed: "motioncache 0.3 FxxF floor=0.1"."""
        return f"{run['label']}{self.options[run.signature]}"

    def title(self, run: Run) -> str:
        """The label of a run and what else sets it apart: "motioncache 0.3 FxxF, shared"."""
        return ", ".join([self.label(run), *self.where(run)])

    def name(self, run: Run) -> str:
        """The name of the line that a run lies on: its method and what else sets it apart, dial and schedule aside."""
        label = "euler" if run["label"] == "euler" else NAMES.get(run.role, run["method"])
        return ", ".join([f"{label}{self.options[run.signature]}", *self.where(run)])

    def where(self, run: Run) -> list[str]:
        """What sets a run apart besides method, schedule, dial and options: ["shared", "seed 1"]."""
        extra = [key for key in self.told_apart if axis(run, key) is not None]
        shown = [f"{key} {axis(run, key)}" if key in ("seed", "store") else str(axis(run, key)) for key in extra]
        return list(dict.fromkeys(shown))

    @cached_property
    def lines(self) -> dict[str, list[Run]]:
        """The runs of each line, costliest first. The references are no line: they are where quality is perfect."""
        found: dict[str, list[Run]] = {}
        for run in self.compared:
            found.setdefault(self.name(run), []).append(run)
        return {name: sorted(runs, key=lambda r: -r["forward_fraction"]) for name, runs in sorted(found.items())}

    @cached_property
    def references(self) -> list[Run]:
        return [run for run in self.runs if run.is_reference]

    @cached_property
    def noise(self) -> list[Run]:
        """Runs that compute everything, scored against another such run: the floor that differences have to beat."""
        return [r for r in self.runs if r.computes_all and not r.is_reference and r["method"] == "none"]

    @cached_property
    def compared(self) -> list[Run]:
        return [run for run in self.runs if not run.is_reference and run not in self.noise]

    @cached_property
    def rivals(self) -> list[Run]:
        """What one could use, and so what a front is made of: neither the oracle nor random masks."""
        return [run for run in self.compared if run.role not in CONTROLS]

    @cached_property
    def parts(self) -> list["Group"]:
        """By sampling (sampler, noise, store), largest first, each told by what sets it apart: every sampling has a
        reference of its own."""
        found: dict[tuple[Any, ...], list[Run]] = {}
        for run in self.runs:
            found.setdefault(tuple(axis(run, name) for name in SAMPLING), []).append(run)
        if len(found) == 1:
            return [self]
        differ = [i for i in range(len(SAMPLING)) if len({key[i] for key in found} - {None}) > 1]
        told = {key: " ".join(str(key[i]) for i in differ if key[i] is not None) for key in found}
        return [Group(found[key], self.protocol, told[key]) for key in sorted(found, key=lambda k: -len(found[k]))]

    @cached_property
    def fronts(self) -> list[Run]:
        """What nothing beats, for each sampling: in LPIPS against forward fraction, or PSNR where there is no LPIPS."""
        return [run for part in self.parts for run in _best(part.rivals)]

    @cached_property
    def front_points(self) -> list[Run]:
        """The fronts with one run of each tie."""
        seen: dict[tuple[Any, ...], Run] = {}
        for part in self.parts:
            for run in _best(part.rivals):
                quality = "psnr" if run["lpips"] is None else "lpips"
                seen.setdefault((part.told, rounded(run, "forward_fraction"), rounded(run, quality)), run)
        return list(seen.values())

    @cached_property
    def ceilings(self) -> dict[float, list[str]]:
        """The schedules that have a top speed-up, by it; the store pass is counted as the runs count it. Where a method
        decides, the masks of that speed-up are not named."""
        found: dict[float, list[str]] = {}
        for run in sorted(self.compared, key=lambda r: (r["ceiling"], r["schedule"])):
            names = found.setdefault(round(run["ceiling"], 6), [])
            names += [run["schedule"]] * (run["schedule"] not in names)
        return {top: _telling(names) for top, names in found.items()}

    @cached_property
    def machines(self) -> list[str]:
        return sorted({str(by.get("device")) for run in self.runs for by in run.made_by})

    @cached_property
    def commits(self) -> list[str]:
        return sorted({str(by.get("commit")) for run in self.runs for by in run.made_by})


def _telling(schedules: list[str]) -> list[str]:
    """Those that leave a choice, else those that skip, else those that leave steps out."""
    return [s for s in schedules if "x" in s] or [s for s in schedules if "-" not in s] or schedules


def _best(runs: Sequence[Run]) -> list[Run]:
    return front(runs, "forward_fraction", "lpips") or front(runs, "forward_fraction", "psnr")


def front(runs: Iterable[Run], cost: str, quality: str) -> list[Run]:
    """The runs that no other beats: none is better in one of the two and no worse in the other. Numbers count as tables
    show them (``DIGITS``); of runs that agree in both all are kept. Cheapest last.

    An identical video has no PSNR: it counts as better than any number.
    """
    known = [(pair, run) for run in runs if (pair := _rank(run, cost, quality)) is not None]
    kept: list[Run] = []
    best: tuple[float, float] | None = None
    for pair, run in sorted(known, key=lambda item: item[0], reverse=True):
        if best is None or pair[1] > best[1] or pair == best:
            kept.append(run)
            best = pair
    return kept[::-1]


def rounded(run: Run, name: str) -> float | None:
    """A number with the digits that a table shows of it."""
    value = run.scores.get(name)
    return None if value is None else round(value, DIGITS[name])


def _rank(run: Run, cost: str, quality: str) -> tuple[float, float] | None:
    """Cheapness and goodness, both better where higher; None where a number is missing."""
    pair = []
    for name in (cost, quality):
        value = rounded(run, name)
        if value is None and run.scores.get(f"{name}_why") == "identical":
            value = float("inf")
        if value is None:
            return None
        pair.append(value if HIGHER[name] else -value)
    return pair[0], pair[1]


def group(runs: Sequence[Run]) -> list[Group]:
    """Runs by protocol, largest group first, each with what sets it apart."""
    found: dict[str, list[Run]] = {}
    kinds = {}
    for run in runs:
        rules = protocol(run)
        key = json.dumps(rules, sort_keys=True)
        found.setdefault(key, []).append(run)
        kinds[key] = rules
    ordered = sorted(found, key=lambda key: -len(found[key]))
    told = told_apart([kinds[key] for key in ordered])
    return [Group(found[key], kinds[key], words) for key, words in zip(ordered, told, strict=True)]


def _varying(runs: Iterable[Run]) -> list[str]:
    kept = list(runs)
    return [name for name in AXES if len({v for r in kept if (v := axis(r, name)) is not None}) > 1]


def _differing(runs: Sequence[Run], kind: str, options: Callable[[Run], dict[str, Any]]) -> dict[str, str]:
    """By signature: the options in which the runs of one ``kind`` (method, engine) differ."""
    told = {}
    for value in {run[kind] for run in runs}:
        flat = {run.signature: options(run) for run in runs if run[kind] == value}
        keys = sorted({key for each in flat.values() for key in each})
        differ = [key for key in keys if len({json.dumps(o.get(key), sort_keys=True) for o in flat.values()}) > 1]
        for signature, each in flat.items():
            told[signature] = "".join(f" {k}={each[k]}" for k in differ if each.get(k) is not None)
    return told


def engine_options(run: Run) -> dict[str, Any]:
    """The options of a run's engine, as they are typed."""
    return _flat(run.settings.get("engine") or {}, "engine.")


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options as dotted names, without a dial, a fit, the class, the chunks in a label, and checks on the way."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("_target_", "rescale", "chunks", "debug", *DIALS):
            continue
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _fit(run: Run) -> dict[str, Any]:
    """What was asked of a fit beyond the usual; a fit that was named has an axis of its own."""
    signed = (run.settings.get("rescale") or {}).get("signed")
    asked = signed if isinstance(signed, dict) else {}
    ungated = {"rescale.gate": False} if asked.get("gate") is False else {}
    return {"rescale.degree": asked.get("degree")} | ungated


def setting(value: Any) -> str:
    """A value on an axis as it is shown: 0.3, FxxF, - where there is none."""
    if value is None:
        return "-"
    return number(value) if isinstance(value, float) else str(value)
