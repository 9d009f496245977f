"""Which attention modules an engine serves: module identity -> block index, local to the engine's branch."""

import weakref
from collections.abc import Iterable

from torch import nn

from fastcache.kv_cache.errors import DuplicateRegistrationError, UnregisteredModuleError

ROLES = ("self", "cross")


class Registration:
    """Register, look up and forget attention modules.

    ``_module_to_block[id(module)]`` is the block index. An id can be recycled once a module is freed, so each slot
    (block index, role) also keeps a weak reference, and a look-up compares identity.
    """

    def __init__(self) -> None:
        self._module_to_block: dict[int, int] = {}
        self._slots: dict[tuple[int, str], weakref.ref[nn.Module]] = {}

    def register(self, module: nn.Module, block_idx: int, role: str = "self") -> None:
        """Make module the "self" or "cross" attention of block_idx. Registering the same triple again does nothing.

        Raises DuplicateRegistrationError if the module has another index or role here, or the slot is taken.
        """
        if role not in ROLES:
            raise ValueError(f"role {role!r} is not one of {', '.join(ROLES)}")
        self._forget_dead()
        for slot, ref in self._slots.items():
            if ref() is module and slot != (block_idx, role):
                raise DuplicateRegistrationError(
                    f"module is {slot[1]} attention of block {slot[0]}, cannot become {role} of block {block_idx}"
                )
        held = self._slots.get((block_idx, role))
        if held is not None and held() is not module:
            raise DuplicateRegistrationError(f"block {block_idx} already has another {role} attention module")
        self._slots[block_idx, role] = weakref.ref(module)
        self._module_to_block[id(module)] = block_idx

    def register_blocks(self, blocks: Iterable[nn.Module]) -> None:
        """Register blocks[i].self_attn and .cross_attn (or attn1 and attn2) as block i."""
        for block_idx, block in enumerate(blocks):
            for role, names in (("self", ("self_attn", "attn1")), ("cross", ("cross_attn", "attn2"))):
                module = next((getattr(block, n) for n in names if hasattr(block, n)), None)
                if module is not None:
                    self.register(module, block_idx, role)

    def is_registered(self, module: nn.Module) -> bool:
        block_idx = self._module_to_block.get(id(module))
        if block_idx is None:
            return False
        for role in ROLES:  # a plain loop: this runs at every look-up of every block
            ref = self._slots.get((block_idx, role))
            if ref is not None and ref() is module:
                return True
        return False

    def block_index(self, module: nn.Module) -> int:
        """The module's block index; raises UnregisteredModuleError if this engine does not know it."""
        if not self.is_registered(module):
            raise UnregisteredModuleError(
                f"{type(module).__name__} is not registered here ({self.num_blocks} blocks are); a copied model must "
                "rebuild its engines first"
            )
        return self._module_to_block[id(module)]

    def registered_modules(self) -> list[nn.Module]:
        """The live modules."""
        return [module for ref in self._slots.values() if (module := ref()) is not None]

    @property
    def block_indices(self) -> list[int]:
        """Block indices with a live module, ascending."""
        return sorted({slot[0] for slot, ref in self._slots.items() if ref() is not None})

    @property
    def num_blocks(self) -> int:
        return len(self.block_indices)

    def _forget_dead(self) -> None:
        alive = {slot: (ref, module) for slot, ref in self._slots.items() if (module := ref()) is not None}
        self._slots = {slot: ref for slot, (ref, _) in alive.items()}
        self._module_to_block = {id(module): slot[0] for slot, (_, module) in alive.items()}
