"""What a video is told to be: text, and for I2V and VACE models a picture or a control video."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Condition:
    """Everything a rollout needs besides noise.

    ``prompt_embeds`` [B, text_len, text_dim], zero rows past the prompt. I2V: ``image_embeds``
    [B, image_len, image_dim] for cross-attention, and ``channels`` [B, F, in_dim - out_dim, H, W], mask and image
    latents that every forward joins to its latent; ``store_channels`` take their place in store passes where given.
    VACE: ``control`` [B, F, vace_in_dim, H, W]. F are the frames of the whole video; frames that the control is short
    of are zeros, as in FastGen.
    """

    prompt_embeds: Tensor
    image_embeds: Tensor | None = None
    channels: Tensor | None = None
    store_channels: Tensor | None = None
    control: Tensor | None = None
