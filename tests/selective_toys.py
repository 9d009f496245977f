"""A toy DiT in the middle of a video, and two independent ways to compute what its selective forward must give."""

import math

import torch

from fastcache.forwards import allocate
from fastcache.kv_cache import CausalContext, KVCacheEngine
from fastcache.models import toy
from fastcache.models.attention import attend
from fastcache.models.blocks import run_blocks
from fastcache.models.rope import apply_rope
from fastcache.models.rows import Rows

FRAMES, S, L = 3, 16, 48  # frames of a chunk, tokens of a frame, tokens of a chunk
FULL, PARTLY = 937.5, 833.25  # timesteps of the full step and of the selective one after it


class Chunk:
    """A toy DiT of a layout in its second chunk, the first one committed. ``only`` that video of the batch."""

    def __init__(self, dtype=torch.float32, layers=3, batch=1, layout="t2v", only=None):
        self.dit = toy.load(dtype=dtype, layers=layers, layout=layout).dit
        self.dit.vace_scale = (0.7, 1.3)[: len(self.dit.vace_scale)]
        self.dit.set_kv_engines(lambda branch: KVCacheEngine(debug=True))
        config, draw = self.dit.config, torch.Generator().manual_seed(0)
        videos = slice(None) if only is None else slice(only, only + 1)
        size = toy.LATENT_SHAPE[1:]
        text = torch.randn(batch, toy.TEXT_LEN, toy.TEXT_DIM, generator=draw)[videos]
        latents = torch.randn(5, batch, FRAMES, config.in_dim, *size, generator=draw)[:, videos]
        image = torch.randn(batch, config.image_len, config.image_dim, generator=draw)[videos]
        control = torch.randn(batch, 4 * FRAMES, config.vace_in_dim, *size, generator=draw)[videos]
        self.text = self.dit.encode_context(text, image if config.image_dim else None)
        self.latents, self.control = latents.to(dtype), control.to(dtype) if config.vace_layers else None
        self.restart()
        self.commit(self.latents[0])

    def restart(self):
        self.start_frame = 0
        self.dit.clear_caches()
        allocate(self.dit, "pos", self.text.shape[0], 4 * L)

    def run(self, i, t=FULL, store=False):
        """The forward of latent i at timestep t (the same for all frames but the last)."""
        latent = self.latents[i] if isinstance(i, int) else i
        ctx = CausalContext(
            cache_engines=self.dit.kv_cache_engines,
            cur_start_frame=self.start_frame,
            num_frames=FRAMES,
            frame_seqlen=S,
            store_kv=store,
            is_ar=True,
            keep_current=not store,
        )
        times = torch.tensor([t, t, 0.9 * t]).expand(latent.shape[0], -1)
        span = slice(self.start_frame, self.start_frame + FRAMES)
        control = None if self.control is None else self.control[:, span]
        return self.dit.prepare(latent, times, self.text, ctx, control)

    def commit(self, latent):
        self.run(latent, t=0.0, store=True).full()
        self.start_frame += FRAMES

    def attention(self):
        """(engine, self-attention) of every block, the branches one after the other."""
        engines = self.dit.kv_cache_engines
        return [(engines[branch], b.self_attn) for branch, blocks in self.dit.branch_blocks.items() for b in blocks]

    def lengths(self):
        """Committed tokens of every block of every branch."""
        return {length for engine in self.dit.kv_cache_engines.values() for length in engine.block_lens("pos").values()}

    def rows(self):
        """Provisional K and V of every block, copied: [blocks, 2, B, L, heads, d]."""
        kv = [engine.get_current_kv(module, cache_tag="pos") for engine, module in self.attention()]
        return torch.stack([torch.stack(pair) for pair in kv]).clone()

    def prefix(self):
        """Committed K and V of every block, copied."""
        kv = [engine.get_self_prefix(module, cache_tag="pos") for engine, module in self.attention()]
        return torch.stack([torch.stack(pair) for pair in kv]).clone()


def softmax_attention(q, k, v):
    scores = torch.einsum("bmhd,bnhd->bhmn", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhmn,bnhd->bmhd", scores.softmax(-1), v).flatten(2)


def oracle_block(block, rows_of, x, m, rope, sel, kv_full, prefix, context_kv):
    """One block written out for the tokens ``sel``, with K/V mixed by hand from the last full step and this one.

    ``context_kv``: K and V of the text and, for I2V, those of the image; a query reads each on its own.
    """
    attention = block.self_attn

    def project(tokens):
        a = block.norm1(x[:, tokens]) * (1 + rows_of(m[1], tokens)) + rows_of(m[0], tokens)
        heads = [attention.norm_q(attention.q(a)), attention.norm_k(attention.k(a)), attention.v(a)]
        q, k, v = (h.unflatten(-1, (4, -1)) for h in heads)
        return apply_rope(q, rope[tokens]), apply_rope(k, rope[tokens]), v

    q, k, v = project(sel)
    mixed_k, mixed_v = kv_full[0].clone(), kv_full[1].clone()
    mixed_k[:, sel], mixed_v[:, sel] = k, v
    y = softmax_attention(q, torch.cat([prefix[0], mixed_k], 1), torch.cat([prefix[1], mixed_v], 1))
    out = x[:, sel] + rows_of(m[2], sel) * attention.o(y)
    cross = block.cross_attn
    cross_q = cross.norm_q(cross.q(block.norm3(out))).unflatten(-1, (4, -1))
    out = out + cross.o(sum(softmax_attention(cross_q, *kv) for kv in context_kv))
    return out + rows_of(m[5], sel) * block.ffn(block.norm2(out) * (1 + rows_of(m[4], sel)) + rows_of(m[3], sel))


class ListPlan:
    """The attention of a forward over plain lists of tensors, no engine: what every engine must equal."""

    def __init__(self):
        self.prefix, self.current, self.sel, self.store = {}, {}, None, False

    def self_attention(self, module, q, k, v):
        if self.sel is not None:
            full_k, full_v = (x.clone() for x in self.current[module])
            full_k[:, self.sel], full_v[:, self.sel] = k, v
            k, v = full_k, full_v
        self.current[module] = (k, v)
        past = self.prefix.setdefault(module, [])
        out = attend(q, *(torch.cat([*(kv[i] for kv in past), (k, v)[i]], dim=1) for i in (0, 1)))
        if self.store:
            past.append((k, v))
        return out

    def cross_kv(self, module, project):
        return project()


def by_list(run, plan, sel=None, store=False):
    """A forward of ``run``'s blocks under a ListPlan."""
    plan.sel, plan.store = sel, store
    x, control, rope = run.x, run.control, run.rope
    if sel is not None:
        x, control, rope = x[:, sel], None if control is None else control[:, sel], rope[sel]
    return run_blocks(run.dit, x, control, run.e0, Rows(run.grid, sel), rope, run.context, plan)
