"""The energy of one device between two moments, from its energy counter and from the integral of its power. Pure.

Times are seconds of a monotonic clock, energies joules, powers watts. The counter is preferred; the integral is the
check, and the substitute where the counter was reset. docs/telemetry.md has the formulas and their sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from hpcml.model.running_total import RunningTotal

COUNTER_STALE_S = 0.1  # NVML's counter moves every 10 to 100 ms (gpu-mode pynvml#18; PETSc manual; ML.ENERGY)
AVERAGED_S = 1.0  # NVML's averaged power is that of the last second (nvml.h, nvmlDeviceGetPowerUsage)
DISAGREEMENT = 0.05  # above it the two ways are not two measurements of the same thing


class Scope(Enum):
    """Whose energy was measured."""

    gpu = "gpu"
    board = "board"  # the whole board around a MIG instance: NVML knows no other
    shared = "shared"  # of a GPU that others may have used, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """The result for one device; None is not known, and `reason` says why. `uncertainty_j` is of sampling alone."""

    energy_j: float | None
    method: str | None  # counter | integral | counter+integral: the integral where the counter was reset
    counter_j: float | None
    integral_j: float | None
    disagreement: float | None  # integral / counter - 1
    disagrees: bool | None  # by more than DISAGREEMENT
    uncertainty_j: float | None
    covered_s: float  # for how much of the time there is data
    mean_power_w: float | None
    max_power_w: float | None
    counter_resets: int
    reason: str | None


@dataclass(slots=True)
class PowerIntegral:
    """Integrates power readings over time by the trapezoidal rule.

    >>> integral = PowerIntegral()
    >>> integral.add(0.0, 100.0)
    >>> integral.add(2.0, 200.0)
    >>> integral.energy_j
    300.0
    """

    energy_j: float = 0.0
    _last: tuple[float, float] | None = None

    def add(self, at_s: float, power_w: float) -> None:
        """Add a reading of *power_w* watts at *at_s* seconds; one that is not later than the last is ignored."""
        if self._last is not None:
            before_s, before_w = self._last
            if at_s <= before_s:
                return
            self.energy_j += (at_s - before_s) * (before_w + power_w) / 2
        self._last = (at_s, power_w)


@dataclass(slots=True)
class _Spread:
    """Mean, standard deviation and range of readings, one by one (Welford's algorithm)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)
        self.least, self.most = min(self.least, value), max(self.most, value)

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


@dataclass(slots=True)
class EnergyMeter:
    """Computes the energy of a device between *begin_s* and *end_s* from its energy counter and its power integral.

    Where the counter was reset, what it counted in between is lost, and the integral stands in for that span.
    """

    begin_s: float
    end_s: float = math.inf
    averaged: bool = False  # the power is an average over the last second
    _counter: RunningTotal = field(default_factory=RunningTotal)
    _integral: RunningTotal = field(default_factory=RunningTotal)
    _integral_then: RunningTotal = field(
        default_factory=RunningTotal
    )  # what the integral was when the counter was read last
    _readings: float = 0.0  # of power, within the time
    _power: _Spread = field(default_factory=_Spread)

    def add(
        self,
        at_s: float,
        *,
        counter_j: float | None = None,
        integral_j: float | None = None,
        power_w: float | None = None,
    ) -> None:
        """Add the readings of one tick at *at_s*; None for one that the device does not give.

        *counter_j* and *integral_j* are totals since any moment before.
        """
        if power_w is not None and at_s >= self.begin_s:
            self._power.add(power_w)
        if integral_j is not None:
            self._readings += self._integral.add(at_s, integral_j, self.begin_s, self.end_s) or 0.0
        if counter_j is None:
            return
        if self._counter.add(at_s, counter_j, self.begin_s, self.end_s) is None:
            self._counter.part += self._integral.part - self._integral_then.part
            self._counter.covered_s += self._integral.covered_s - self._integral_then.covered_s
        self._integral_then.part, self._integral_then.covered_s = self._integral.part, self._integral.covered_s

    def result(self) -> Energy:
        """Return the energy between the two moments, as far as the readings cover them.

        The uncertainty is that of sampling: for a counter COUNTER_STALE_S x highest power, for an integral twice the
        standard error of the mean power x time (plus, for averaged power, AVERAGED_S x the range of the power).
        """
        has_counter, has_integral = self._counter.covered_s > 0, self._integral.covered_s > 0
        counter_j = self._counter.part if has_counter and not self._counter.falls else None
        integral_j = self._integral.part if has_integral else None
        energy_j = self._counter.part if has_counter else integral_j
        covered_s = self._counter.covered_s if has_counter else self._integral.covered_s
        ratio = integral_j / counter_j - 1 if integral_j is not None and counter_j else None
        return Energy(
            energy_j=energy_j,
            method=self._method(has_counter=has_counter, has_integral=has_integral),
            counter_j=counter_j,
            integral_j=integral_j,
            disagreement=ratio,
            disagrees=None if ratio is None else abs(ratio) > DISAGREEMENT,
            uncertainty_j=self._uncertainty_j(energy_j, covered_s, has_counter=has_counter),
            covered_s=covered_s,
            mean_power_w=energy_j / covered_s if energy_j is not None else None,
            max_power_w=self._power.most if self._power.count else None,
            counter_resets=self._counter.falls,
            reason=None if energy_j is not None else "fewer than two readings of energy or power",
        )

    def _method(self, *, has_counter: bool, has_integral: bool) -> str | None:
        if has_counter:
            return "counter+integral" if self._counter.falls else "counter"
        return "integral" if has_integral else None

    def _uncertainty_j(self, energy_j: float | None, covered_s: float, *, has_counter: bool) -> float | None:
        """Return the uncertainty that `result` describes.

        None where the energy is unknown, or where power was read less than twice and the counter was reset or is not
        there.
        """
        if energy_j is None:
            return None
        most_w = self._power.most if self._power.count else energy_j / covered_s
        stale_j = COUNTER_STALE_S * most_w
        if has_counter and not self._counter.falls:
            return stale_j
        if self._power.count < 2:
            return None
        scatter_j = 2 * self._power.deviation * covered_s / math.sqrt(max(self._readings, 1.0))
        lag_j = AVERAGED_S * (self._power.most - self._power.least) if self.averaged else 0.0
        return scatter_j + lag_j + (stale_j * (1 + self._counter.falls) if has_counter else 0.0)
