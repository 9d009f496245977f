"""Cache methods: what to compute and what to reuse at each denoising step. One file each; see base.CacheMethod."""
