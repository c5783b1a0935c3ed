"""A training of the recipe image_classification as one would write it by hand: plain torch, nothing of hpcml.

`recipe_overhead.py` takes its steps in turn with those of the recipe. By itself it trains and prints the last loss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own custom

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes" / "image_classification"))
from models import MODELS  # the very same network

SAMPLES = 1437  # as many as the recipe has of its digits


def train(name: str, batch_size: int) -> Iterator[float]:
    """Train for ever on noise of the digits' shape; yield the loss of each step."""
    torch.manual_seed(0)
    images, labels = torch.rand(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while True:
        for chosen in torch.randperm(SAMPLES)[: SAMPLES // batch_size * batch_size].split(batch_size):
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()


if __name__ == "__main__":
    steps = train("mnist_cnn", 64)
    print([next(steps) for _ in range(100)][-1])
