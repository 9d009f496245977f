"""W&B's client: how it is started, how long it is waited for, and whether its server took everything."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastcache.errors import UserError

LIMITS = {"init_timeout": 30, "finish_timeout": 60}  # seconds, online
SHAKEN = {"init_timeout": 5, "finish_timeout": 10}  # after W&B has failed the last job
LEAN: dict[str, Any] = {  # what W&B would look up for each run: seconds in a sweep, and the run folder has it
    "x_disable_stats": True,
    "x_save_requirements": False,  # reads the metadata of every installed package
    "disable_git": True,  # four calls of git, about the folder one stands in
}
GIVEN_UP = {  # how the client's log says that it sends a part of a run no more
    "filestream: ": "its numbers",
    "file transfer: upload": "a file",
    "runfiles: ": "its files",
    "sender: failed to log artifact": "a table",
    "runupserter: ": "its settings",
}
_failing = False  # whether it has, in this process
_staged: set[str] = set()  # where W&B was told to stage files


class NoAnswer(UserError):
    """W&B did not start, and not for want of a key."""


def connect(what: str, instead: str) -> None:
    """Ask W&B whose key this machine has. Raises UserError, saying ``what`` needs it and what to do ``instead``."""
    wandb = own_client()
    try:
        known = wandb.login(prompt=False, verify=False)
        if known:  # asks anew each time, which login does not
            wandb.Api(timeout=(SHAKEN if _failing else LIMITS)["init_timeout"])
    except Exception as error:
        where = wandb.setup().settings.base_url
        raise NoAnswer(f"{what}: no login at W&B ({where}: {reason(error)}); {instead}") from error
    if not known:
        raise UserError(f"{what} needs a W&B account on this machine: type `wandb login`; {instead}")


def own_client() -> Any:
    """The wandb package, silent, with a service of this process's own: one inherited from the process that started this
    one ends with that, and is still in use when this one is torn down."""
    inherited = os.environ.get("WANDB_SERVICE", "").split("-")[1:2] not in ([], [str(os.getpid())])
    if inherited:
        del os.environ["WANDB_SERVICE"]
    os.environ.setdefault("WANDB_SILENT", "true")  # read at the first import
    import wandb

    return wandb


@contextmanager
def staged_in(folder: Path) -> Iterator[None]:
    """W&B keeps the files of tables until they are uploaded: have it do so in the run's folder, not in the home of
    whoever runs, so that an offline run can be moved and synced. A place that the user set stays."""
    before = os.environ.get("WANDB_DATA_DIR")
    if before is not None and before not in _staged:
        yield
        return
    _staged.add(str(folder))
    os.environ["WANDB_DATA_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("WANDB_DATA_DIR", None)
        os.environ |= {} if before is None else {"WANDB_DATA_DIR": before}


def warm_up(mode: str) -> Any:
    """The client for runs of this ``mode``, with what it imports when it starts its first one."""
    if mode == "offline":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at the first import; it looks up a host
    wandb = own_client()
    with suppress(ImportError):  # it sees to that itself
        import wandb.sdk.launch.inputs.internal
    return wandb


def start(fields: dict[str, Any], folder: Path) -> Any:
    """wandb.init, silent. Raises UserError whatever keeps it from starting."""
    wandb = warm_up(fields["mode"])
    folder.mkdir(parents=True, exist_ok=True)
    limits: dict[str, Any] = {
        k: v for k, v in (SHAKEN if _failing else LIMITS).items() if f"WANDB_{k.upper()}" not in os.environ
    }
    quiet = wandb.Settings(silent=True, console="off", finish_timeout_raises=True, **LEAN, **limits)
    if fields["mode"] == "online":
        fields = fields | {"resume": "allow"}  # offline there is nothing to resume
    try:
        # A probe is a run within the run that needs it: the default would give the outer one again.
        return wandb.init(dir=str(folder), settings=quiet, reinit="create_new", **fields)
    except wandb.errors.UsageError as error:
        raise UserError(f"W&B refused: {first_line(error)} Type `wandb login`, or tracking=offline") from error
    except Exception as error:  # no network, no server, a server's own error
        raise NoAnswer(f"W&B did not start: {first_line(error)}") from error


def start_after_failure(fields: dict[str, Any], folder: Path) -> Any:
    """``start`` of a run that W&B has just failed to start."""
    global _failing
    _failing = True
    own_client().teardown()  # the id of such a run stays taken in the client's service
    return start(fields, folder)


def finish(run: Any, code: int, trouble: str | None = None) -> str | None:
    """End an online run. Why W&B does not have all of it, if so: the ``trouble`` it had, no answer, or a refusal."""
    global _failing
    try:
        run.finish(exit_code=code)
    except Exception as error:
        slow = f"not done after {int(run.settings.finish_timeout)} s"
        trouble = trouble or (slow if isinstance(error, TimeoutError) else reason(error))
    _failing = trouble is not None  # a server that refuses does answer
    return trouble or refusal(Path(run.settings.log_internal))


def refusal(log: Path) -> str | None:
    """What the server refused of a run. Only the log that the client keeps of it says so: ``run.finish`` is content.

    What is given up is an error there; what is sent again is not, nor is every error a loss."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if '"level":"ERROR' in line]
    except OSError:
        return None
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # a line cut short
            continue
        said = ": ".join(str(entry[key]) for key in ("msg", "error") if key in entry)
        for begin, part in GIVEN_UP.items():
            if said.startswith(begin):
                status = re.search(r"\b[45]\d\d\b(?: [A-Z]\w*)*", said)
                return f"refused {part}: {status[0] if status else said[:160]}"
    return None


def reason(error: Exception) -> str:
    """What W&B says went wrong, in fewer words."""
    return (
        first_line(error)
        .rpartition("Failed to execute API request: ")[2]
        .replace("the service process is busy and did not respond in time.", "no answer")
    )


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip()
