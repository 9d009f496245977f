"""WindowKVCacheEngine: the static engine with a bound: the first frames, the latest frames, nothing in between.

``window_frames`` latent frames are visible at most, the ``sink_frames`` first ones and the current chunk included; the
buffer holds no more. With window 6, sink 3 and chunks of 3, chunk 3 (frames 9-11) sees frames 0-2 and itself. Frames
are evicted, oldest first, by a chunk's first forward only; its later forwards find them gone. What a chunk sees depends
on its position alone; where that is held no more (an earlier position, after truncate()), EvictedError.

``rope="absolute"`` keeps K rotated at absolute positions, as in training; the time distance to the sink grows without
bound and the rotary table ends. ``rope="relative"`` keeps K unrotated; attention rotates the visible frames anew at
each read, numbered 0, 1, 2, ... from the first visible one, the current chunk last. Until something is evicted both are
the same; afterwards a rollout of any length stays inside the table.

Visible frames: ``local_attn_size`` and ``sink_size`` of Self-Forcing (github.com/guandeh17/Self-Forcing); relative
positions as in LongLive (github.com/NVlabs/LongLive). Lifecycle and errors: base.py.
"""

from torch import Tensor

from fastcache.errors import UserError
from fastcache.kv_cache.entries import KVSpec, SelfEntry
from fastcache.kv_cache.errors import CapacityExceededError, EvictedError, KVSpecMismatchError
from fastcache.kv_cache.static_engine import StaticEntry, StaticKVCacheEngine

ROPES = ("absolute", "relative")


class WindowKVCacheEngine(StaticKVCacheEngine):
    """Needs a spec with frame_tokens; capacity_tokens bounds the video only where it is below the window.

    Raises UserError on a window or sink that is no number of frames, or an unknown ``rope``.
    """

    def __init__(
        self, window_frames: int = 21, sink_frames: int = 3, rope: str = "absolute", debug: bool = False
    ) -> None:
        super().__init__(debug)
        for name, value, least in (("window_frames", window_frames, 1), ("sink_frames", sink_frames, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"engine.{name}={value}: expected a whole number of latent frames, {least} or more")
        if rope not in ROPES:
            raise UserError(f"engine.rope={rope} is not one of {', '.join(ROPES)}")
        if sink_frames >= window_frames:
            raise UserError(self._too_small(window_frames, sink_frames, "a chunk"))
        self.window_frames, self.sink_frames, self.rope = window_frames, sink_frames, rope
        self.relative = rope == "relative"

    def check_frames(self, frames_per_chunk: int, frames: int) -> None:
        if self.window_frames < self.sink_frames + frames_per_chunk:
            what = f"a chunk of {frames_per_chunk} frames"
            raise UserError(self._too_small(self.window_frames, self.sink_frames, what))

    def share(self, frames: int, head_dim: int, item: int) -> float:
        return min(1.0, self.window_frames / frames)

    def past_frames(self, start_frame: int, frames: int) -> int:
        return min(start_frame, self.window_frames - frames) if self.relative else start_frame

    @staticmethod
    def _too_small(window: int, sink: int, chunk: str) -> str:
        return (
            f"engine.window_frames={window} is too small: it counts engine.sink_frames={sink} and {chunk}; "
            "widen the window or shorten the sink"
        )

    def _check_spec(self, spec: KVSpec) -> None:
        if spec.frame_tokens is None:
            raise KVSpecMismatchError(f"{type(self).__name__} counts in frames: the spec must give frame_tokens")

    def _buffer_tokens(self, spec: KVSpec) -> int:
        window = self.window_frames * (spec.frame_tokens or 0)
        return window if spec.capacity_tokens is None else min(window, spec.capacity_tokens)

    def _new_entry(self, spec: KVSpec) -> StaticEntry:
        entry = super()._new_entry(spec)
        entry.sink = self.sink_frames * (spec.frame_tokens or 0)
        entry.window = self.window_frames * (spec.frame_tokens or 0)
        return entry

    def _check_room(self, entry: SelfEntry, spec: KVSpec, tokens: int, where: str) -> None:
        assert isinstance(entry, StaticEntry)
        self._check_chunk(entry, tokens, where)
        if entry.keys.shape[1] < entry.window:
            super()._check_room(entry, spec, tokens, where)
        self._check_held(entry, where, entry.len, tokens)

    @staticmethod
    def _check_chunk(entry: StaticEntry, tokens: int, where: str) -> None:
        if tokens + entry.sink > entry.window:
            raise CapacityExceededError(
                f"{where}: a chunk of {tokens} tokens and a sink of {entry.sink} exceed the window of {entry.window}"
            )

    def _check_held(self, entry: StaticEntry, where: str, start_token: int, tokens: int) -> None:
        """Raise EvictedError unless everything that a chunk at start_token sees is held."""
        first = self._first(entry, start_token, tokens)
        if entry.evicted and max(first, entry.sink) < min(start_token, entry.sink + entry.evicted):
            raise EvictedError(
                f"{where}: a chunk of {tokens} tokens at {start_token} sees tokens from {first} on, but those from "
                f"{entry.sink} to {entry.sink + entry.evicted - 1} have left the window; clear() and start again"
            )

    def _check_cut(self, entry: SelfEntry, end_token: int, where: str) -> None:
        super()._check_cut(entry, end_token, where)
        _check_end(entry, end_token, where)

    def _check_past(self, entry: SelfEntry, where: str, start_token: int, tokens: int) -> None:
        assert isinstance(entry, StaticEntry)
        super()._check_past(entry, where, start_token, tokens)
        self._check_chunk(entry, tokens, where)
        self._check_held(entry, where, start_token, tokens)

    def _past(self, entry: SelfEntry, where: str, start_token: int, tokens: int) -> tuple[list[Tensor], list[Tensor]]:
        assert isinstance(entry, StaticEntry)
        self._check_past(entry, where, start_token, tokens)
        first, sink = self._first(entry, start_token, tokens), min(entry.sink, start_token)
        spans = (
            [(0, entry.row(start_token))] if first == sink else [(0, sink), (entry.row(first), entry.row(start_token))]
        )
        pieces = [entry.rows(*span) for span in spans if span[0] < span[1]]
        return [k for k, _ in pieces], [v for _, v in pieces]

    def _visible(self, entry: SelfEntry, end_token: int) -> tuple[list[Tensor], list[Tensor]]:
        _check_end(entry, end_token, "prefix")
        return super()._visible(entry, end_token)

    @staticmethod
    def _first(entry: StaticEntry, start_token: int, tokens: int) -> int:
        """The first token behind the sink that a chunk at start_token sees."""
        return max(min(entry.sink, start_token), start_token + tokens - (entry.window - entry.sink))

    def _make_room(self, entry: StaticEntry, tokens: int) -> None:
        """Move the kept tokens over the evicted ones, in steps that do not overlap and so need no second copy."""
        evict = entry.held + tokens - entry.window
        if evict <= 0:
            return
        for start in range(entry.sink, entry.held - evict, evict):
            end = min(start + evict, entry.held - evict)
            for to, source in zip(entry.rows(start, end), entry.rows(start + evict, end + evict), strict=True):
                to.copy_(source)
        entry.evicted += evict


def _check_end(entry: SelfEntry, end_token: int, where: str) -> None:
    """Raise EvictedError if the tokens just before end_token have left."""
    assert isinstance(entry, StaticEntry)
    if entry.sink < end_token < entry.sink + entry.evicted:
        raise EvictedError(f"{where}: the tokens before {end_token} have left the window")
