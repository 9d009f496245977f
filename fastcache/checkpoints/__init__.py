"""Checkpoints of Wan transformers: which files they are (no torch), their tensors, their names, their sizes."""
