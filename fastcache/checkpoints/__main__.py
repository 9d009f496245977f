"""Tell what a checkpoint is, or write it for another program.

python -m fastcache.checkpoints IN [part=generator]
python -m fastcache.checkpoints IN OUT to=diffusers|original [part=generator] [heads=12]
"""

import sys
from collections.abc import Sequence

from fastcache.checkpoints.convert import convert, summary
from fastcache.checkpoints.reading import read
from fastcache.errors import UserError

OPTIONS = ("to", "part", "heads")


def main(words: Sequence[str] | None = None) -> int:
    try:
        return _main(sys.argv[1:] if words is None else words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _main(words: Sequence[str]) -> int:
    options = {key: value for key, sep, value in (word.partition("=") for word in words) if sep}
    paths = [word for word in words if "=" not in word and not word.startswith("-")]
    if not words or "--help" in words or "-h" in words:
        print(__doc__)
        return 0
    if odd := [key for key in options if key not in OPTIONS]:
        raise UserError(f"{odd[0]}= is no option; the options: {', '.join(f'{name}=' for name in OPTIONS)}")
    part, heads = options.get("part", "auto"), options.get("heads")
    if heads is not None and not (heads.isdecimal() and int(heads)):
        raise UserError(f"heads={heads}: expected a whole number, 1 or more")
    if len(paths) == 1 and set(options) <= {"part"}:
        print(summary(read(paths[0], part)))
    elif len(paths) == 2 and "to" in options:
        for file in convert(paths[0], paths[1], options["to"], part, int(heads) if heads else None):
            print(file)
    else:
        raise UserError("expected IN, or IN OUT to=diffusers|original; --help shows both")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
