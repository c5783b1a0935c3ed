"""The recipe unet with pictures that are halved once: TensorFlow writes down a graph of half the size.

That the whole network is the twin of torch's is proven apart from its training.
"""

from __future__ import annotations

from typing import Any

from tensorflow_models import unet
from tensorflow_training import Segmentation

from hpcml_client import Checkpoints, Client
from hpcml_train.task import Task
from hpcml_train.tensorflow.training import train as train_recipe


class Shallow(Segmentation):
    """Pixels, classified by a shallow U-Net."""

    def build(self) -> Any:  # noqa: ANN401 - Keras has no types
        options = self._options
        return unet(self._images.shape[1:], options.classes, options.width, self._layout.data_format, halvings=1)


def train(run: Client, task: Task, checkpoints: Checkpoints) -> bool:
    return train_recipe(run, task, checkpoints, Shallow)
