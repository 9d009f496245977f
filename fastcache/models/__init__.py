"""Video models: the causal Wan DiT, the runner that drives its blocks, and the bundled tiny models."""
