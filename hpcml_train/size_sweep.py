"""Benchmarks over sizes: each size is measured once and reported with the size as its step.

A restart skips those done.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hpcml_client.checkpoints import Checkpoints
from hpcml_client.client import Client
from hpcml_train.errors import TrainingFailed, cannot_go_on

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # torch's words, in a RuntimeError


class Times(NamedTuple):
    """Seconds of one call, in the fastest repeat and in the median one, and how many calls there were in all."""

    best_s: float
    median_s: float
    calls: int


def time_calls(
    call: Callable[[], object],
    wait: Callable[[], object],
    *,
    warmup: int,
    repeats: int,
    repeat_time_s: float,
    now: Callable[[], float] = time.perf_counter,
) -> Times:
    """Return the time of *call*; *wait* blocks until the device has done all its work.

    A repeat is as many calls as last *repeat_time_s* together, waited for once: else the resolution of the clock and
    the start of kernels would be most of a small size's time.
    """
    for _ in range(warmup):
        call()
    wait()
    calls, took_s, before = 1, _time(call, wait, 1, now), warmup + 1
    while took_s < repeat_time_s:
        calls = max(2 * calls, min(100 * calls, int(calls * repeat_time_s / max(took_s, 1e-9))))
        took_s = _time(call, wait, calls, now)
        before += calls
    found = [_time(call, wait, calls, now) / calls for _ in range(repeats)]
    return Times(min(found), statistics.median(found), before + repeats * calls)


def _time(call: Callable[[], object], wait: Callable[[], object], calls: int, now: Callable[[], float]) -> float:
    began = now()
    for _ in range(calls):
        call()
    wait()
    return now() - began


class SizeSweep:
    """The sizes that are still to be measured, and the results of the others.

    *agree* returns whether any of the processes says yes; with one process it returns its argument.
    """

    def __init__(
        self, run: Client, checkpoints: Checkpoints, sizes: Iterable[int], agree: Callable[[bool], bool] = bool
    ) -> None:
        self.results: dict[int, dict[str, float]] = {}
        self._run = run
        self._checkpoints = checkpoints
        self._sizes = sorted(set(sizes))
        self._agree = agree
        saved = checkpoints.latest()
        if saved is not None:
            self.results = _read(saved.path)
            if run.rank == 0:
                run.event("resumed", step=saved.step, path=run.relative(saved.path))

    def measure(self, one: Callable[[int], Mapping[str, float]]) -> bool:
        """Measure all sizes that are left with *one*, smallest first; return False where it left at a checkpoint."""
        left: list[int] = [size for size in self._sizes if size not in self.results]
        for size in left:
            values = self.results[size] = dict(_within_memory(one, size))
            if self._run.rank == 0:
                self._run.metrics(values, size)
                print(_as_line(size, values), flush=True)  # noqa: T201 - a program's own words
            if size != left[-1] and self._agree(self._checkpoints.asked):
                is_saved = self._checkpoints.save(size, self._write)
                if not self._agree(not is_saved):
                    return False
        if self._run.rank == 0:
            self._checkpoints.clear()
        return True

    def total(self, metric: str, more: float) -> float:
        """Return the highest value of *metric* so far and *more*, for one that counts over all sizes."""
        return max((values.get(metric, 0.0) for values in self.results.values()), default=0.0) + more

    def report_best(self, metric: str, share: str) -> None:
        """Report the highest *metric* of the sweep, and for each size its *share* of that.

        It replaces a peak where none is known, under a name of its own.
        """
        known = {size: values[metric] for size, values in self.results.items() if metric in values}
        if not known or self._run.rank != 0:
            return
        size = max(known, key=lambda size: known[size])
        self._run.event("empirical_peak", metric=metric, value=known[size], size=size, basis="best of this sweep")
        for other in sorted(known):
            self._run.metrics({share: known[other] / known[size]}, other)

    def _write(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(list(self.results.items()), file)


def _read(path: str) -> dict[int, dict[str, float]]:
    try:
        with open(path, encoding="utf-8") as file:
            pairs: Any = json.load(file)
        return {int(size): {str(name): float(value) for name, value in values.items()} for size, values in pairs}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise cannot_go_on(path, error) from error


def _within_memory(one: Callable[[int], Mapping[str, float]], size: int) -> Mapping[str, float]:
    try:
        return one(size)
    except MemoryError as error:
        raise TrainingFailed(_too_large(size, error)) from error
    except RuntimeError as error:
        if any(words in str(error) for words in _NO_MEMORY):
            raise TrainingFailed(_too_large(size, error)) from error
        raise


def _too_large(size: int, error: Exception) -> str:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"out of memory at size {size} ({said[:160]}): leave it out of model.options.sizes"


def _as_line(size: int, values: Mapping[str, float]) -> str:
    return f"{size}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
