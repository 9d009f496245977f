"""Which parts of the DiT run in float32 when the weights are narrower; with float32 weights all maps agree."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    fp32_time: bool  # keep the time MLP and the modulation tables in float32
    fp32_modulation: bool  # add modulation table and e0 in float32
    fp32_norm: bool  # LayerNorms in float32
    narrow_residual: bool  # cast the residual stream back after every add
    rope: torch.dtype = torch.float64


PRECISIONS = {
    # Self-Forcing inference: everything in the weights' dtype; the only map that reproduces its outputs.
    "sf_bf16": Precision(fp32_time=False, fp32_modulation=False, fp32_norm=False, narrow_residual=True),
    # Wan2.1's own inference under autocast: float32 time path, norms and residual stream.
    "wan_autocast": Precision(fp32_time=True, fp32_modulation=True, fp32_norm=True, narrow_residual=False),
    # FastGen / diffusers: narrow stream, float32 norms, modulation and gated adds.
    "fp32_mod": Precision(fp32_time=False, fp32_modulation=True, fp32_norm=True, narrow_residual=True),
}


def dtypes(dit, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Name -> dtype of each parameter of a DiT cast to ``dtype``: its precision map keeps some in float32."""

    def wide(name: str) -> bool:
        time = name.startswith(("time_embedding.", "time_projection.")) or name.endswith("modulation")
        return dit.precision.fp32_time and time

    return {name: torch.float32 if wide(name) else dtype for name, _ in dit.named_parameters()}


def cast(dit, dtype: torch.dtype) -> None:
    """Cast a DiT's parameters as dtypes() tells."""
    for name, wanted in dtypes(dit, dtype).items():
        weight = dit.get_parameter(name)
        weight.data = weight.data.to(wanted)
