"""What a recurrent network is made of and trained on, the same for every framework."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What recipe.toml calls the options; the defaults are those of conf/model/lstm.yaml."""

    cell: str = "lstm"
    layers: int = 1
    width: int = 128
    embedding: int = 32
    context: int = 16
    modulus: int = 12
    validation_windows: int = 256
    prompt: str = ""
    generate: int = 0
    temperature: float = 0.0
