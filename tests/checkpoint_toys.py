"""Small Wan transformers in the three layouts, and their weights as every known writer leaves them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fastcache.checkpoints.convert import diffusers_config, original_config
from fastcache.checkpoints.names import to_diffusers
from fastcache.models import toy
from fastcache.models.config import DiTConfig

SIZES: dict = dict(dim=48, ffn_dim=96, num_heads=4, num_layers=4, freq_dim=16, text_dim=24)
CONFIGS = {
    "t2v": DiTConfig(**SIZES),
    "i2v": DiTConfig(**SIZES, in_dim=36, image_dim=20, image_len=257),
    "vace": DiTConfig(**SIZES, vace_layers=(0, 2), vace_in_dim=96),
}
State = dict[str, Tensor]


def state(layout: str, seed: int = 0) -> State:
    return toy.build(CONFIGS[layout], seed).state_dict()


def inner_model(layout: str) -> State:
    """Other weights of the same layout, to be told from the right ones."""
    return state(layout, seed=1)


def wrapped(weights: State) -> State:
    """As FSDP names them inside Self-Forcing's wrapper."""
    return {
        f"model._fsdp_wrapped_module.{name.replace('blocks.0.', 'blocks.0._fsdp_wrapped_module.')}": tensor
        for name, tensor in weights.items()
    }


def self_forcing(folder: Path, layout: str) -> Path:
    """generator_ema holds the weights, generator others, critic others again."""
    path = folder / "self_forcing_dmd.pt"
    other = {f"model.{name}": tensor for name, tensor in inner_model(layout).items()}
    torch.save({"critic": other, "generator": other, "generator_ema": wrapped(state(layout))}, path)
    return path


def causal_forcing(folder: Path, layout: str) -> Path:
    """No average: generator alone, beside a training state."""
    path = folder / "causal_forcing.pt"
    torch.save({"generator": wrapped(state(layout)), "step": 3, "optimizer": {"state": {0: torch.ones(2)}}}, path)
    return path


def wan_file(folder: Path, layout: str) -> Path:
    path = folder / "wan.safetensors"
    save_file(state(layout), path)
    return path


def wan_folder(folder: Path, layout: str) -> Path:
    """A published folder: config.json and shards with their index, the text encoder and VAE beside them."""
    sharded(state(layout), folder, "diffusion_pytorch_model", 3)
    (folder / "config.json").write_text(json.dumps(original_config(CONFIGS[layout].to_dict())))
    for name in ("models_t5_umt5-xxl-enc-bf16.pth", "Wan2.1_VAE.pth"):
        torch.save({"weight": torch.zeros(2)}, folder / name)
    return folder


def diffusers_pipeline(folder: Path, layout: str) -> Path:
    """transformer/ in a pipeline's folder."""
    (folder / "transformer").mkdir()
    (folder / "text_encoder").mkdir()
    renamed = {to_diffusers(name): tensor for name, tensor in state(layout).items()}
    sharded(renamed, folder / "transformer", "diffusion_pytorch_model", 2)
    config = diffusers_config(CONFIGS[layout].to_dict())
    (folder / "transformer" / "config.json").write_text(json.dumps(config))
    return folder


def diffusers_folder(folder: Path, layout: str) -> Path:
    return diffusers_pipeline(folder, layout) / "transformer"


def fastgen_nested(folder: Path, layout: str) -> Path:
    path = folder / "0010000.pth"
    renamed = {f"transformer.{to_diffusers(name)}": tensor for name, tensor in state(layout).items()}
    torch.save({"model": {"net": renamed}, "iteration": 10000}, path)
    return path


def fastgen_flat(folder: Path, layout: str) -> Path:
    """One state dict of student and teacher."""
    path = folder / "fastgen.safetensors"
    student = {f"net.transformer.{to_diffusers(name)}": tensor for name, tensor in state(layout).items()}
    teacher = {f"teacher.transformer.{to_diffusers(name)}": tensor for name, tensor in inner_model(layout).items()}
    save_file(student | teacher, path)
    return path


def comfy(folder: Path, layout: str) -> Path:
    path = folder / "comfy.safetensors"
    save_file({f"model.diffusion_model.{name}": tensor for name, tensor in state(layout).items()}, path)
    return path


WRITERS = {
    w.__name__: w
    for w in (
        *(self_forcing, causal_forcing, wan_file, wan_folder, diffusers_pipeline, diffusers_folder),
        *(fastgen_nested, fastgen_flat, comfy),
    )
}


def sharded(weights: State, folder: Path, stem: str, count: int) -> Path:
    """Shards that take the tensors in turn, and their index."""
    where = {name: f"{stem}-{i % count + 1:05d}-of-{count:05d}.safetensors" for i, name in enumerate(weights)}
    for file in sorted(set(where.values())):
        save_file({name: weights[name] for name in where if where[name] == file}, folder / file)
    index = folder / f"{stem}.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index
