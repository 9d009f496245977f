"""What the runner of an experiment holds: a DiT with its text encoder, decoder and identity."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fastcache.condition import Condition
from fastcache.errors import UserError
from fastcache.models.dit import CausalWanDiT


@dataclass
class VideoModel:
    """A model of videos.

    ``latent_shape`` (channels, height, width) of one latent frame; ``encode_prompt(prompt, seed)`` gives the prompt
    embeddings [1, text_len, text_dim] (the seed settles what the words leave open) and raises UserError on a prompt
    it cannot read; ``decode(latents [1, F, C, H, W])`` gives uint8 frames [T, height, width, 3]; ``weights_hash`` is
    the sha256 of the weights; ``trained_frames`` the latent frames the weights were trained on (0: unknown).

    ``needs`` says what is shown to the model besides text, ("image",) for I2V, ("control",) for VACE, in frames of
    ``frame_size`` (height, width) pixels; ``show(prompt, seed, frames, **shown)`` then makes the condition. The first
    latent frame decodes to one frame of pixels, each later one to ``frames_per_latent``.
    ``guidable`` models were trained on empty prompts too.
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
    needs: tuple[str, ...] = ()
    frame_size: tuple[int, int] = (0, 0)
    frames_per_latent: int = 1
    show: Callable[..., Condition] | None = None
    guidable: bool = False

    def pixel_frames(self, frames: int) -> int:
        """Frames of pixels in a video of ``frames`` latent frames."""
        return 1 + self.frames_per_latent * (frames - 1)

    def condition(self, prompt: str, seed: int, frames: int, **shown: np.ndarray | None) -> Condition:
        """What a rollout of ``frames`` latent frames needs.

        ``image`` uint8 [height, width, 3] or ``control`` uint8 [T, height, width, 3] as ``needs`` says; None: the
        model draws what the prompt implies, where it can. Raises UserError on what the model has no use for.
        """
        for name, value in shown.items():
            if value is not None and name not in self.needs:
                other = f"; it takes {self.needs[0]}=" if self.needs else "; leave it out"
                raise UserError(f"{name}= is given, but model={self.name} takes none{other}")
        if self.show is None:
            return Condition(self.encode_prompt(prompt, seed))
        return self.show(prompt, seed, frames, **{name: shown.get(name) for name in self.needs})

    def negative(self, condition: Condition, prompt: str | None, seed: int) -> Condition:
        """What classifier-free guidance leads away from: the same picture or control, other words or none.

        No words (None, or blank) are the empty prompt where the model is ``guidable``, else rows of zeros.
        Raises UserError on a prompt that the model cannot read.
        """
        words = (prompt or "").strip()
        if not words and not self.guidable:
            return replace(condition, prompt_embeds=torch.zeros_like(condition.prompt_embeds))
        try:
            return replace(condition, prompt_embeds=self.encode_prompt(words, seed))
        except UserError as error:
            raise UserError(f"negative_prompt={words}: {error}") from None
