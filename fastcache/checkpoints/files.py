"""Which files a checkpoint is made of: one file, an index with its shards, or a folder with either. No torch."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from fastcache.errors import UserError

INDEX = ".safetensors.index.json"
TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True)
class Files:
    """The files of one checkpoint: those with tensors in order, and the index and configuration if there are any."""

    path: Path
    tensors: tuple[Path, ...]
    index: Path | None = None
    config: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file that is read, in a fixed order."""
        return (*(extra for extra in (self.config, self.index) if extra), *self.tensors)

    @property
    def size(self) -> int:
        """Bytes of the files with tensors."""
        return sum(file.stat().st_size for file in self.tensors)

    def weight_map(self) -> dict[str, str]:
        """Tensor name -> file name, as the index tells it. Raises UserError if it is no index."""
        return {} if self.index is None else _weight_map(self.index)


def find(path: str | Path) -> Files:
    """The files behind ``path``. Raises UserError where nothing is there, shards are missing, or a folder leaves it
    open which of its files is meant."""
    path = Path(path).expanduser()
    if path.is_dir():
        return _in_folder(path, path / "transformer" if (path / "transformer").is_dir() else path)
    if not path.is_file():
        raise UserError(
            f"weights={path}: no such file or folder; leave weights= out for the weights that come with the model"
        )
    if path.name.endswith(INDEX):
        return _indexed(path, path)
    return Files(path, (path,))


def _in_folder(path: Path, folder: Path) -> Files:
    indices = sorted(folder.glob(f"*{INDEX}"))
    plain = sorted(folder.glob("*.safetensors"))
    config = _config(folder)
    if len(indices) == 1:
        return _indexed(path, indices[0])
    if indices:
        raise _unclear(path, indices)
    shards = [match for match in (_SHARD.fullmatch(file.name) for file in plain) if match]
    if plain and len(shards) == len(plain) and len({match.groups()[::2] for match in shards}) == 1:
        name, _, total = shards[0].groups()
        wanted = [folder / f"{name}-{i + 1:05d}-of-{total}.safetensors" for i in range(int(total))]
        return Files(path, _there(path, wanted), config=config)
    found = plain or sorted(file for file in folder.iterdir() if file.suffix in TORCH_ENDINGS)
    if len(found) == 1:
        return Files(path, (found[0],), config=config)
    if found:
        raise _unclear(path, found)
    raise UserError(
        f"weights={path} holds no checkpoint: expected a .safetensors, .pt or .pth file, shards with their "
        f"*{INDEX}, or a transformer/ folder with them"
    )


def _indexed(path: Path, index: Path) -> Files:
    names = sorted(set(_weight_map(index).values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise UserError(f"weights={path}: {index.name} names {outside[0]}; expected files that lie beside it")
    return Files(path, _there(path, [index.parent / name for name in names]), index, _config(index.parent))


def _config(folder: Path) -> Path | None:
    return folder / "config.json" if (folder / "config.json").is_file() else None


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"weights={index} cannot be read as an index ({type(error).__name__}: {error}); expected JSON with a "
            "weight_map of tensor names to files"
        ) from None


def _there(path: Path, files: list[Path]) -> tuple[Path, ...]:
    if missing := [file.name for file in files if not file.is_file()]:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise UserError(
            f"weights={path} lacks {len(missing)} of its {len(files)} shards: {', '.join(missing[:5])}{more}; "
            "fetch them again"
        )
    return tuple(files)


def _unclear(path: Path, files: list[Path]) -> UserError:
    names = ", ".join(file.name for file in files[:5]) + (", ..." if len(files) > 5 else "")
    return UserError(f"weights={path} holds several checkpoints ({names}); name one: weights={files[0]}")
