"""How each line of a plot looks, on paper and in the page: methods in colours, controls grey and dashed. No torch."""

from typing import NamedTuple

from fastcache.report.groups import Group

COLOURS = ("#2c6fbb", "#d1495b", "#2e8b57", "#8e5ea2", "#c98a00", "#008b8b", "#a0456e", "#4f46e5", "#84612f")
MARKS = ("o", "s", "^", "D", "v", "X", "*", ".")  # page.js draws the same shapes, by place


class Look(NamedTuple):
    """``mark``: a place in MARKS. ``dash``: lengths on and off, empty for an unbroken line, None for no line."""

    colour: str
    mark: int
    dash: tuple[float, ...] | None = ()


CONTROLS = {
    "oracle": Look("#1c2430", 6, (7, 2)),
    "mask": Look("#6b7280", 1, (4, 2)),
    "fewer": Look("#6b7280", 4, (5, 2, 1, 2)),
    "random": Look("#9aa3af", 5, (1, 2)),
    "part": Look("#9aa3af", 7, None),
}


def looks(group: Group) -> dict[str, Look]:
    """By line, methods ahead of the controls; more methods than colours share them."""
    roles = {name: runs[0].role for name, runs in group.lines.items()}
    methods = [name for name, role in roles.items() if role == "method"]
    found = {name: Look(COLOURS[i % len(COLOURS)], i % 5) for i, name in enumerate(methods)}
    return found | {name: CONTROLS[role] for role in CONTROLS for name in roles if roles[name] == role}
