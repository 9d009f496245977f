"""Parameter names of Wan transformers: the original ones, which ours are, and those of diffusers.

Sources: Wan-Video/Wan2.1 and huggingface/diffusers (WanTransformer3DModel, WanVACETransformer3DModel). The two number
the LayerNorms of a block differently: the affine one before cross-attention is norm3 in Wan, norm2 in diffusers.
"""

import re
from collections.abc import Mapping

_TOP = {
    "patch_embedding": "patch_embedding",
    "vace_patch_embedding": "vace_patch_embedding",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "img_emb.proj.0": "condition_embedder.image_embedder.norm1",
    "img_emb.proj.1": "condition_embedder.image_embedder.ff.net.0.proj",
    "img_emb.proj.3": "condition_embedder.image_embedder.ff.net.2",
    "img_emb.proj.4": "condition_embedder.image_embedder.norm2",
    "head.head": "proj_out",
}
_TOP_TENSORS = {
    "head.modulation": "scale_shift_table",
    "img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed",
}
_BLOCK = {
    **{f"self_attn.{x}": f"attn1.to_{x}" for x in "qkv"},
    **{f"cross_attn.{x}": f"attn2.to_{x}" for x in "qkv"},
    "self_attn.o": "attn1.to_out.0",
    "cross_attn.o": "attn2.to_out.0",
    **{f"self_attn.norm_{x}": f"attn1.norm_{x}" for x in "qk"},
    **{f"cross_attn.norm_{x}": f"attn2.norm_{x}" for x in "qk"},
    "cross_attn.k_img": "attn2.add_k_proj",
    "cross_attn.v_img": "attn2.add_v_proj",
    "cross_attn.norm_k_img": "attn2.norm_added_k",
    "norm3": "norm2",
    "norm2": "norm3",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "before_proj": "proj_in",
    "after_proj": "proj_out",
}
_BLOCK_TENSORS = {"modulation": "scale_shift_table"}
_IN_BLOCK = re.compile(r"((?:vace_)?blocks\.\d+\.)(.+)")
_MARK = re.compile(r"(.*\.)?(patch_embedding\.weight|blocks\.0\.(self_attn\.q|attn1\.to_q)\.weight)")
_WRAPPERS = re.compile(r"(?<![^.])(_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module)\.")
_UNUSED = re.compile(r"(?:.*\.)?(attn\d\.norm_added_q\.\w+|rope\.freqs\w*|freqs)")


def to_diffusers(name: str) -> str:
    """Original name -> diffusers' name; names that Wan does not have are returned as they are."""
    return _renamed(name, _TOP, _TOP_TENSORS, _BLOCK, _BLOCK_TENSORS)


def to_original(name: str) -> str:
    """diffusers' name -> original name, the inverse of to_diffusers."""
    return _renamed(name, *(_inverse(part) for part in (_TOP, _TOP_TENSORS, _BLOCK, _BLOCK_TENSORS)))


def is_diffusers(names) -> bool:
    """Whether the names, prefixes removed, are those of diffusers."""
    return any(name.startswith("condition_embedder.") or ".attn1." in name for name in names)


def unwrapped(name: str) -> str:
    """Without the segments that FSDP, torch.compile and activation checkpointing put into names."""
    return _WRAPPERS.sub("", name)


def prefixes(names) -> list[str]:
    """What precedes the names of each Wan transformer among ``names``: "generator.model.", or "" for none."""
    return list(dict.fromkeys(match[1] or "" for match in map(_MARK.fullmatch, names) if match))


def is_unused(name: str) -> bool:
    """Tables and norms that some checkpoints carry and no Wan transformer reads."""
    return _UNUSED.fullmatch(name) is not None


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in table.items()}


def _renamed(
    name: str,
    top: Mapping[str, str],
    top_tensors: Mapping[str, str],
    block: Mapping[str, str],
    block_tensors: Mapping[str, str],
) -> str:
    where = _IN_BLOCK.fullmatch(name)
    start, rest = where.groups() if where else ("", name)
    modules, tensors = (block, block_tensors) if where else (top, top_tensors)
    if rest in tensors:
        return start + tensors[rest]
    module, _, leaf = rest.rpartition(".")
    return f"{start}{modules[module]}.{leaf}" if module in modules else name
