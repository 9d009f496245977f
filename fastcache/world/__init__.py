"""The procedural world of the bundled tiny models: sprites over a textured background, told by a few plain words."""
