"""The points on the line, the same for every framework, seed and precision."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcml_train.task import Task

DEFAULTS: Mapping[str, Any] = {"slope": 2.0, "intercept": -1.0, "samples": 256, "noise": 0.0}
_NOISE_SEED = 20170911


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Where they lie."""

    x: list[float]
    y: list[float]


def training_points(task: Task) -> Points:
    """Return points at equal distances, symmetric about 0 and within -1..1, with noise where that is asked for."""
    options = {**DEFAULTS, **task.options}
    count, generator = options["samples"], random.Random(_NOISE_SEED)  # noqa: S311 - no secret
    x = [(2 * index + 1) / count - 1 for index in range(count)]
    noise = [options["noise"] * generator.gauss(0.0, 1.0) for _ in x]
    return Points(x=x, y=[options["slope"] * at + options["intercept"] + off for at, off in zip(x, noise, strict=True)])


def validation_points(task: Task) -> Points:
    """Return points between those, on the line itself."""
    options = {**DEFAULTS, **task.options}
    x = [2 * index / options["samples"] - 1 for index in range(options["samples"] + 1)]
    return Points(x=x, y=[options["slope"] * at + options["intercept"] for at in x])
