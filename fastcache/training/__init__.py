"""How the bundled tiny models are trained: data, teacher forcing, optimiser."""
