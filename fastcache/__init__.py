"""Feature caching for few-step, chunk-autoregressive video diffusion transformers."""

__version__ = "0.1.0"
