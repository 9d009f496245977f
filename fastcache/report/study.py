"""All that a report says, computed once: groups, fronts, differences, ranks. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fastcache.errors import UserError
from fastcache.report.controls import Against, against
from fastcache.report.groups import Group, group
from fastcache.report.load import Found, Run
from fastcache.report.stats import Estimate, Floor, Ranking, find_baseline, noise_floor, paired, rank
from fastcache.scores import timing_doubts

PAIRED = ("lpips", "psnr")


@dataclass
class Study:
    """What lies in ``roots``. ``baseline``: a signature, folder name or label, or None for the fixed mask FxxF."""

    roots: Sequence[Path]
    found: Found
    baseline: str | None = None
    _paired: dict[int, dict[str, dict[str, Estimate]]] = field(default_factory=dict)
    _ranks: dict[int, list[tuple[Group, Ranking]]] = field(default_factory=dict)
    _controls: dict[int, list[Against]] = field(default_factory=dict)

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
            each = "; ".join(f"{g.told} ({len(g.runs)} runs)" for g in self.groups)
            lines.append(f"{len(self.groups)} protocols, kept apart: {each}")
        for g in self.groups:
            name = f" ({g.told})" if g.told else ""
            if len(g.machines) > 1:
                machines = ", ".join(g.machines)
                lines.append(
                    f"speed-ups come from {len(g.machines)} machines{name}: {machines}; compare forward fractions"
                )
            if beyond := [r for r in g.compared if r["speedup"] is not None and r["speedup"] > 1.05 * r["ceiling"]]:
                who = "run is faster than its" if len(beyond) == 1 else "runs are faster than their"
                lines.append(
                    f"{len(beyond)} {who} schedule allows{name}: the run or its reference was timed on a "
                    "busy machine; compare forward fractions"
                )
            if doubts := timing_doubts(run.scores for run in g.runs):
                lines.append(f"{doubts}{name}; compare forward fractions")
            if len(g.commits) > 1:
                lines.append(f"runs come from {len(g.commits)} commits{name}: {', '.join(g.commits)}")
        for one, other in self.found.twice:
            if not one.computes_all:
                lines.append(f"{other.path} repeats {one.path}: shown once")
        return lines
