"""Runs on several numbers of devices whose times follow a law with a known share, for the tests of scaling."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recorded_runs import run

from hpcml.analysis.steady import StepCurves
from hpcml.model.records import Point, RunRecord

STEPS = 40


class Sweep:
    """Runs and their curves, as the store would hand them out."""

    def __init__(self, noise: float = 0.01) -> None:
        self.runs: list[RunRecord] = []
        self.step_s: dict[str, Sequence[Point]] = {}
        self.communication_s: dict[str, Sequence[Point]] = {}
        self.waiting_s: dict[str, Sequence[Point]] = {}
        self._noise, self._random = noise, random.Random(1)  # noqa: S311

    @property
    def curves(self) -> StepCurves:
        return StepCurves(step_s=self.step_s, communication_s=self.communication_s, waiting_s=self.waiting_s)

    def add(
        self,
        gpus: int,
        step_s: float | None,
        *,
        seed: int = 0,
        params: Mapping[str, Any] | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> RunRecord:
        counted = {"strategy.name": "single" if gpus == 1 else "ddp", "resources.gpus_per_node": gpus}
        settings = {**counted, **(params or {})}
        record = run("fp32", seed, uid=f"run{len(self.runs):04}", params=settings, **fields)
        self.runs.append(record)
        if step_s is not None:
            own_s = step_s * math.exp(self._random.gauss(0, self._noise))
            self.step_s[record.uid] = constant(own_s)
        return record

    def law(
        self,
        step_s: Callable[[int], float],
        *,
        gpus: Sequence[int] = (1, 2, 4, 8),
        seeds: int = 5,
        batch: Callable[[int], int] = lambda _: 64,
        **params: Any,  # noqa: ANN401
    ) -> Sweep:
        for number in gpus:
            for seed in range(seeds):
                self.add(number, step_s(number), seed=seed, params={"training.batch_size": batch(number), **params})
        return self


def constant(value: float) -> list[Point]:
    return [Point(step, float(step), value) for step in range(STEPS)]


def amdahl(share: float, *, one_s: float = 0.1) -> Callable[[int], float]:
    return lambda gpus: one_s * (share + (1 - share) / gpus)


def gustafson(share: float, *, one_s: float = 0.1) -> Callable[[int], float]:
    return lambda gpus: one_s / (1 - share * (1 - 1 / gpus))
