"""Real Wan2.1 models: the causal DiT of a checkpoint with Wan's text encoder, image encoder and VAE around it.

Every part is read from a local folder. The text and the image encoder are in memory only while they encode, and what
they made is kept on disk; ``prepare`` lets them do so before the DiT is loaded.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastcache import encoders
from fastcache.checkpoints.files import find
from fastcache.checkpoints.hashing import checkpoint_hash
from fastcache.condition import Condition
from fastcache.errors import UserError
from fastcache.memory import Around
from fastcache.models.config import DiTConfig
from fastcache.models.video_model import VideoModel
from fastcache.models.wan.conditions import all_given, control_channels, first_frame_channels
from fastcache.models.wan.image import ImageEncoder
from fastcache.models.wan.loading import check_extra
from fastcache.models.wan.options import Options
from fastcache.models.wan.text import PromptEncoder
from fastcache.models.wan.vae import FRAMES, TILE_PIXELS, VideoVAE
from fastcache.models.weights import load_checkpoint

PUBLISHED = {"text_encoder": 5_680_910_336, "image_encoder": 630_766_080, "vae": 126_892_531}  # parameters
FRAMES_PER_CHUNK, TRAINED_FRAMES, FPS = 3, 21, 16  # of the published Self-Forcing checkpoints


def describe(**options: Any) -> tuple[DiTConfig, tuple[int, int, int]]:
    """Sizes of the model that load() would build with these options, and the shape of its latent frames."""
    o = Options.of(options)
    return o.config, o.latent_shape


def around(**options: Any) -> Around:
    """What surrounds the DiT, for estimates: as found in the folders, else as published."""
    o = Options.of(options)
    found = encoders.find({name: getattr(o, name) for name in encoders.OPTIONS})
    text, image, vae = (
        (encoders.parameters(found[name]) if name in found else 0) or count for name, count in PUBLISHED.items()
    )
    image = image if "image" in o.needs else 0
    pixels = min(o.height * o.width, TILE_PIXELS) if o.vae_tiling else o.height * o.width
    return Around(text, image, vae, o.vae_torch_dtype.itemsize, pixels, elsewhere=o.encode_on is not None)


def check(weights: str | None = None, shown: Sequence[str] | None = None, **options: Any) -> tuple[str, ...]:
    """What the model must be shown besides text: ("image",), ("control",) or nothing; it draws neither.

    Raises UserError unless everything is there: packages, folders, a checkpoint and, where ``shown`` tells the kinds
    that a run is given, those it needs.
    """
    o = Options.of(encoders.beside({"encoders": None} | options, weights))
    check_extra()
    if weights is None:
        raise UserError(f"model={o.name} needs a checkpoint: weights=PATH (the README says which there are)")
    find(weights)
    o.folders()
    for kind in o.needs:
        if shown is not None and kind not in shown:
            raise UserError(missing(o, kind))
    return o.needs


def prepare(prompts: Sequence[str], device: str, dtype: torch.dtype, **options: Any) -> None:
    """Encode the prompts, so that a model loaded later finds them; the text encoder is gone when this returns."""
    check_extra()
    _prompt_encoder(Options.of(options), dtype, device).prepare(prompts)


def load(
    weights: str | Path | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32, **options: Any
) -> VideoModel:
    """The model of a checkpoint; ``options`` are those of Options.

    Raises UserError where a part is missing or does not fit.
    """
    check(None if weights is None else str(weights), **options)
    assert weights is not None
    o = Options.of(encoders.beside({"encoders": None} | options, weights))
    vae = VideoVAE(o.folders()["vae"], o.vae_torch_dtype, device, o.vae_tiling)
    encode_prompt = _prompt_encoder(o, dtype, device)
    return VideoModel(
        name=o.name,
        dit=load_checkpoint(weights, o.config, dtype, device, o.part),
        latent_shape=o.latent_shape,
        frames_per_chunk=FRAMES_PER_CHUNK,
        weights_hash=checkpoint_hash(weights),
        encode_prompt=encode_prompt,
        decode=vae.decode,
        trained_frames=TRAINED_FRAMES,
        fps=FPS,
        needs=o.needs,
        frame_size=(o.height, o.width),
        frames_per_latent=FRAMES,
        show=_show(o, vae, encode_prompt, dtype, device),
        guidable=True,
    )


def missing(o: Options, kind: str) -> str:
    """The sentence for a run without what the model is shown."""
    does = {"image": "continues a first frame", "control": "follows a control video"}[kind]
    return f"model={o.name} {does}: name one with {kind}=FILE"


def _prompt_encoder(o: Options, dtype: torch.dtype, device: str) -> PromptEncoder:
    folders, config = o.folders(), o.config
    sizes = config.text_len, config.text_dim, dtype, o.encode_on or device
    return PromptEncoder(folders["text_encoder"], folders["tokenizer"], *sizes)


def _show(o: Options, vae: VideoVAE, encode_prompt: PromptEncoder, dtype: torch.dtype, device: str):
    """The function that makes an I2V or VACE model's condition; None for T2V."""
    config = o.config
    if config.layout == "i2v":
        folder = o.folders()["image_encoder"]
        encode_image = ImageEncoder(folder, config.image_len, config.image_dim, dtype, o.encode_on or device)

        def show_image(prompt: str, seed: int, frames: int, image: np.ndarray | None = None) -> Condition:
            if image is None:
                raise UserError(missing(o, "image"))
            channels = first_frame_channels(vae, image, frames)
            store = all_given(channels) if o.mask_on_store else None
            return Condition(encode_prompt(prompt, seed), encode_image(image), channels, store)

        return show_image
    if config.layout == "vace":

        def show_control(prompt: str, seed: int, frames: int, control: np.ndarray | None = None) -> Condition:
            if control is None:
                raise UserError(missing(o, "control"))
            return Condition(encode_prompt(prompt, seed), control=control_channels(vae, control, frames))

        return show_control
    return None
