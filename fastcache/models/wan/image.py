"""Image tokens of Wan2.1 I2V: CLIP ViT-H/14 through transformers, the layer before the last."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fastcache.encoders import folder_hash
from fastcache.errors import UserError
from fastcache.models.wan.kept import Kept
from fastcache.models.wan.loading import free, load_part

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's, of RGB in [0, 1]


def preprocess(image: np.ndarray, size: int) -> Tensor:
    """uint8 [H, W, 3] -> [1, 3, size, size]: squashed to a square, bicubic, as Wan-Video/Wan2.1 does.

    Hugging Face's image processor crops the centre instead; Wan's weights have not seen such images.
    """
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 127.5 - 1
    pixels = interpolate(pixels, size=(size, size), mode="bicubic", align_corners=False) / 2 + 0.5
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


class ImageEncoder:
    """image uint8 [H, W, 3] -> image tokens [1, image_len, image_dim], kept on disk; the encoder is in memory only
    meanwhile. Raises UserError on an encoder that cannot be loaded or is of another size."""

    def __init__(self, folder: Path, image_len: int, image_dim: int, dtype: torch.dtype, device: str):
        self.folder, self.image_len, self.image_dim = folder, image_len, image_dim
        self.dtype, self.device = dtype, device
        self.kept = Kept("images", folder_hash(folder), str(dtype))

    def __call__(self, image: np.ndarray) -> Tensor:
        source = repr(image.shape).encode() + image.tobytes()
        tokens = self.kept.read(source)
        if tokens is None:
            tokens = self._encode(image)
            self.kept.write(source, tokens)
        if tokens.shape[1:] != (self.image_len, self.image_dim):
            raise UserError(
                f"model.image_encoder={self.folder} gives {tokens.shape[1]} tokens of {tokens.shape[2]}; the DiT reads "
                f"{self.image_len} of {self.image_dim}"
            )
        return tokens

    @torch.inference_mode()
    def _encode(self, image: np.ndarray) -> Tensor:
        from transformers import CLIPVisionModel

        model = load_part(CLIPVisionModel, "image_encoder", self.folder, dtype=self.dtype)
        model.to(self.device)
        pixels = preprocess(image, model.config.image_size).to(self.device, self.dtype)
        tokens = model(pixel_values=pixels, output_hidden_states=True).hidden_states[-2].cpu().clone()
        del model
        free()
        return tokens
