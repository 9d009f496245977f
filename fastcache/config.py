"""From the command line to composed configurations, and plain words where it is wrong. Imports no torch."""

import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fastcache import launchers
from fastcache.catalog import CONF, DIALS, GROUPS, KEYS, closest, load, methods, options, shown, unknown
from fastcache.errors import UserError
from fastcache.grids import Grid, part_of
from fastcache.shown import KINDS

FILE_GROUPS = ("prompts", "rescale")  # groups whose value may be the path of a file
PROSE = ("prompt", "negative_prompt")  # keys whose value is free text


class Job(NamedTuple):
    """One run as composed: its configuration and the option chosen in each group."""

    cfg: DictConfig
    choices: dict[str, str]


class Plan(NamedTuple):
    """What a command line asks for. ``launches`` are command lines for Hydra, one after the other: one, or one for each
    grid of an experiment. ``jobs`` is None where it only asks Hydra for information (``--cfg job`` and the like).
    ``part``: how much of a study was selected, in words."""

    launches: list[list[str]]
    jobs: list[Job] | None
    sweep: bool
    part: str = ""


def plan(argv: Sequence[str]) -> Plan:
    """Compose every job of a command line. Raises UserError on anything that no run would read."""
    parser = get_args_parser()
    parser.error = _bad_flag  # type: ignore[assignment, method-assign]
    args = parser.parse_intermixed_args(list(argv))
    if args.cfg or args.info or args.hydra_help or args.shell_completion or args.experimental_rerun:
        if args.multirun:
            raise UserError("-m runs jobs, --cfg and --info show settings: leave one of them out")
        return Plan([list(argv)], None, False)
    dirs = [Path(args.config_dir).absolute(), CONF] if args.config_dir else [CONF]
    overrides = [new for word in args.overrides for new in _rewrite(word, dirs)]
    words = [word for word in argv if word not in args.overrides] + overrides
    parsed = _parse(overrides)
    for override in parsed:
        _check_key(override)
        _check_choice(override, dirs)
    search = [f"hydra.searchpath=[file://{dirs[0]}]"] if args.config_dir else []
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        grids, part = _grids_of(parsed, search)
        multirun, params = (True, []) if grids else _sweep_of([*search, *_single(parsed)])
        sweep = args.multirun or multirun
        if not sweep and (several := [o for o in parsed if o.is_sweep_override()]):
            key = several[0].key_or_group
            hint = f"; for a list write {key}=[...]" if key == "metric" else ""
            raise UserError(f"{several[0].input_line} names several values: add -m to run each of them{hint}")
        spans = [[*grid.lines, *grid.words] for grid in grids or [Grid([], overrides)]]
        lines = [line for span in spans for line in (_expand([*params, *span]) if sweep else [span])]
        jobs = compose_jobs(search, lines)
    multi = ["-m"] if grids and not args.multirun else []
    flags = [word for word in words if word not in overrides]  # Hydra wants its flags first
    return Plan([[*multi, *flags, *span] for span in spans] if grids else [words], jobs, sweep, part)


def compose_jobs(search: Sequence[str], lines: Sequence[Sequence[str]]) -> list[Job]:
    """Compose a job for each list of overrides, inside an ``initialize_config_dir``. Raises UserError naming the
    closest known key.

    Hydra reads every file anew for each job, and sets single values last of all. So jobs that choose the same files
    share what comes of these.
    """
    chosen: dict[tuple[str, ...], DictConfig] = {}
    jobs = []
    for line in lines:
        files = tuple(word for word in line if not _is_value(word))
        try:
            if files not in chosen:
                chosen[files] = compose("config", overrides=[*search, *files], return_hydra_config=True)
            cfg = deepcopy(chosen[files])
            ConfigLoaderImpl._apply_overrides_to_config(_parse([word for word in line if _is_value(word)]), cfg)
        except (HydraException, OmegaConfBaseException) as error:
            raise _explained(error, [*search, *line]) from None
        choices = {str(group): str(name) for group, name in cfg.hydra.runtime.choices.items()}
        with open_dict(cfg):
            del cfg["hydra"]
            cfg.pop("grids", None)
        _check_dials(cfg, choices["method"], line)
        jobs.append(Job(cfg, choices))
    return jobs


def _is_value(word: str) -> bool:
    """Whether an override sets a value, and chooses no file of a group."""
    key = word.partition("=")[0].lstrip("+~")
    return not (key in GROUPS or key.startswith("hydra") or set(key) & set("/@"))


def _rewrite(word: str, dirs: Sequence[Path]) -> list[str]:
    """Hydra's spelling of an option whose value is free text (PROSE) or may be a path."""
    key, equals, value = word.partition("=")
    if key in PROSE and equals and value != "null":
        return [f"{key}={_quoted(value)}"]
    if key in KINDS and value not in ("", "null"):
        paths = [value] if Path(value).expanduser().exists() else value.split(",")
        return [f"{key}={','.join(map(_quoted, paths))}"]
    if key not in FILE_GROUPS or not equals:
        return [word]
    values, names = value.split(","), options(key, dirs)
    paths = [v for v in values if v not in names and ("/" in v or "." in v or Path(v).is_file())]
    if not paths:
        return [word]
    if len(paths) < len(values):
        raise UserError(f"{word} mixes files with names of conf/{key}/; sweep over one kind at a time")
    files = [Path(path).expanduser().absolute() for path in paths]
    for path in files:
        if not path.is_file():
            raise UserError(f"{key}={path}: no such file. {key} is a file or one of: {', '.join(shown(names))}")
    return [f"{key}=file", f"{key}.file={','.join(_quoted(str(path)) for path in files)}"]


def _quoted(text: str) -> str:
    """A literal string in Hydra's override grammar."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)  # backslashes are literal unless a quote follows them
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped).replace("${", r"\${") + "'"


def _parse(overrides: Sequence[str]) -> list[Override]:
    for word in overrides:
        if "=" not in word and not word.startswith("~"):
            raise UserError(f"{word!r} is not an option; options are written name=value, e.g. thresh=0.3")
    try:
        return OverridesParser.create().parse_overrides(overrides=list(overrides))
    except HydraException as error:
        raise UserError(f"the command line cannot be read: {_first_line(error)}") from None


def _check_key(override: Override) -> None:
    key = override.key_or_group
    root = re.split(r"[./@]", key)[0]
    if root == "hydra":
        return
    if root not in (*KEYS, *DIALS):
        raise UserError(f"no run reads {root}.{closest(root, (*KEYS, *DIALS))} --help lists the options")
    if key == root and override.is_delete():
        raise UserError(f"{override.input_line}: {root} cannot be left out")
    if key == root and (override.is_add() or override.is_force_add()) and root in KEYS:
        raise UserError(f"{override.input_line}: write it without +, as {root}={override.get_value_string()}")


def _check_choice(override: Override, dirs: Sequence[Path]) -> None:
    """Every name chosen in a group exists."""
    group = override.key_or_group
    if group == "hydra/launcher" and not override.is_sweep_override():
        launchers.check(str(override.value()), dirs)
    if group not in GROUPS or override.is_delete():
        return
    values = [override.value()] if not override.is_sweep_override() else [*override.sweep_iterator()]
    names = options(group, dirs)
    for value in values:
        for name in value if isinstance(value, list) else [value]:
            absent = name is None and group == "experiment"
            if str(name) not in names and not absent:
                raise UserError(unknown(group, str(name), names))


def _single(parsed: Sequence[Override]) -> list[str]:
    """The overrides with each sweep reduced to its first value."""
    return [
        f"{o.get_key_element()}={next(iter(o.sweep_string_iterator()))}" if o.is_sweep_override() else str(o.input_line)
        for o in parsed
    ]


def _sweep_of(overrides: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether an experiment's YAML asks for a sweep, and over what."""
    if not any(line.startswith(("experiment=", "hydra")) for line in overrides):
        return False, []
    try:
        hydra = compose("config", overrides=list(overrides), return_hydra_config=True).hydra
        params = hydra.sweeper.get("params") or {}
        return str(hydra.mode or "").endswith("MULTIRUN"), [f"{key}={value}" for key, value in params.items()]
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error, overrides) from None


def _grids_of(parsed: Sequence[Override], search: Sequence[str]) -> tuple[list[Grid], str]:
    try:
        return part_of(parsed, search)
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error, [str(o.input_line) for o in parsed if o.key_or_group == "experiment"]) from None


def _expand(lines: Sequence[str]) -> list[list[str]]:
    """The jobs that Hydra's sweeper will make of these overrides."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides=list(lines))
        return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
    except HydraException as error:
        raise UserError(f"the sweep cannot be read: {_first_line(error)}") from None


def _check_dials(cfg: DictConfig, method: str, overrides: Sequence[str]) -> None:
    """A dial at top level must be read by the method."""
    read = OmegaConf.to_yaml(cfg.method, resolve=False)
    keys = {override.partition("=")[0].lstrip("+") for override in overrides}
    for dial in DIALS:
        if dial in cfg and not re.search(rf"\$\{{[^}}]*\b{dial}\b", read) and f"method.{dial}" not in keys:
            raise UserError(_no_dial(method, dial))


def _no_dial(method: str, dial: str) -> str:
    known = methods()
    own = next((m for m in known if m.name == method), None)
    owners = ", ".join(m.name for m in known if m.dial == dial) or "no method"
    if own is not None and own.dial is not None:
        return f"method={method} has no {dial}; its dial is {own.dial}, e.g. {own.dial}={own.default}"
    return f"method={method} has no {dial}: it has no dial. {dial} belongs to {owners}"


def _explained(error: Exception, overrides: Sequence[str]) -> UserError:
    """What Hydra could not compose, in our words."""
    roots = [override.lstrip("+").partition("=")[0] for override in overrides]
    base = [line for line, root in zip(overrides, roots, strict=True) if root in (*GROUPS, "hydra.searchpath")]
    try:
        cfg = compose("config", overrides=[line for line in base if not line.startswith("+")], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException):
        return UserError(f"the configuration cannot be composed: {_first_line(error)}")
    method = str(cfg.hydra.runtime.choices.method)
    for dial in DIALS:
        if dial in roots and dial not in cfg:
            return UserError(_no_dial(method, dial))
    for override, root in zip(overrides, roots, strict=True):
        exists = OmegaConf.select(cfg, root, default=None) is not None
        if exists and override.startswith("+") and not override.startswith("++"):
            return UserError(f"{override}: {root} exists already; write {override.lstrip('+')}")
    if unknown := re.search(r"Could not override '([^']+)'", str(error)):
        key = unknown[1]
        group, _, option = key.partition(".")
        if owners := [name for name in options(group) if option in load(group, name)]:
            chosen = cfg.hydra.runtime.choices[group]
            return UserError(f"{group}={chosen} has no option {option}; it belongs to {group}={', '.join(owners)}")
        return UserError(f"no run reads {key}.{closest(key, _leaves(cfg))} --help lists the options")
    return UserError(f"the configuration cannot be composed: {_first_line(error)}")


def _leaves(cfg: DictConfig, prefix: str = "") -> list[str]:
    """Dotted names of every value outside Hydra's own."""
    found = []
    for key in map(str, cfg):
        value = cfg._get_node(key)
        if isinstance(value, DictConfig) and f"{prefix}{key}" != "hydra":
            found += _leaves(value, f"{prefix}{key}.")
        elif key != "_target_":
            found.append(f"{prefix}{key}")
    return found


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _bad_flag(message: str) -> None:
    raise UserError(f"{message}; options are written name=value, e.g. thresh=0.3 (--help shows examples)")
