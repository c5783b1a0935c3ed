"""Samples of a text, and how well word vectors tell the words that stand together in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from models import MODELS, Shape, analogous, nearest
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom
from words import UNKNOWN, Tokenizer, pad, split_words

from hpcml_train.data.texts import TEXTS, Span, read_text, split_spans
from hpcml_train.errors import RecipeError
from hpcml_train.task import Task
from hpcml_train.torch.arithmetic import Arithmetic
from hpcml_train.torch.recipe import Recipe
from hpcml_train.torch.training import train as train_recipe

if TYPE_CHECKING:
    Batch = tuple[torch.Tensor, ...]  # words, others drawn for each, the weights of pairs, those of what is predicted

_PIECE = 8  # samples that are held out together
_FEWEST_PIECES = 20
_DRAWN = 1 << 20  # words, once: which are drawn for a sample depends on its place, and on nothing else
_DRAWN_STRIDE = 7919
_FREQUENCY_POWER = 0.75  # of word2vec.c: rare words are drawn more often than they occur
_EVALUATION_BATCH = 256  # bounds the memory only


class WordVectors(Recipe):
    """Words, told from others by those beside them."""

    def __init__(self, task: Task, arithmetic: Arithmetic) -> None:
        self._shape = shape = Shape.of(task.options)
        if any(len(words) != 3 for words in shape.asked()):
            raise RecipeError(
                f"model.options.analogies={shape.analogies!r} must be three words each: 'man king woman; man boy woman'"
            )
        self._text = read_text(task.choose("data", TEXTS), task.data_path)
        words = split_words(self._text.content.decode())
        piece = shape.length * max(1, min(_PIECE, len(words) // shape.length // _FEWEST_PIECES))
        kept, held_out = split_spans(len(words), piece, task.holdout)
        self.tokenizer = Tokenizer((word for begin, end in kept for word in words[begin:end]), fewest=shape.fewest)
        numbers = self.tokenizer.numbers(words)
        device = arithmetic.device
        self._training = _samples(numbers, kept, shape.length, device)
        self._validation = _samples(numbers, held_out, shape.length, device)
        self.samples, self.tokens_per_sample = len(self._training), shape.length
        self._weigh_words(device)
        if not self._predicted_per_sample or not float(self._weights(self._validation).sum()):
            raise RecipeError(
                f"{self._text.where} has {len(words)} words, {max(0, len(self.tokenizer) - 2)} of them "
                f"{shape.fewest} times: too few to train and to validate on: take a longer text or a smaller "
                "model.options.fewest"
            )
        self.model = MODELS[shape.predicts](len(self.tokenizer), shape.width)

    def batch(self, indices: torch.Tensor) -> Batch:
        return self._batch(self._training[indices], indices)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        # divided by what the samples have in the mean: parts of a batch then add up to the whole
        return _sum_of_losses(model, batch) / (self._predicted_per_sample * len(batch[0]))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        loss, pairs = 0.0, 0.0
        for indices in torch.split(torch.arange(len(self._validation)), _EVALUATION_BATCH):
            chosen = indices.to(self._validation.device)
            batch = self._batch(self._validation[chosen], chosen)
            loss += float(_sum_of_losses(model, batch))
            pairs += float(batch[3].sum())
        return {"val_loss": loss / pairs}

    def facts(self) -> Mapping[str, object]:
        return {
            "training_samples": self.samples,
            "validation_samples": len(self._validation),
            "vocabulary": len(self.tokenizer),
            **self._text.facts(),
        }

    def results(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, object]]:
        """Return the event ``neighbours``: of each word and analogy that was asked for, the nearest and how near."""
        names = {number: word for word, number in self.tokenizer.index.items()}
        vectors = weights["words.weight"]
        known = [word for word in self._shape.words if word in self.tokenizer.index]
        found: dict[str, object] = {}
        for word in known:
            near = nearest(vectors, self.tokenizer.index[word], self._shape.neighbours, first=UNKNOWN + 1)
            found[word] = [[names[number], round(cosine, 4)] for number, cosine in near]
        asked = self._shape.asked()
        answers: dict[str, object] = {}
        for a, b, c in (words for words in asked if all(word in self.tokenizer.index for word in words)):
            is_to = (self.tokenizer.index[a], self.tokenizer.index[b], self.tokenizer.index[c])
            near = analogous(vectors, is_to, self._shape.neighbours, first=UNKNOWN + 1)
            answers[f"{a} : {b} = {c} : ?"] = [[names[number], round(cosine, 4)] for number, cosine in near]
        wanted = dict.fromkeys([*self._shape.words, *(word for words in asked for word in words)])
        unknown = [word for word in wanted if word not in self.tokenizer.index]
        told = {"analogies": answers} if asked else {}
        return {"neighbours": {"nearest": found, **told, "unknown": unknown}}

    def _weigh_words(self, device: torch.device) -> None:
        """Set how often words are drawn, what those at the sides of a pair weigh, and the pairs of a sample."""
        shape = self._shape
        counts = torch.tensor(self.tokenizer.counts(self._training.flatten().tolist()), dtype=torch.float64)
        counts[: UNKNOWN + 1] = 0
        shares = counts / counts.sum().clamp(min=1)
        # word2vec.c leaves frequent words out at random, this often; their weight is what is left in the mean
        keep = torch.where(shares > 0, (shape.frequent / shares).sqrt().clamp(max=1), shares)
        self._keep = keep.float().to(device)
        apart = (torch.arange(shape.length)[:, None] - torch.arange(shape.length)).abs()
        self._beside = ((apart > 0) & (apart <= shape.window)).float().to(device)
        all_predicted = self._predicted(self._training, self._weights(self._training)).sum()
        self._predicted_per_sample = float(all_predicted) / max(1, self.samples)
        if self._predicted_per_sample:
            generator = torch.Generator().manual_seed(0)  # the same for every seed: validation must be
            drawn = torch.multinomial(shares**_FREQUENCY_POWER, _DRAWN, replacement=True, generator=generator)
            self._drawn = drawn.to(device)
        places = torch.arange(shape.length * shape.negatives, device=device)
        self._places = places.view(1, shape.length, shape.negatives)

    def _weights(self, words: torch.Tensor) -> torch.Tensor:
        keep = self._keep[words]
        return keep[:, :, None] * keep[:, None, :] * self._beside

    def _batch(self, words: torch.Tensor, indices: torch.Tensor) -> Batch:
        others = self._drawn[(indices[:, None, None] * _DRAWN_STRIDE + self._places) % _DRAWN]
        weights = self._weights(words)
        return words, others, weights, self._predicted(words, weights)

    def _predicted(self, words: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return what each prediction weighs: of each word beside a word, or of the word where any is beside it."""
        if self._shape.predicts == "context":
            return weights
        return self._keep[words] * (weights.sum(dim=2) > 0)


train = partial(train_recipe, make=WordVectors)


def _samples(numbers: list[int], spans: Iterable[Span], length: int, device: torch.device) -> torch.Tensor:
    pieces = [numbers[at : min(end, at + length)] for begin, end in spans for at in range(begin, end, length)]
    return torch.tensor(pad(pieces, length), dtype=torch.long, device=device).view(-1, length)


def _sum_of_losses(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss of each prediction, of its word and of those drawn for it, times its weight, and added up."""
    words, others, weights, predicted = batch
    beside, drawn = (x if x.dtype is torch.float64 else x.float() for x in model(words, others, weights))
    of_word = predicted.sum(dim=2) if predicted.dim() > 2 else predicted
    return (predicted * F.softplus(-beside)).sum() + (of_word * F.softplus(drawn).sum(dim=2)).sum()
