"""Flux (flux-core) by its own command, made from recordings of a real one, 0.88.0."""
