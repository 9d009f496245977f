"""Everything a KV engine or a CausalContext refuses. Each error is raised before any state is changed."""


class KVCacheError(RuntimeError):
    """Root of the tree: a K/V cache was used against its contract."""


class UnregisteredModuleError(KVCacheError):
    """No engine owns this attention module, as after a deepcopy whose engines were not rebuilt."""


class AmbiguousEngineError(KVCacheError):
    """Two branches own the same attention module."""


class DuplicateRegistrationError(KVCacheError):
    """A module is known under another block index or role, or another module holds that index and role."""


class ContextError(KVCacheError):
    """The fields of a CausalContext contradict each other."""


class UnknownTagError(KVCacheError):
    """This cache_tag was never given to ensure_capacity()."""


class CacheNotFilledError(KVCacheError):
    """A read of K/V that nobody has written: cross entry, provisional chunk, or the prefix of a later chunk."""


class ChunkOrderError(KVCacheError):
    """A chunk does not start where the stored tokens end: stored twice, or a gap in front of it."""


class ChunkBoundaryError(KVCacheError):
    """A token position that must end a stored chunk lies inside one or beyond the last."""


class KVSpecMismatchError(KVCacheError):
    """K and V disagree with each other or with the KVSpec of their tag. Nothing is ever cast in silence."""


class CapacityExceededError(KVCacheError):
    """The chunk does not fit into the capacity of the spec."""


class EvictedError(KVCacheError):
    """Tokens that this position must see have left the window."""


class NonFiniteError(KVCacheError):
    """K or V to be committed holds NaN or infinity."""


class PositionOutOfRangeError(KVCacheError):
    """A token position lies beyond the rotary table. Raised by the model."""


class GradientStoreError(KVCacheError):
    """K/V that require grad were to be stored while grad is enabled."""


class GradientReadError(KVCacheError):
    """Cached cross K/V were read while grad is enabled; recompute them instead."""


class CrossAlreadyFilledError(KVCacheError):
    """A cross entry was written a second time without clear()."""


class SelectionError(KVCacheError):
    """A token selection is not 1-D int64, not in range, not unique, or on the wrong device."""
