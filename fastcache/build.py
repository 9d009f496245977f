"""From a plain configuration node to the object it names. Needs no Hydra and imports nothing but the target."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from fastcache.catalog import closest
from fastcache.errors import UserError


def build(node: Mapping[str, Any], **more: Any) -> Any:
    """Call ``node["_target_"]`` with the node's other keys, ``more`` taking the place of equal ones.

    Raises UserError on a target that cannot be imported, giving the real cause, and on an option it does not have.
    """
    options = {key: value for key, value in node.items() if key != "_target_"} | more
    target = locate(str(node["_target_"]))
    known = inspect.signature(target).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        for key in options:
            if key not in known:
                kind = str(node["_target_"]).rpartition(".")[2]
                names = ", ".join(known) or "none"
                raise UserError(f"{kind} has no option {key}.{closest(key, known)} Its options: {names}")
    return target(**options)


def locate(name: str) -> Callable[..., Any]:
    """The class or function of a dotted name. Raises UserError if it cannot be imported."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except ImportError as error:
        raise UserError(f"{name} cannot be imported: {error}") from error
    except (AttributeError, ValueError):
        raise UserError(f"{name} does not exist: expected _target_ to name a class or function") from None
