"""The clock of a training step: how long it waited for its input, and how long it computed."""

from __future__ import annotations

import contextlib
import time
from typing import Callable, Iterator


class StepClock:
    """Times one step after the other; *wait* returns once the device has done all that it was given.

    with clock.data():
        batch = next(batches)
    with clock.step():
        train_on(batch)
    """

    def __init__(self, wait: Callable[[], object], *, now: Callable[[], float] = time.perf_counter) -> None:
        self.data_time_s = 0.0
        self.step_time_s = 0.0
        self._wait = wait
        self._now = now

    @contextlib.contextmanager
    def data(self) -> Iterator[None]:
        """Time the fetching of a batch, up to where it lies on the device; no part of the step's own time.

        What lies between steps besides, such as evaluation, checkpoints and reports, is in neither.
        """
        self._wait()
        began = self._now()
        yield
        self._wait()
        self.data_time_s = self._now() - began

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Time forward pass, backward pass and update, waited for."""
        self._wait()
        began = self._now()
        yield
        self._wait()
        self.step_time_s = self._now() - began
