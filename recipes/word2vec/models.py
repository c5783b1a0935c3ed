"""Skip-gram and CBOW: two vectors for each word, whose product says how well one stands beside the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """What recipe.toml calls the options; the defaults are those of conf/model/word2vec.yaml."""

    predicts: str = "context"
    width: int = 64
    window: int = 4
    negatives: int = 5
    fewest: int = 5
    length: int = 32
    frequent: float = 1e-3
    words: tuple[str, ...] = ("class", "list", "string", "exception", "import")
    neighbours: int = 5
    analogies: str = ""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Shape:
        """Return what *options* say, and the defaults for the rest."""
        return cls(**{**options, "words": tuple(options.get("words", cls.words))})

    def asked(self) -> list[list[str]]:
        """Return the words of each analogy."""
        return [analogy.lower().split() for analogy in self.analogies.split(";") if analogy.strip()]


class WordTables(nn.Module):
    """Two vectors for each word: one as the word that is looked at, one as a word beside it."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.contexts = nn.Embedding(vocabulary, width)
        # as in word2vec.c: nothing is likelier than anything else at first
        nn.init.uniform_(self.words.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.contexts.weight)

    def _with_others(self, vectors: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        drawn = torch.bmm(self.contexts(others).flatten(0, 1), vectors.flatten(0, 1).unsqueeze(2))
        return drawn.view_as(others).clone()  # no view: FSDP warns of such


class SkipGram(WordTables):
    """Words in, their products with the words beside them and with others out."""

    def forward(self, words: torch.Tensor, others: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the products of each word with all of its sample (two axes of words), and with its *others*."""
        vectors = self.words(words)
        return torch.bmm(vectors, self.contexts(words).transpose(1, 2)), self._with_others(vectors, others)


class Cbow(WordTables):
    """The words beside a word in, the product of their mean with it and with others out."""

    def forward(
        self, words: torch.Tensor, others: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the products of the mean of each word's neighbours, by *weights*, with it and with its *others*."""
        vectors = self.words(words)
        shares = (weights / weights.sum(dim=2, keepdim=True).clamp(min=1e-12)).to(vectors.dtype)
        means = torch.bmm(shares, vectors)
        return self._with_others(means, words.unsqueeze(2)).squeeze(2), self._with_others(means, others)


MODELS = {"context": SkipGram, "word": Cbow}


def nearest(vectors: torch.Tensor, number: int, count: int, *, first: int) -> list[tuple[int, float]]:
    """Return the *count* rows nearest to row *number*, and their cosines; rows before *first* are no words."""
    directions = nn.functional.normalize(vectors.float(), dim=1)
    return _nearest_to(directions, directions[number], [number], count, first=first)


def analogous(vectors: torch.Tensor, is_to: tuple[int, int, int], count: int, *, first: int) -> list[tuple[int, float]]:
    """Return the *count* rows that answer "a is to b as c is to ?", for *is_to* = (a, b, c), and their cosines.

    It is the nearest to b - a + c, all of length 1 (3CosAdd: T. Mikolov, W. Yih, G. Zweig, 2013); the three words
    themselves are no answers, as there.
    """
    directions = nn.functional.normalize(vectors.float(), dim=1)
    a, b, c = (directions[number] for number in is_to)
    wanted = nn.functional.normalize(b - a + c, dim=0)
    return _nearest_to(directions, wanted, list(is_to), count, first=first)


def _nearest_to(
    directions: torch.Tensor, wanted: torch.Tensor, but: list[int], count: int, *, first: int
) -> list[tuple[int, float]]:
    cosines = directions @ wanted
    cosines[:first] = -torch.inf
    cosines[but] = -torch.inf
    near = cosines.topk(max(0, min(count, len(directions) - first - len(set(but))))).indices.tolist()
    return [(row, float(cosines[row])) for row in near]
