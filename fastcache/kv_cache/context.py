"""CausalContext: what one DiT forward knows about the rollout, and which engine serves an attention module."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fastcache.kv_cache.base import BaseKVCacheEngine
from fastcache.kv_cache.errors import AmbiguousEngineError, ChunkOrderError, ContextError, UnregisteredModuleError

CROSS_FILL = ("on_store", "first_no_grad")


@dataclass(frozen=True, kw_only=True, eq=False)
class CausalContext:
    """Metadata of one forward; make the next one with dataclasses.replace, which checks again.

    Raises at construction: AmbiguousEngineError if two branches own a module; ContextError if is_ar meets block_mask,
    store_kv meets block_mask, sel or no engines, sel meets no engines, or a size is out of range.
    """

    num_frames: int  # latent frames in this forward
    frame_seqlen: int  # tokens per latent frame
    cache_engines: Mapping[str, BaseKVCacheEngine] = field(default_factory=dict)  # by branch; empty: nothing is cached
    cache_tag: str = "pos"
    cur_start_frame: int = 0  # latent frame this forward starts at: rotary and cache offset
    chunk_size: int | None = None  # latent frames per chunk
    total_num_frames: int | None = None  # latent frames of the video, where bounded
    store_kv: bool = False  # the store pass: commit this forward's K/V
    is_ar: bool = False  # chunk by chunk against the cache, without a mask
    frame_offset: int = 0  # latent frames before this segment of the control video
    block_mask: Any = None  # bool [T, T] or a flex BlockMask over the whole sequence
    sel: Tensor | None = None  # int64 [M]: this forward computes these tokens only
    step_idx: int | None = None
    chunk_idx: int | None = None
    keep_current: bool = False  # a method selects tokens: full denoising forwards must put_current_kv
    cross_fill: str = "on_store"  # the forward that fills the cross entries: the store pass, or "first_no_grad"

    def __post_init__(self) -> None:
        self._check_flags()
        owner: dict[int, str] = {}
        for branch, engine in self.cache_engines.items():
            for module in engine.registered_modules():
                other = owner.setdefault(id(module), branch)
                if other != branch:
                    raise AmbiguousEngineError(f"{type(module).__name__} is registered in {other} and in {branch}")

    @property
    def start_token(self) -> int:
        """Absolute index of the first token of this forward."""
        return self.cur_start_frame * self.frame_seqlen

    @property
    def rope_start(self) -> tuple[int, bool]:
        """Rotary time position of the first frame, and whether it is relative to the visible window.

        Raises ContextError if the branches count differently."""
        engines = self.cache_engines.values()
        found = {(e.past_frames(self.cur_start_frame, self.num_frames), e.relative) for e in engines}
        if len(found) > 1:
            raise ContextError(f"the engines of {', '.join(self.cache_engines)} count rotary positions differently")
        return next(iter(found), (self.cur_start_frame, False))

    @property
    def num_tokens(self) -> int:
        return self.num_frames * self.frame_seqlen

    @property
    def end_token(self) -> int:
        return self.start_token + self.num_tokens

    def resolve_registered_engine(self, module: nn.Module) -> BaseKVCacheEngine | None:
        """The engine that owns the module, or None if there are no engines.

        Asked anew each time, because modules may be registered after construction. Raises UnregisteredModuleError if
        nobody owns the module, AmbiguousEngineError if several do.
        """
        if not self.cache_engines:
            return None
        owners = [branch for branch, engine in self.cache_engines.items() if engine.is_registered(module)]
        if not owners:
            raise UnregisteredModuleError(
                f"{type(module).__name__} is registered in none of the branches {', '.join(self.cache_engines)}; a "
                "copied model must rebuild its engines first"
            )
        if len(owners) > 1:
            raise AmbiguousEngineError(f"{type(module).__name__} is registered in branches {' and '.join(owners)}")
        return self.cache_engines[owners[0]]

    def check_consistency(self) -> None:
        """Raise ChunkOrderError unless all blocks of each branch hold the same number of tokens of this cache_tag, and
        after a store pass exactly end_token. A skipped block or an exception halfway breaks this: truncate()."""
        for branch, engine in self.cache_engines.items():
            lens = engine.block_lens(self.cache_tag)
            expected = self.end_token if self.store_kv else next(iter(lens.values()), 0)
            wrong = {block: length for block, length in lens.items() if length != expected}
            if wrong:
                raise ChunkOrderError(
                    f"branch {branch}, tag {self.cache_tag!r}: {expected} tokens expected, by block: {wrong}"
                )

    def _check_flags(self) -> None:
        if self.is_ar and self.block_mask is not None:
            raise ContextError("is_ar and block_mask exclude each other")
        if self.store_kv and self.block_mask is not None:
            raise ContextError("store_kv and block_mask exclude each other")
        if self.store_kv and not self.cache_engines:
            raise ContextError("store_kv needs cache_engines")
        if self.store_kv and self.sel is not None:
            raise ContextError("store_kv and sel exclude each other: a committed chunk is always complete")
        if self.sel is not None and not self.cache_engines:
            raise ContextError("sel needs cache_engines, which hold the K/V of the other tokens")
        if self.cross_fill not in CROSS_FILL:
            raise ContextError(f"cross_fill {self.cross_fill!r} is not one of {', '.join(CROSS_FILL)}")
        if self.num_frames < 1 or self.frame_seqlen < 1 or self.cur_start_frame < 0:
            raise ContextError(
                f"out of range: num_frames {self.num_frames}, frame_seqlen {self.frame_seqlen}, "
                f"cur_start_frame {self.cur_start_frame}"
            )
        end_frame = self.cur_start_frame + self.num_frames
        if self.total_num_frames is not None and end_frame > self.total_num_frames:
            raise ContextError(f"this forward ends at frame {end_frame}, the video at {self.total_num_frames}")
