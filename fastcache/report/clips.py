"""The videos that a page shows: best, median and worst prompt of each run, within a budget. No torch."""

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fastcache.report.load import Run

ORDER = (("lpips", False), ("ssim", True), ("psnr", True))  # the first that a run has orders its prompts


class Pick(NamedTuple):
    """A prompt of a run, named by its place among the others: "best", "median" or "worst"."""

    place: str
    idx: int


def picks(run: Run) -> list[Pick]:
    """Best, median and worst prompt by LPIPS (else SSIM, else PSNR); fewer where there are fewer videos."""
    for metric, higher in ORDER:
        values = [(entry[metric], idx) for idx, entry in enumerate(run["per_video"]) if entry[metric] is not None]
        if values:
            ordered = [idx for _, idx in sorted(values, key=lambda v: (-v[0] if higher else v[0], v[1]))]
            break
    else:
        ordered = list(range(len(run["per_video"])))
    places = {"best": ordered[0], "median": ordered[(len(ordered) - 1) // 2], "worst": ordered[-1]}
    first: dict[int, str] = {}
    for place, idx in places.items():
        first[idx] = f"{first[idx]}, {place}" if idx in first else place
    return [Pick(place, idx) for idx, place in first.items()]


class Clips:
    """mp4 files as data URIs until ``budget`` bytes of page are used; after that, links to the files."""

    def __init__(self, budget: int, page: Path) -> None:
        self.left, self.page, self.linked = budget, page, 0

    def of(self, run: Run) -> list[dict[str, Any]]:
        """For each pick: place, idx, prompt, its numbers, and "src" (embedded) or "href" (a link), or neither."""
        found = []
        for place, idx in picks(run):
            entry = run["per_video"][idx]
            clip = {
                "place": place,
                "idx": idx,
                "prompt": entry["prompt"],
                "lpips": entry["lpips"],
                "psnr": entry["psnr"],
            }
            found.append(clip | self._source(run.mp4(idx)))
        return found

    def _source(self, path: Path) -> dict[str, str]:
        try:
            size = -(-path.stat().st_size // 3) * 4
            if size <= self.left:
                data = base64.b64encode(path.read_bytes()).decode()
                self.left -= size
                return {"src": f"data:video/mp4;base64,{data}"}
        except OSError:
            return {}
        self.linked += 1
        return {"href": Path(os.path.relpath(path.absolute(), self.page.absolute())).as_posix()}


def in_order(runs: Iterable[Run], first: Iterable[str]) -> list[Run]:
    """Runs with those of the front ahead: they get their videos into the page before the budget ends."""
    ahead = set(first)
    return sorted(runs, key=lambda run: run.signature not in ahead)
