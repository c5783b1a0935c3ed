"""The recipe resnet with one block in each stage: TensorFlow writes down a graph of half the size.

That the whole networks are the twins of torch's is proven apart from their training.
"""

from __future__ import annotations

from typing import Any

from tensorflow_models import _basic, resnet
from tensorflow_training import Pictures

from hpcml_client import Checkpoints, Client
from hpcml_train.task import Task
from hpcml_train.tensorflow.training import train as train_recipe


class Shallow(Pictures):
    """Pictures, told apart by a shallow ResNet."""

    def build(self) -> Any:  # noqa: ANN401 - Keras has no types
        options, how = self._options, self._layout.data_format
        return resnet(_basic, 1, (1, 1, 1, 1), classes=options.classes, side=options.image_size, data_format=how)


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    return train_recipe(run, task, checkpoints, Shallow)
