"""How well masks agree: the intersection of two over their union, class by class."""

from __future__ import annotations

from typing import Any

from hpcml_train.data.masks import IGNORED

Masks = Any  # numbers of classes: a torch tensor or NumPy's array


class Overlap:
    """Counts pixels over many pictures; pixels whose true class is IGNORED count nowhere."""

    def __init__(self, classes: int) -> None:
        self._both = [0] * classes
        self._either = [0] * classes

    def add(self, predicted: Masks, true: Masks) -> None:
        """Count the masks *predicted*, and what is *true* of them."""
        known = true != IGNORED
        for number in range(len(self._both)):
            one, other = (predicted == number) & known, true == number
            self._both[number] += int((one & other).sum())
            self._either[number] += int((one | other).sum())

    def of_classes(self) -> list[float | None]:
        """Return the intersection over the union of each class; None for one that nobody saw."""
        return [both / either if either else None for both, either in zip(self._both, self._either, strict=True)]

    def mean(self) -> float:
        """Return the mean over the classes that somebody saw: "mean IoU"."""
        seen = [value for value in self.of_classes() if value is not None]
        return sum(seen) / len(seen)
