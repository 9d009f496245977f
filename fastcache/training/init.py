"""Initial weights that let text find its patches from the first iteration on.

Cross-attention starts as a match of position features: queries and keys share their weights, and both the patch
features and the text features reach them unmixed, loudly. Latent channels pass through to the head, since flow at
full noise is the input less a little. Gates start half open; Wan's own init (nearly closed) wastes a short training.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fastcache.errors import UserError
from fastcache.models.dit import init_weights
from fastcache.models.tiny import build
from fastcache.world.features import WAVE_DIM

LOUD = 2.0
TEXT_EXTRA = 16


@torch.no_grad()
def init_tiny(dit: Any) -> None:
    init_weights(dit)
    _fill(dit)
    if dit.config.vace_layers:
        _copy_blocks(dit)


@torch.no_grad()
def go_on_from(dit: Any, state: dict[str, torch.Tensor]) -> None:
    """Take over the weights of a tiny text-to-video model; what it lacks starts as it helps most.

    New latent channels start at zero. Keys and values of image tokens start as those of the text; VACE blocks as
    copies of the main blocks that their hints follow, hints at zero, as in VACE (arXiv 2503.07598). Raises UserError
    where the weights are not those of such a model.
    """
    text_only = {"in_dim": dit.config.out_dim, "image_dim": 0, "image_len": 0, "vace_layers": (), "vace_in_dim": 0}
    with torch.random.fork_rng(devices=[]):
        plain = build(replace(dit.config, **text_only)).state_dict()
    own = dit.state_dict()
    odd = [n for n in plain | state if n not in plain or n not in state or plain[n].shape != state[n].shape]
    if odd:
        raise UserError(f"start= must name weights of a tiny text-to-video model; {odd[0]} is not as there")
    patches = own["patch_embedding.weight"]
    known = state["patch_embedding.weight"].shape[1]
    patches[:, known:] = 0
    patches[:, :known] = state["patch_embedding.weight"]
    for name, weight in state.items():
        if name != "patch_embedding.weight":
            own[name].copy_(weight)
    if dit.config.image_dim:
        for block in dit.blocks:
            cross = block.cross_attn
            for new, old in ((cross.k_img, cross.k), (cross.v_img, cross.v), (cross.norm_k_img, cross.norm_k)):
                new.load_state_dict(old.state_dict())
    if dit.config.vace_layers:
        _copy_blocks(dit)


def _copy_blocks(dit: Any) -> None:
    for block, index in zip(dit.vace_blocks, dit.config.vace_layers, strict=True):
        block.load_state_dict(dit.blocks[index].state_dict(), strict=False)
    dit.vace_blocks[0].before_proj.weight.copy_(torch.eye(dit.config.dim))
    # The reactive pixels enter where the pixels of the video do.
    channels = dit.config.out_dim
    dit.vace_patch_embedding.weight.zero_()
    dit.vace_patch_embedding.weight[:, channels : 2 * channels] = dit.patch_embedding.weight[:, :channels]


def _fill(dit: Any) -> None:
    dim, half = dit.config.dim, WAVE_DIM + TEXT_EXTRA
    if 2 * half != dim:
        raise ValueError(f"the tiny initialisation needs dim {2 * half}, not {dim}")
    proj = dit.token_features.proj.weight
    nn.init.normal_(proj, std=0.1)
    proj[:WAVE_DIM] = 0
    proj[:WAVE_DIM, :WAVE_DIM] = LOUD * torch.eye(WAVE_DIM)
    _pass_text(dit, half)
    _pass_latents(dit, half)
    for block in dit.blocks:
        block.modulation.zero_()
        block.modulation[:, [2, 5]] = 0.5
        cross = block.cross_attn
        nn.init.orthogonal_(cross.q.weight)
        cross.k.weight.copy_(cross.q.weight)
        for norm in (cross.norm_q, cross.norm_k):
            norm.weight.fill_(1.5)
    nn.init.normal_(dit.time_projection[1].weight, std=0.02)
    for layer in (dit.time_embedding[0], dit.time_embedding[2]):
        nn.init.xavier_uniform_(layer.weight)


def _pass_text(dit: Any, half: int) -> None:
    """GELU(z) - GELU(-z) = z: twice the rows, once with each sign, make the text MLP start as a linear map."""
    first, second = dit.text_embedding[0].weight, dit.text_embedding[2].weight
    spread = torch.zeros(half, first.shape[1])
    spread[:WAVE_DIM, :WAVE_DIM] = LOUD * torch.eye(WAVE_DIM)
    nn.init.normal_(spread[WAVE_DIM:, WAVE_DIM:], std=0.7)
    first.copy_(torch.cat((spread, -spread)))
    out = torch.zeros(first.shape[0], half)
    out[:half] = torch.eye(half)
    second.copy_(torch.cat((out, -out), 1))


def _pass_latents(dit: Any, start: int) -> None:
    channels = dit.config.out_dim
    numbers = 4 * channels
    nn.init.normal_(dit.patch_embedding.weight, std=0.02)
    patch, head = dit.patch_embedding.weight[:, :channels], dit.head.head.weight
    order = torch.arange(numbers).view(channels, 2, 2)
    patch[start : start + numbers] = torch.eye(numbers)[order.flatten()].view(numbers, channels, 1, 2, 2)
    head.zero_()
    for out_index, latent_index in enumerate(order.permute(1, 2, 0).flatten()):
        head[out_index, start + latent_index] = 0.9
