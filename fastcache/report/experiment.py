"""The runs that a study of conf/experiment/ comes to: its jobs and their references, as far as they are finished."""

from collections.abc import Sequence
from pathlib import Path

from fastcache import terminal
from fastcache.config import plan
from fastcache.errors import UserError
from fastcache.results import Folder
from fastcache.settings import engine_reference_of, own_reference, reference_of, resolve


def folders(words: Sequence[str], roots: Sequence[Path]) -> list[Path]:
    """Folders of the finished runs of ``experiment=words[0]`` under each of ``roots``, further words narrowing it as on
    the command line of a run. What is missing is said.

    Raises UserError on an unknown study, and where none of its runs is finished.
    """
    found: dict[Path, None] = {}
    missing = total = 0
    for root in roots:
        jobs = plan([f"experiment={words[0]}", *words[1:], f"outputs={root}"]).jobs or []
        for job in jobs:
            s = resolve(*job)
            total += 1
            there = None
            for device in ("cpu", "cuda"):  # device=auto is one of them
                here = s | ({"device": device} if s["device"] == "auto" else {})
                folder = Folder.of(here)
                if folder.finished:
                    there = here
            if there is None:
                missing += 1
                continue
            with_it = [there, engine_reference_of(there), reference_of(there) if own_reference(there) else None]
            made = [Folder.of(one).path for one in with_it if one is not None]
            found |= dict.fromkeys(path for path in made if (path / "done.json").is_file())
    if not found:
        where = ", ".join(map(str, roots))
        raise UserError(
            f"no run of experiment={words[0]} is finished in {where}; "
            f"make them with python -m fastcache.run experiment={words[0]} outputs={where}"
        )
    if missing:
        terminal.say(f"experiment={words[0]}: {missing} of {total} runs are not finished")
    return list(found)
