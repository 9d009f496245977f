"""Tiny Wan models of random weights: the very classes of the published ones, saved to folders."""

from dataclasses import replace
from pathlib import Path

import torch

from fastcache.models.toy import build
from fastcache.models.wan_sizes import WAN_SIZES
from fastcache.models.weights import save_weights

WORDS = ["a", "the", "red", "blue", "circle", "square", "cat", "moves", "left", "right", "slowly", "on", "grass"]
SIZES = {"dim": 48, "ffn_dim": 96, "num_heads": 4, "num_layers": 2, "freq_dim": 16, "text_dim": 24, "text_len": 20}
LAYOUT_SIZES = {
    "t2v_1_3b": SIZES,
    "i2v_14b": SIZES | {"image_dim": 32, "image_len": 5},
    "vace_1_3b": SIZES | {"vace_layers": [0]},
}


def save_encoders(folder: Path) -> Path:
    """text_encoder/, tokenizer/, image_encoder/ and vae/ as a diffusers checkpoint has them."""
    from diffusers import AutoencoderKLWan
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPVisionConfig, CLIPVisionModel, PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    vocab = {token: i for i, token in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder / "tokenizer")
    text = UMT5Config(vocab_size=len(vocab), d_model=24, d_ff=48, num_layers=2, num_heads=2, d_kv=12)
    UMT5EncoderModel(text).save_pretrained(folder / "text_encoder")
    picture = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=14
    )
    CLIPVisionModel(picture).save_pretrained(folder / "image_encoder")
    AutoencoderKLWan(base_dim=4, num_res_blocks=1).save_pretrained(folder / "vae")
    return folder


def save_dit(path: Path, size: str) -> Path:
    """A random DiT of a layout in one safetensors file."""
    changed = {key: tuple(v) if isinstance(v, list) else v for key, v in LAYOUT_SIZES[size].items()}
    dit = build(replace(WAN_SIZES[size], **changed))
    save_weights(dit.state_dict(), path, torch.float32, {})
    return path


def words(size: str, folder: Path) -> list[str]:
    """Options of a run on what save_encoders() and save_dit() left in ``folder``."""
    told = ",".join(f"{key}:{str(v).replace(' ', '')}" for key, v in LAYOUT_SIZES[size].items())
    return [
        *(f"model=wan_{size}", f"model.sizes={{{told}}}"),
        *(f"model.encoders={folder}", f"weights={folder}/{size}.safetensors"),
        *("model.height=32", "model.width=48", "prompt=a red cat moves left", "frames=6"),
    ]
