"""Who may import whom: the rooms of the house, checked on the syntax tree of every file."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "fastcache"
COMMON = {"errors", "files"}
LIGHT = {"torch", "hydra", "wandb"}
# What each room may import of fastcache, and which outside packages it must not import.
ROOMS = {
    "errors": (set(), {"torch", "hydra", "wandb"}),
    "files": ({"errors"}, {"torch", "hydra", "wandb"}),
    "encoders": (COMMON | {"checkpoints"}, LIGHT),
    "cachedir": (COMMON, {"torch", "hydra", "wandb"}),
    "step": (COMMON, {"hydra", "wandb"}),
    "schedule": (COMMON, {"torch", "hydra", "wandb"}),
    "rescale": (COMMON, {"hydra", "wandb"}),
    "noise": (COMMON, {"hydra", "wandb"}),
    "fitting": (COMMON, {"torch", "hydra", "wandb"}),
    "fits": (COMMON | {"fitting"}, {"torch", "hydra", "wandb"}),
    "merge": (COMMON | {"fits"}, {"torch", "hydra", "wandb"}),
    "sampler": (COMMON, {"hydra", "wandb"}),
    "methods": (COMMON | {"step", "rescale", "schedule", "methods"}, {"hydra", "wandb"}),
    "kv_cache": (COMMON | {"kv_cache"}, {"hydra", "wandb"}),
    "world": (COMMON | {"world"}, {"torch", "hydra", "wandb"}),
    "checkpoints": (COMMON | {"cachedir", "checkpoints"}, {"hydra", "wandb"}),
    "models": (
        COMMON | {"condition", "step", "kv_cache", "world", "checkpoints", "cachedir", "encoders", "memory", "models"},
        {"hydra", "wandb"},
    ),
    "training": (
        COMMON
        | {"condition", "step", "models", "world", "training", "sample", "sampler", "noise", "methods", "kv_cache"},
        {"wandb"},
    ),
    "metrics": (COMMON | {"cachedir", "metrics"}, {"hydra", "wandb"}),
    "media": (COMMON | {"media", "results"}, {"torch", "hydra", "wandb"}),
    "ages": (COMMON | {"step", "kv_cache"}, {"hydra", "wandb"}),
    "condition": (COMMON, {"hydra", "wandb"}),
    "forwards": (COMMON | {"step", "ages", "condition", "sampler", "noise", "kv_cache"}, {"hydra", "wandb"}),
    "sample": (COMMON | {"condition", "forwards", "sampler", "schedule", "noise", "kv_cache"}, {"hydra", "wandb"}),
    "hindsight": (COMMON | {"methods", "sample", "schedule"}, {"hydra", "wandb"}),
    "guidance": (COMMON, LIGHT),
    "shown": (COMMON, LIGHT),
    "catalog": (COMMON, LIGHT),
    "build": (COMMON | {"catalog"}, LIGHT),
    "cost": (COMMON, LIGHT),
    "memory": (COMMON | {"cost"}, {"hydra", "wandb"}),
    "settings": (COMMON | {"catalog", "checkpoints", "fits", "encoders", "guidance", "schedule", "shown"}, LIGHT),
    "launchers": (COMMON | {"catalog"}, {"torch", "wandb"}),
    "grids": (COMMON, {"torch", "wandb"}),
    "config": (COMMON | {"catalog", "grids", "launchers", "shown"}, {"torch", "wandb"}),
    "results": (COMMON | {"encoders", "settings"}, LIGHT),
    "scores": (COMMON | {"catalog", "metrics", "results", "schedule", "settings"}, LIGHT),
    "finished": (COMMON | {"build", "media", "metrics", "results", "scores", "settings", "terminal", "track"}, LIGHT),
    "worker": (COMMON | {"terminal"}, LIGHT),
    "terminal": (COMMON | {"catalog", "settings"}, LIGHT),
    "report": (
        COMMON | {"catalog", "config", "report", "results", "scores", "settings", "terminal", "fits", "media", "track"},
        {"torch", "torchvision", "lpips", "hydra", "wandb"},
    ),
    "target": (COMMON | {"catalog", "config", "report", "scores", "settings"}, LIGHT),
    "commit": (set(), {"torch", "hydra", "wandb"}),
    "chunk_rows": (set(), {"torch", "hydra", "wandb"}),
    "track": (COMMON | {"chunk_rows", "commit", "terminal", "wandb_client"}, {"torch", "hydra"}),
    "wandb_client": (COMMON, {"torch", "hydra"}),
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, bool]]:
    """(dotted module, at module level?) of every import in a file."""
    tree = ast.parse(path.read_text())
    top = set()
    for node in tree.body:
        top |= {id(child) for child in ast.walk(node)} if isinstance(node, ast.Import | ast.ImportFrom) else set()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "fastcache" else [node.module]
            found += [(str(name), id(node) in top) for name in names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_import_only_what_they_may(path: Path) -> None:
    if room(path) not in ROOMS:
        return  # entry points wire everything; test_entry_points_are_light covers them
    allowed, refused = ROOMS[room(path)]
    for name, _ in imports(path):
        package, _, rest = name.partition(".")
        if package == "fastcache" and rest:
            assert rest.split(".")[0] in allowed, f"{path.name} imports {name}"
        assert package not in refused, f"{path.name} imports {name}"


def test_every_room_of_the_table_exists() -> None:
    rooms = {room(path) for path in FILES}
    assert set(ROOMS) <= rooms, sorted(set(ROOMS) - rooms)


def test_only_track_and_its_client_know_wandb() -> None:
    named = {path.name: {name for name, _ in imports(path)} for path in FILES}
    knowing = {path for path, names in named.items() if any(name.split(".")[0] == "wandb" for name in names)}
    assert knowing == {"track.py", "wandb_client.py"}
    assert {path for path, names in named.items() if "fastcache.wandb_client" in names} == {"track.py"}


@pytest.mark.parametrize("name", ["run.py", "calibrate.py", "preflight.py", "__init__.py", "metrics/score.py"])
def test_entry_points_are_light(name: str) -> None:
    """--help and composing a config never pay for torch: entry points import it inside functions."""
    heavy = {"torch", "lpips", "wandb"}
    for module, top in imports(PACKAGE / name):
        assert not (top and module.split(".")[0] in heavy), f"{name} imports {module} at module level"
