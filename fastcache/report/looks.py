"""How each line of a plot looks, on paper and in the page: methods in colours, controls grey and dashed. No torch."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastcache.report.groups import Group
from fastcache.report.load import Run

COLOURS = ("#2c6fbb", "#d1495b", "#2e8b57", "#8e5ea2", "#c98a00", "#008b8b", "#a0456e", "#4f46e5", "#84612f")
MARKS = ("o", "s", "^", "D", "v", "X", "*", ".")  # page.js draws the same shapes, by place
DASHES = ((), (5, 2), (1, 1.5), (6, 2, 1, 2), (9, 3))  # of runs of one method, where each run is a curve
TITLES = {
    "lpips": "LPIPS (lower is better)",
    "psnr": "PSNR, dB (higher is better)",
    "speedup": "DiT speed-up, measured",
    "forward_fraction": "forward fraction",
}


class Look(NamedTuple):
    """``mark``: a place in MARKS. ``dash``: lengths on and off, empty for an unbroken line, None for no line."""

    colour: str
    mark: int
    dash: tuple[float, ...] | None = ()
    hollow: bool = False


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


def curves(group: Group, runs: Sequence[Run]) -> list[Look]:
    """How runs look that are a curve each: in the colour and mark of their line, told apart by dashes, then by hollow
    marks."""
    found = looks(group)
    seen: Counter[str] = Counter()
    made = []
    for run in runs:
        name = group.name(run)
        again, place = divmod(seen[name], len(DASHES))
        seen[name] += 1
        made.append(found[name]._replace(dash=DASHES[place], hollow=again % 2 == 1))
    return made


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))  # placed by hand: an automatic layout draws everything twice


def legend(
    figure: Any, handles: Sequence[Any], names: Sequence[str], title: str = "", top: float = 0.15, dashes: bool = False
) -> None:
    """Below everything, in as many columns as the names leave room for. ``top``: inches above the plots; ``dashes``:
    drawn long enough to be told apart."""
    columns = max(1, min(5, 150 // (max(map(len, names), default=0) + (12 if dashes else 8))))
    rows, height = -(-len(names) // columns) + bool(title), figure.get_figheight()
    style: dict[str, Any] = {"loc": "lower center", "frameon": False} | ({"handlelength": 4} if dashes else {})
    made = figure.legend(handles, names, ncols=columns, title=title or None, **style)
    made.get_title().set_color("0.4")
    figure.subplots_adjust(left=0.075, right=0.985, top=1 - top / height, bottom=(0.65 + 0.2 * rows) / height)
