"""All that a report says, computed once: groups, fronts, differences, ranks. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fastcache.errors import UserError
from fastcache.report.controls import Against, against
from fastcache.report.groups import Group, group
from fastcache.report.load import Found, Run
from fastcache.report.missing import missing
from fastcache.report.stats import Estimate, Floor, Ranking, find_baseline, noise_floor, paired, rank
from fastcache.report.words import counted, verb
from fastcache.scores import too_fast

PAIRED = ("lpips", "psnr")


@dataclass
class Study:
    """What lies in ``roots``, or ``experiment``'s part of it. ``baseline``: a signature, folder name or label, or None
    for the fixed mask FxxF. Speed-ups that cannot be trusted are taken out of the runs, by signature in ``untimed``."""

    roots: Sequence[Path]
    found: Found
    baseline: str | None = None
    experiment: str | None = None
    timing: bool = True  # False: no speed-up is to be trusted
    untimed: dict[str, str] = field(default_factory=dict)
    _paired: dict[int, dict[str, dict[str, Estimate]]] = field(default_factory=dict)
    _ranks: dict[int, list[tuple[Group, Ranking]]] = field(default_factory=dict)
    _controls: dict[int, list[Against]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for run in self.found.runs:
            if why := _timing(run) if self.timing else "--no-timing":
                self.untimed[run.signature] = f"{run['label']}: {why}"
                run.scores.update(speedup=None, speedup_e2e=None)

    @property
    def name(self) -> str:
        """What is reported on, in words."""
        where = ", ".join(map(str, self.roots))
        return f"experiment={self.experiment} in {where}" if self.experiment else where

    @property
    def runs(self) -> list[Run]:
        return self.found.runs

    @cached_property
    def groups(self) -> list[Group]:
        return group(self.runs)

    @cached_property
    def baselines(self) -> list[Run | None]:
        """The baseline of each group. Raises UserError where a named one is nowhere."""
        found = [find_baseline(g, self.baseline) for g in self.groups]
        if self.baseline is not None and not any(found):
            labels = ", ".join(sorted({run["label"] for run in self.runs})[:8])
            raise UserError(
                f"--baseline {self.baseline}: no such run; expected a signature, a folder's name or a label: {labels}"
            )
        return found

    def baselines_of(self, g: Group) -> list[tuple[Group, Run]]:
        """The baseline of each sampling that has one; a run named as baseline is that of its own sampling."""
        named = self.baselines[self.groups.index(g)] if self.baseline is not None else None
        bases = [(part, find_baseline(part, None) if self.baseline is None else named) for part in g.parts]
        return [(part, base) for part, base in bases if base is not None and base in part.runs]

    def paired(self, g: Group) -> dict[str, dict[str, Estimate]]:
        """By metric and signature: run - baseline of the same sampling, prompt by prompt; empty without a baseline."""
        if id(g) not in self._paired:
            found: dict[str, dict[str, Estimate]] = {}
            for part, base in self.baselines_of(g):
                for metric in PAIRED:
                    found.setdefault(metric, {}).update(paired(part.compared, base, metric))
            self._paired[id(g)] = found
        return self._paired[id(g)]

    def ranks(self, g: Group) -> list[tuple[Group, Ranking]]:
        """For each sampling."""
        if id(g) not in self._ranks:
            self._ranks[id(g)] = [(part, rank(part)) for part in g.parts]
        return self._ranks[id(g)]

    def controls(self, g: Group) -> list[Against]:
        """Every run with a dial against the controls of equal compute; empty where the study has none."""
        if id(g) not in self._controls:
            self._controls[id(g)] = against(g)
        return self._controls[id(g)]

    def fronts(self, g: Group) -> list[str]:
        """Signatures of what nothing beats."""
        return [run.signature for run in g.fronts]

    def noise(self, g: Group) -> list[Floor]:
        return noise_floor(g, self.found.twice)

    def told(self) -> list[str]:
        """What a reader of the tables has to know before comparing: protocols kept apart, machines mixed."""
        lines = []
        if len(self.groups) > 1:
            each = "; ".join(f"{g.told} ({counted(len(g.runs), 'run')})" for g in self.groups)
            lines.append(f"{len(self.groups)} protocols, kept apart: {each}")
        for g in self.groups:
            name = f" ({g.told})" if g.told else ""
            if len(g.machines) > 1:
                machines = ", ".join(g.machines)
                lines.append(
                    f"speed-ups come from {len(g.machines)} machines{name}: {machines}; compare forward fractions"
                )
            doubts = [self.untimed[r.signature] for r in g.runs if r.signature in self.untimed]
            if doubts and self.timing:
                told = "; ".join(dict.fromkeys(doubts[:2])) + ("; ..." if len(doubts) > 2 else "")
                count = f"{len(doubts)} of {counted(len(g.runs), 'speed-up')} {verb(len(doubts))}"
                lines.append(f"{count} left out{name}, timed beside other work ({told}); compare forward fractions")
            if len(g.commits) > 1:
                lines.append(f"runs come from {len(g.commits)} commits{name}: {', '.join(g.commits)}")
        if absent := missing(self.runs, self.roots):
            lines.append(absent)
        for one, other in self.found.twice:
            if not one.computes_all:
                lines.append(f"{other.path} repeats {one.path}: shown once")
        return lines


def _timing(run: Run) -> str | None:
    """Why a run's speed-up cannot be trusted, or None: times of equal work differ, or it is faster than can be."""
    doubt = run["protocol"].get("timing_doubt") or {}
    if doubt.get("run"):
        return str(doubt["run"])
    if doubt.get("reference"):
        return f"of its reference, {doubt['reference']}"
    return too_fast(run.scores)
