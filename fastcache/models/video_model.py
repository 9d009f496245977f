"""What the runner of an experiment holds: a DiT with its text encoder, decoder and identity."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fastcache.models.dit import CausalWanDiT


@dataclass
class VideoModel:
    """A model of videos.

    ``latent_shape`` (channels, height, width) of one latent frame; ``encode_prompt(prompt, seed)`` gives the prompt
    embeddings [1, text_len, text_dim] (the seed settles what the words leave open) and raises UserError on a prompt
    it cannot read; ``decode(latents [1, F, C, H, W])`` gives uint8 frames [T, height, width, 3]; ``weights_hash`` is
    the sha256 of the weights; ``trained_frames`` the latent frames the weights were trained on (0: unknown).
    """

    name: str
    dit: CausalWanDiT
    latent_shape: tuple[int, int, int]
    frames_per_chunk: int
    weights_hash: str
    encode_prompt: Callable[[str, int], Tensor]
    decode: Callable[[Tensor], np.ndarray]
    trained_frames: int = 0
    fps: int = 8
