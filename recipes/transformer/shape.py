"""What a transformer is made of, the same for every framework."""

from __future__ import annotations

from dataclasses import dataclass

from hpcml_train.continuing import check_prompt
from hpcml_train.errors import RecipeError

MASK = 256  # the token that hides another one; the 256 before it are the bytes
KINDS = ("decoder", "encoder", "encoder_decoder")
UNASKED = -100  # the label of a token that is not to be guessed: torch's own number for it
SPREAD = 0.02  # of initial weights, as in BERT and GPT-2


@dataclass(frozen=True)
class Shape:
    """What recipe.toml calls the options; the defaults are those of transformer_tiny."""

    kind: str = "decoder"
    layers: int = 2
    width: int = 128
    heads: int = 4
    feed_forward: int = 512
    context: int = 64
    vocabulary: int = 257
    dropout: float = 0.0
    validation_windows: int = 256
    prompt: str = ""
    generate: int = 0
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RecipeError(f"model.options.kind={self.kind}: choose {', '.join(KINDS)}")
        if self.width % self.heads:
            raise RecipeError(f"model.options.heads={self.heads} does not divide model.options.width={self.width}")
        if self.kind == "encoder_decoder" and self.layers % 2:
            raise RecipeError(f"model.options.layers={self.layers} must be even: half encode and half decode")
        if self.generate and self.kind != "decoder":
            raise RecipeError(f"model.options.generate={self.generate}: only model.options.kind=decoder writes on")
        check_prompt(self.prompt, self.generate, reads_text=True)
