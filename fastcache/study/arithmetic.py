"""Positions that attention computes with and without a K/V cache, and the bytes of the cache. No torch."""

from typing import NamedTuple


class Counted(NamedTuple):
    """Position computations over all layers."""

    without: int
    cached: int

    @property
    def saved(self) -> float:
        return 1 - self.cached / self.without

    @property
    def ratio(self) -> float:
        return self.without / self.cached


def tokens(layers: int, prompt: int, new: int) -> Counted:
    """Token by token: without a cache each new token computes all positions before it, with one each position is
    computed once, the last new token included. 4 layers, 3 and 10: 300 and 52."""
    return Counted(layers * sum(range(prompt, prompt + new)), layers * (prompt + new))


def chunks(count: int, chunk_tokens: int, forwards: int) -> Counted:
    """Chunk by chunk with ``forwards`` forwards of each (the store pass included on both sides): without a cache every
    forward computes all chunks up to its own. The ratio is (count + 1) / 2."""
    return Counted(chunk_tokens * forwards * count * (count + 1) // 2, count * chunk_tokens * forwards)


def cache_bytes(layers: int, positions: int, dim: int, item: int = 4) -> int:
    """K and V of all layers; 12 layers, 1000 positions, 512 channels of float32: 49 152 000."""
    return layers * positions * 2 * dim * item


def packed_bytes(layers: int, positions: int, heads: int, head_dim: int, bits: int) -> int:
    """The same in ``bits`` a value, with bfloat16 scales (and low ends, for 4 bits) per token and head."""
    return layers * positions * 2 * heads * (head_dim * bits // 8 + (2 if bits == 8 else 4))
