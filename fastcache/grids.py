"""A study's grids, and the part of them that a command line asks for. Imports no torch.

``grids`` in conf/experiment/NAME.yaml is a list of {key: value or values}, each swept by itself. On the command line a
key that any grid names selects among the study's runs, by the value that each has, named or by default. Any other key,
and KEPT where a grid does not name it, is set in all of them.
"""

import json
from collections.abc import Mapping, Sequence, Set
from math import prod
from typing import Any, NamedTuple

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from fastcache.errors import UserError

KEPT = ("seed", "reference")  # a grid names them for the noise floor: for the others they may be set


class Grid(NamedTuple):
    """One sweep: what it sets, as overrides, and the words of the command line that go with it."""

    lines: list[str]
    words: list[str]


def part_of(parsed: Sequence[Override], search: Sequence[str]) -> tuple[list[Grid], str]:
    """The sweeps of the chosen experiment's grids (none: it has no grids), inside an ``initialize_config_dir``, and a
    sentence where the command line selects some of their runs.

    Raises UserError where it asks for a value that no run of the study has, or nothing remains, and Hydra's errors.
    """
    chosen = [o for o in parsed if o.key_or_group == "experiment" and not o.is_delete() and o.value() is not None]
    if not chosen:
        return [], ""
    name = str(chosen[-1].input_line)
    grids = OmegaConf.to_container(compose("config", overrides=[*search, name]).get("grids") or OmegaConf.create([]))
    assert isinstance(grids, list)
    all_of = [{str(key): _listed(values) for key, values in grid.items()} for grid in grids]
    keys = {key for grid in all_of for key in grid} - {*KEPT}
    asked = {o.key_or_group: _values(o) for o in parsed if o.key_or_group in keys and not o.is_delete()}
    spans = [_span(grid, asked.keys(), [*search, name]) for grid in all_of]
    for key, values in asked.items():
        there = list(dict.fromkeys(value for span in spans for value in span[key]))
        if absent := [value for value in values if value not in there]:
            known = ", ".join(value for value in there if value != "null") or "nothing"
            raise UserError(
                f"{name} has no run with {key}={','.join(absent)}; its runs have {known}. For other values leave "
                f"experiment= out and sweep with -m"
            )
    made = []
    for grid, span in zip(all_of, spans, strict=True):
        left = {key: [value for value in span[key] if value in values] for key, values in asked.items()}
        if all(left.values()):
            kept = {key: left.get(key, values) for key, values in grid.items()}
            own = {*asked, *(grid.keys() & {*KEPT})}
            lines = [f"{key}={','.join(values)}" for key, values in kept.items()]
            made.append(Grid(lines, [str(o.input_line) for o in parsed if o.key_or_group not in own]))
    if grids and not made:
        together = " ".join(str(o.input_line) for o in parsed if o.key_or_group in asked)
        raise UserError(f"{name} has no run with {together} together")
    count, total = (sum(prod(map(len, grid.values())) for grid in some) for some in (map(_parsed, made), all_of))
    return made, f"{count} of the {total} runs of {name}, by {', '.join(asked)}" if asked and grids else ""


def _parsed(grid: Grid) -> dict[str, list[str]]:
    return {o.key_or_group: _values(o) for o in OverridesParser.create().parse_overrides(grid.lines)}


def _span(grid: Mapping[str, list[str]], keys: Set[str], base: Sequence[str]) -> dict[str, list[str]]:
    """The values of some keys in a grid: those that it names, else the one that its runs have."""
    if keys <= grid.keys():
        return {key: grid[key] for key in keys}
    firsts = [f"{key}={values[0]}" for key, values in grid.items()]
    cfg = compose("config", overrides=[*base, *firsts], return_hydra_config=True)
    choices, absent = cfg.hydra.runtime.choices, object()
    made = {}
    for key in keys:
        value = choices.get(key, OmegaConf.select(cfg, key, default=absent))
        made[key] = grid.get(key, [] if value is absent else [_written(value)])
    return made


def _values(override: Override) -> list[str]:
    values = override.sweep_iterator() if override.is_sweep_override() else [override.value()]
    return [_written(value) for value in values]


def _listed(values: Any) -> list[str]:
    """The values of a key of a grid: a list names several."""
    return [_written(value) for value in (values if isinstance(values, list) else [values])]


def _written(value: Any) -> str:
    """A value in Hydra's grammar, one way for each: numbers of equal value are equal."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value)
    if isinstance(value, list | dict | bool) or value is None:
        return json.dumps(value, separators=(",", ":"))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
