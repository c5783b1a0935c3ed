"""The network that is deployed: a small CNN of 8x8 digits, trained with torch in FP32."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from hpcml_train.data import digits
from hpcml_train.data.pictures import Pictures
from hpcml_train.task import Task

Digits = tuple[torch.Tensor, torch.Tensor]  # pictures between 0 and 1, (count, 1, 8, 8), and their labels


def digits_cnn() -> nn.Module:
    """Return two convolutions and two dense layers: 85,066 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def read(task: Task) -> tuple[Digits, Digits]:
    """Return the digits to train on, and those held out."""
    kept, held_out = (_as_tensors(part) for part in digits.read(task))
    return kept, held_out


def train(task: Task, digits: Digits) -> nn.Module:
    """Return the network after `training.steps` steps, the same for every precision of a seed."""
    images, labels = digits
    torch.manual_seed(task.seed)
    torch.use_deterministic_algorithms(task.deterministic)
    model = digits_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=task.learning_rate)
    for _ in range(task.steps):
        chosen = torch.randint(len(labels), (task.batch_size,))
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def _as_tensors(pictures: Pictures) -> Digits:
    # not permuted: of one channel `contiguous` keeps NHWC's strides, by which torch chooses its kernels
    pixels = torch.from_numpy(pictures.images).squeeze(3).unsqueeze(1).float() / pictures.largest
    return pixels, torch.from_numpy(pictures.labels)
