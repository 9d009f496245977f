"""What a run will need in memory, estimated from sizes alone, and what the device has. Torch only to ask a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastcache import cost
from fastcache.cost import Sizes

# Working memory of the Wan VAE's decoder: numbers a pixel, for each of the four frames it makes at a time. Measured on
# a CPU, as the slope of the peak between 96 x 96 and 160 x 160 pixels.
VAE_NUMBERS = 900


class Around(NamedTuple):
    """What surrounds a DiT: parameters of its encoders, and what the VAE works with."""

    text: int = 0
    image: int = 0
    vae: int = 0
    vae_item: int = 4  # bytes a number
    vae_pixels: int = 0  # that the VAE works on at once
    elsewhere: bool = False  # the text and image encoders run on another device


class Estimate(NamedTuple):
    """Bytes, all about. Phases that follow each other do not add up: see ``phases``."""

    parameters: int
    weights: int
    kv: dict[str, int]  # of each branch
    working: int  # K/V of the current chunk
    method: int
    forward: int  # comes and goes in a forward
    text: int
    image: int
    vae: int
    decoding: int  # what the VAE works with

    @property
    def phases(self) -> dict[str, int]:
        """Each phase of a run and what is in memory then; the text encoder is gone before the DiT comes."""
        rollout = self.weights + self.vae + sum(self.kv.values()) + self.working + self.method + self.forward
        phases = {"encoding text": self.text} if self.text else {}
        phases |= {"encoding pictures": self.weights + self.image} if self.image else {}
        return (
            phases | {"rollout": rollout} | ({"decoding": self.weights + self.vae + self.decoding} if self.vae else {})
        )

    @property
    def peak(self) -> int:
        return max(self.phases.values())


def estimate(sizes: Sizes, chunks: int, item: int, method: Any, around: Around, passes: int = 1) -> Estimate:
    """Of a run of ``chunks`` chunks, ``item`` bytes a number; ``method`` a CacheMethod, ``passes`` 2 with guidance."""
    blocks = sum(sizes.blocks.values())
    count = cost.parameters(sizes.config)
    encoder_item = 2 if item == 2 else 4
    return Estimate(
        parameters=count,
        weights=count * item,
        kv={branch: passes * count for branch, count in cost.branch_kv_bytes(sizes, chunks, item).items()},
        working=passes * cost.working_bytes(sizes, item) if method.selective else 0,
        method=passes * method.estimate_bytes(sizes.tokens * sizes.config.dim, blocks, item),
        forward=cost.forward_bytes(sizes, chunks, item),
        text=0 if around.elsewhere else around.text * encoder_item,
        image=0 if around.elsewhere else around.image * encoder_item,
        vae=around.vae * around.vae_item,
        decoding=VAE_NUMBERS * 4 * around.vae_pixels * around.vae_item,
    )


def available(device: str) -> int | None:
    """Bytes that this process can still take on a device; None where that cannot be told."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    found = [value for value in (_meminfo(), _cgroup()) if value is not None]
    return min(found, default=None)


def size(count: int) -> str:
    """Bytes in words: 2.84 GB, 13.4 MB."""
    unit, divisor = next(((u, d) for u, d in (("GB", 1e9), ("MB", 1e6)) if count >= d / 20), ("kB", 1e3))
    return f"{count / divisor:.{2 if unit == 'GB' else 1}f} {unit}"


def _meminfo(path: Path = Path("/proc/meminfo")) -> int | None:
    try:
        lines: Mapping[str, str] = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _cgroup(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container's limit leaves; files that were read can be dropped and do not count."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        told = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return limit - used + int(told.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
