"""CausalContext: routing by module ownership, consistency of the branches, flags that exclude each other."""

import copy
import dataclasses

import pytest
import torch
from kv_toys import SPEC, Block, build, commit, rand, refused
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import fastcache.kv_cache as kv
from fastcache.kv_cache import CausalContext, KVCacheEngine, KVSpec, dense_block_mask

WIDTH, HEADS, FRAMES, FRAME = 16, 2, 2, 3  # tokens wide, frames per chunk, tokens per frame


class Attention(nn.Module):
    """Self-attention that knows no branch: it asks the context for its engine."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, ctx):
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv(x).chunk(3, -1))
        engine = ctx.resolve_registered_engine(self)
        if engine is None:
            keys, values = k, v
        else:
            keys, values = engine.attend_view(self, k, v, cache_tag=ctx.cache_tag, start_token=ctx.start_token)
            if ctx.store_kv:
                engine.append_self_kv(self, k, v, cache_tag=ctx.cache_tag, start_token=ctx.start_token)
        q, keys, values = (t.transpose(1, 2) for t in (q, keys, values))
        return x + scaled_dot_product_attention(q, keys, values, attn_mask=ctx.block_mask).transpose(1, 2).flatten(2)


class TwoBranches(nn.Module):
    """A main stream of two blocks and a control stream of one, whose output is added to the first main block's."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self.vace_blocks = nn.ModuleList([Attention()])
        self.kv_cache_engines = {"main": KVCacheEngine(), "vace": KVCacheEngine()}
        self.rebuild_kv_engines()

    def rebuild_kv_engines(self):
        for branch, blocks in (("main", self.blocks), ("vace", self.vace_blocks)):
            for block_idx, block in enumerate(blocks):
                self.kv_cache_engines[branch].register(block, block_idx)

    def allocate(self):
        for engine in self.kv_cache_engines.values():
            engine.ensure_capacity("pos", KVSpec(1, HEADS, WIDTH // HEADS, torch.float32, "cpu"))

    def forward(self, x, control, ctx):
        hint = self.vace_blocks[0](control, ctx)
        return self.blocks[1](self.blocks[0](x, ctx) + hint, ctx)


def context(engines=None, chunk_idx=0, **options):
    start = chunk_idx * FRAMES
    return CausalContext(
        cache_engines=engines or {}, cur_start_frame=start, num_frames=FRAMES, frame_seqlen=FRAME, **options
    )


@torch.no_grad()
def test_each_branch_stores_its_own_stream():
    model, tokens = TwoBranches(), FRAMES * FRAME
    model.allocate()
    x, control = torch.randn(1, 3 * tokens, WIDTH), torch.randn(1, 3 * tokens, WIDTH)
    chunks = []
    for chunk_idx in range(3):
        rows = slice(chunk_idx * tokens, (chunk_idx + 1) * tokens)
        ctx = context(model.kv_cache_engines, chunk_idx, store_kv=True)
        chunks.append(model(x[:, rows], control[:, rows], ctx))
        ctx.check_consistency()
    engines = model.kv_cache_engines
    assert engines["main"].block_lens("pos") == {0: 3 * tokens, 1: 3 * tokens}
    assert engines["vace"].block_lens("pos") == {0: 3 * tokens}
    for branch, module, stream in (("main", model.blocks[0], x), ("vace", model.vace_blocks[0], control)):
        stored, _ = engines[branch].get_self_prefix(module, cache_tag="pos")
        expected = module.qkv(stream)[..., WIDTH : 2 * WIDTH].unflatten(-1, (HEADS, -1))
        torch.testing.assert_close(stored, expected)
    mask = dense_block_mask((FRAMES,) * 3, FRAME)
    whole = model(x, control, CausalContext(num_frames=3 * FRAMES, frame_seqlen=FRAME, block_mask=mask))
    torch.testing.assert_close(torch.cat(chunks, 1), whole)


def test_resolves_the_owner_by_identity():
    model = TwoBranches()
    ctx = context(model.kv_cache_engines)
    assert ctx.resolve_registered_engine(model.blocks[0]) is model.kv_cache_engines["main"]
    assert ctx.resolve_registered_engine(model.vace_blocks[0]) is model.kv_cache_engines["vace"]
    assert context().resolve_registered_engine(model.blocks[0]) is None


def test_refuses_a_module_nobody_owns():
    model = TwoBranches()
    ctx = context(model.kv_cache_engines)
    with refused(model.kv_cache_engines["main"], kv.UnregisteredModuleError, "main, vace"):
        ctx.resolve_registered_engine(Attention())


@torch.no_grad()
def test_a_copied_model_is_refused_until_it_rebuilds():
    model = TwoBranches()
    model.allocate()
    x = torch.randn(1, FRAMES * FRAME, WIDTH)
    model(x, x, context(model.kv_cache_engines, store_kv=True))
    twin = copy.deepcopy(model)
    with refused(twin.kv_cache_engines["main"], kv.UnregisteredModuleError, "rebuild"):
        twin(x, x, context(twin.kv_cache_engines))
    twin.rebuild_kv_engines()
    twin.allocate()
    twin(x, x, context(twin.kv_cache_engines, store_kv=True))
    assert model.kv_cache_engines["main"].block_lens("pos") == {0: 6, 1: 6}
    stored = [m.kv_cache_engines["main"]._self_kv[0]["pos"].k[0] for m in (model, twin)]
    assert torch.equal(*stored) and stored[0] is not stored[1]


def test_refuses_two_owners_at_construction_and_later():
    model = TwoBranches()
    early = context(model.kv_cache_engines)
    model.kv_cache_engines["vace"].register(model.blocks[0], 7)
    with refused(model.kv_cache_engines["vace"], kv.AmbiguousEngineError, "main.*vace"):
        early.resolve_registered_engine(model.blocks[0])
    with refused(model.kv_cache_engines["vace"], kv.AmbiguousEngineError, "main.*vace"):
        context(model.kv_cache_engines)
    assert early.resolve_registered_engine(model.blocks[1]) is model.kv_cache_engines["main"]


def test_one_engine_may_hold_both_roles_of_a_block():
    engine, block = KVCacheEngine(), Block()
    engine.register_blocks([block])
    ctx = context({"main": engine})
    assert ctx.resolve_registered_engine(block.self_attn) is ctx.resolve_registered_engine(block.cross_attn) is engine


def test_tokens_follow_from_frames():
    ctx = CausalContext(num_frames=3, frame_seqlen=1560, cur_start_frame=18, total_num_frames=21)
    assert (ctx.start_token, ctx.num_tokens, ctx.end_token) == (28080, 4680, 32760)


def test_consistency_finds_a_skipped_block_and_truncate_repairs_it():
    engine, blocks = build()
    commit(engine, blocks, 0, tokens=6)
    good = context({"main": engine}, 1)
    good.check_consistency()
    engine.append_self_kv(blocks[0].self_attn, rand(6), rand(6), cache_tag="pos", start_token=6)
    with refused(engine, kv.ChunkOrderError, r"main.*12 tokens expected.*\{1: 6\}"):
        context({"main": engine}, 1).check_consistency()
    engine.truncate("pos", good.start_token)
    good.check_consistency()


def test_consistency_finds_a_branch_that_missed_the_store_pass():
    (main, blocks), (vace, _) = build(), build(num_blocks=1)
    commit(main, blocks, 0, tokens=6)
    engines = {"main": main, "vace": vace}
    context(engines).check_consistency()  # equal inside each branch
    with refused(vace, kv.ChunkOrderError, "vace.*6 tokens expected.*{0: 0}"):
        context(engines, store_kv=True).check_consistency()


def test_consistency_is_checked_per_tag():
    engine, blocks = build()
    engine.append_self_kv(blocks[0].self_attn, rand(6), rand(6), cache_tag="neg", start_token=0)
    context({"main": engine}).check_consistency()
    with refused(engine, kv.ChunkOrderError, "neg"):
        context({"main": engine}, cache_tag="neg").check_consistency()
    with refused(engine, kv.UnknownTagError, "typo"):
        context({"main": engine}, cache_tag="typo").check_consistency()


MASK, SEL = torch.ones(6, 6, dtype=torch.bool), torch.tensor([0])


@pytest.mark.parametrize(
    "flags, words",
    [
        ({"is_ar": True, "block_mask": MASK}, "is_ar and block_mask"),
        ({"store_kv": True, "block_mask": MASK}, "store_kv and block_mask"),
        ({"store_kv": True, "sel": SEL}, "store_kv and sel"),
        ({"cross_fill": "never"}, "cross_fill 'never'"),
        ({"frame_seqlen": 0}, "frame_seqlen 0"),
        ({"num_frames": 0}, "num_frames 0"),
        ({"cur_start_frame": -1}, "cur_start_frame -1"),
        ({"total_num_frames": 1}, "frame 2, the video at 1"),
    ],
)
def test_refuses_flags_that_contradict(flags, words):
    engine, _ = build()
    ctx = context({"main": engine})
    with refused(engine, kv.ContextError, words):
        dataclasses.replace(ctx, **flags)


@pytest.mark.parametrize("flags", [{"store_kv": True}, {"sel": SEL}])
def test_refuses_to_store_or_select_without_engines(flags):
    with pytest.raises(kv.ContextError, match="needs cache_engines"):
        context(**flags)


def test_a_short_forward_may_store_without_is_ar():
    engine, _ = build()
    assert context({"main": engine}, store_kv=True).is_ar is False
    assert dataclasses.replace(context({"main": engine}), sel=SEL, is_ar=True).sel is SEL
    assert engine.spec("pos") == SPEC
