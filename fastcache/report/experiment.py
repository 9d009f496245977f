"""The runs that a study of conf/experiment/ comes to: its jobs and their references, as far as they are finished."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from fastcache import terminal
from fastcache.config import plan
from fastcache.errors import UserError
from fastcache.results import Folder
from fastcache.settings import engine_reference_of, own_reference, reference_of, resolve


def folders(words: Sequence[str], roots: Sequence[Path]) -> list[Path]:
    """Folders of the finished runs of ``experiment=words[0]`` under each of ``roots`` and of their references, further
    words narrowing it as on the command line of a run. What none of the roots has is said.

    Raises UserError on an unknown study, and where none of its runs is finished.
    """
    found: dict[Path, None] = {}
    jobs = plan([f"experiment={words[0]}", *words[1:]]).jobs or []
    done = set()
    for root, (number, job) in product(roots, enumerate(jobs)):
        job.cfg.outputs = str(root)
        s = resolve(*job)
        for device in ("cpu", "cuda") if s["device"] == "auto" else (s["device"],):
            here = s | {"device": device}
            if Folder.of(here).finished:
                done.add(number)
            with_it = [here, engine_reference_of(here), reference_of(here) if own_reference(here) else None]
            made = [Folder.of(one) for one in with_it if one is not None]
            found |= dict.fromkeys(folder.path for folder in made if folder.finished)
    if not done:
        where = ", ".join(map(str, roots))
        raise UserError(
            f"no run of experiment={words[0]} is finished in {where}; "
            f"make them with python -m fastcache.run experiment={words[0]} outputs={where}. Where it was run with "
            f'other settings, give them here too: --experiment "{words[0]} frames=6 num_videos=2"'
        )
    if len(done) < len(jobs):
        terminal.say(f"experiment={words[0]}: {len(jobs) - len(done)} of {len(jobs)} runs are not finished")
    return list(found)
