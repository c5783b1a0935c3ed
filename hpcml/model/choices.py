"""Choices in the configuration of a run that its analyses or its agent know too, without all that a run is."""

from __future__ import annotations

from enum import Enum


class Goal(Enum):
    """Whether larger or smaller values of the metric are better."""

    max = "max"
    min = "min"


class Scale(Enum):
    """The scale on which values of the metric are compared; errors near 0 are skewed as such."""

    linear = "linear"
    log = "log"


class Numerics(Enum):
    """How the arithmetic is done: by the device's own units, or emulated by rounding after each operation.

    `auto` leaves the choice to `decide_numerics`.
    """

    auto = "auto"
    native = "native"
    emulated = "emulated"
