"""One forward over all frames under the block-causal mask equals the chunks one after another against the K/V cache."""

from dataclasses import replace

import pytest
import torch
from checkpoint_toys import CONFIGS
from torch import Tensor

from fastcache.forwards import allocate
from fastcache.kv_cache import CausalContext, VanillaKVCacheEngine, chunk_plan, dense_block_mask
from fastcache.models import toy
from fastcache.models.dit import CausalWanDiT

HEIGHT, WIDTH, BATCH, TEXT_LEN = 4, 6, 2, 8
TOKENS = HEIGHT * WIDTH // 4
PLANS = {"chunks": chunk_plan(9, 3), "first frame alone": chunk_plan(7, 3, "first_frame"), "frames": (1, 1, 1)}


def drawn(layout: str, frames: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Latent, a timestep for each frame, text, image tokens and control."""
    draw = torch.Generator().manual_seed(11)
    config = CONFIGS[layout]
    latent = torch.randn(BATCH, frames, config.in_dim, HEIGHT, WIDTH, generator=draw)
    t = 1000 * torch.rand(BATCH, frames, generator=draw)
    text = torch.randn(BATCH, TEXT_LEN, config.text_dim, generator=draw)
    image = torch.randn(BATCH, config.image_len, config.image_dim, generator=draw) if config.image_dim else None
    control = torch.randn(BATCH, frames, 96, HEIGHT, WIDTH, generator=draw) if config.vace_layers else None
    return latent, t, text, image, control


def by_chunk(dit: CausalWanDiT, plan: tuple[int, ...], denoise: bool, layout: str) -> Tensor:
    """Flow of each chunk in turn, its K/V stored by a pass at the same timesteps; ``denoise``: the flow is that of a
    pass before, which stores nothing."""
    latent, t, text, image, control = drawn(layout, sum(plan))
    dit.set_kv_engines(lambda branch: VanillaKVCacheEngine())
    allocate(dit, "pos", BATCH, sum(plan) * TOKENS)
    flows, start = [], 0
    for size in plan:
        part = slice(start, start + size)
        shown = None if control is None else control[:, part]
        for store in (False, True) if denoise else (True,):
            ctx = CausalContext(
                num_frames=size,
                frame_seqlen=TOKENS,
                cache_engines=dit.kv_cache_engines,
                cur_start_frame=start,
                is_ar=True,
                store_kv=store,
            )
            flow = dit(latent[:, part], t[:, part], text, ctx, image, shown)
            flows += [flow] if store != denoise else []
        start += size
    return torch.cat(flows, dim=1)


def masked(dit: CausalWanDiT, plan: tuple[int, ...], mask: Tensor | None, layout: str) -> Tensor:
    latent, t, text, image, control = drawn(layout, sum(plan))
    ctx = CausalContext(num_frames=sum(plan), frame_seqlen=TOKENS, block_mask=mask)
    return dit(latent, t, text, ctx, image, control)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("layout", CONFIGS)
@torch.no_grad()
def test_the_mask_equals_the_cache(layout: str, plan: tuple[int, ...]) -> None:
    dit = toy.build(replace(CONFIGS[layout], text_len=TEXT_LEN))
    together = masked(dit, plan, dense_block_mask(plan, TOKENS), layout)
    for denoise in (False, True):
        alone = by_chunk(dit, plan, denoise, layout)
        assert (together - alone).abs().max() < 1e-5
    assert together.std() > 0.5
    unmasked = masked(dit, plan, None, layout)
    assert (together - unmasked)[:, : plan[0]].abs().max() > 1e-3  # the first chunk would see the future
    assert (together - unmasked)[:, -plan[-1] :].abs().max() > 1e-3  # through its past's K/V
