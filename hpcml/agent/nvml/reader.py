"""One GPU read again and again: what it answers as named values, what it refuses as reasons."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pynvml

from hpcml.agent.energy import PowerIntegral
from hpcml.agent.gpu import Gpu
from hpcml.agent.nvml.activity import Activity
from hpcml.agent.nvml.throttle import ThrottleBits
from hpcml.agent.pace import Pace

_MIB = 2**20
# Fields of nvml.h, by number: an older pynvml lacks some names. Name, and what its unit is divided by.
_FIELDS: Mapping[int, tuple[str, float]] = {
    83: ("energy_j", 1e3),  # TOTAL_ENERGY_CONSUMPTION, mJ since the driver was loaded; Volta and newer
    185: ("power_average_w", 1e3),  # POWER_AVERAGE, mW over the last second; Ampere (not GA100) and newer
    186: ("power_instant_w", 1e3),  # POWER_INSTANT, mW
    74: ("throttle_power_s", 1e9),  # the counters of why clocks were lowered, ns
    75: ("throttle_thermal_s", 1e9),
    76: ("throttle_sync_boost_s", 1e9),
    269: ("throttle_sw_thermal_s", 1e9),
    270: ("throttle_hw_thermal_s", 1e9),
    271: ("throttle_power_brake_s", 1e9),
    3: ("ecc_corrected", 1),  # since the driver was loaded
    4: ("ecc_uncorrected", 1),
}
_TRAFFIC: Mapping[int, tuple[str, float]] = {
    197: ("pcie_tx_mb", _MIB),  # bytes
    198: ("pcie_rx_mb", _MIB),
    138: ("nvlink_tx_mb", 1024),  # KiB
    139: ("nvlink_rx_mb", 1024),
}
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # in the order of nvmlValueType_t
_FOR_EVER = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # a field that this driver does not know yet
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
_NOT_OF_INSTANCES = "not of a MIG instance (nvml.h)"
Query = Callable[[float], dict[str, float]]


class GpuLostError(Exception):
    """The GPU answers no more, and will not before the node is restarted."""


class GpuReader:
    """Asks for everything in each `read`; what is refused for good is left out from then on.

    Power, energy, clocks and faults of a MIG instance are those of its board: NVML has no others.
    """

    def __init__(self, gpu: Gpu, *, traffic: bool = False) -> None:
        self.gpu = gpu
        self.refused: dict[str, str] = {}  # by what was asked for; whoever reads it may empty it
        self.power_field: str | None = None
        self.integral_of: str | None = None
        self.throttle_from: str | None = None  # counters, samples or both: how it is known why clocks were lowered
        self.slowest_s = 0.0
        self.board = pynvml.nvmlDeviceGetHandleByUUID((gpu.board or gpu.uuid).encode())
        self._own = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode()) if gpu.board else self.board
        self._fields = {**_FIELDS, **_TRAFFIC} if traffic else dict(_FIELDS)
        self._has_memory_v2 = True
        self._has_fields = False  # they have been answered once: what is not there now never will be
        self._is_throttle_settled = False
        self._ring = PowerIntegral()
        self._ring_us = 0
        self._polled = PowerIntegral()
        self._queries: dict[str, tuple[Query, Pace]] = {
            name: (query, Pace())
            for name, query in {
                "fields": self._read_fields,
                "memory": self._read_memory,
                "utilization": self._read_utilization,
                "clocks": self._read_clocks,
                "temperature": self._read_temperature,
                "power samples": self._read_ring,
            }.items()
        }
        self._try("activity", self._begin_activity)

    def read(self, at_s: float, *, whatever_it_takes: bool = False) -> dict[str, float]:
        """Return the values at *at_s*; raise `GpuLostError` once the GPU has fallen off the bus."""
        values: dict[str, float] = {}
        for name, (query, pace) in list(self._queries.items()):
            if not (pace.is_due() or whatever_it_takes):
                continue
            began = time.perf_counter()
            values |= self._try(name, lambda query=query: query(at_s)) or {}  # type: ignore[misc]
            took_s = time.perf_counter() - began
            self.slowest_s = max(self.slowest_s, took_s)
            pace.took(took_s)
        if not self._is_throttle_settled:
            values |= self._settle_throttle(at_s)
        return self._with_power(values, at_s)

    @property
    def backed_off(self) -> dict[str, int]:
        """What is asked for less often because it is slow: in one of so many ticks."""
        return {name: pace.every for name, (_, pace) in self._queries.items() if pace.every > 1}

    def _try(self, name: str, ask: Callable[[], dict[str, float]]) -> dict[str, float] | None:
        try:
            return ask()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLostError(str(error)) from error
            self.refused[name] = str(error)
            if error.value in _FOR_EVER:
                self._queries.pop(name, None)
            return None

    def _read_fields(self, _: float) -> dict[str, float]:
        values = {}
        for found in pynvml.nvmlDeviceGetFieldValues(self.board, list(self._fields)):
            name, unit = self._fields[found.fieldId]
            if found.nvmlReturn == pynvml.NVML_SUCCESS:
                values[name] = getattr(found.value, _VALUES[found.valueType]) / unit
            elif found.nvmlReturn == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise pynvml.NVMLError(found.nvmlReturn)
            else:
                self.refused[name] = str(pynvml.NVMLError(found.nvmlReturn))
                if found.nvmlReturn in _FOR_EVER:
                    del self._fields[found.fieldId]
        self._has_fields = True
        return values

    def _read_memory(self, _: float) -> dict[str, float]:
        if self._has_memory_v2:
            try:
                found = pynvml.nvmlDeviceGetMemoryInfo(self._own, version=pynvml.nvmlMemory_v2)
                return {"memory_mb": found.used / _MIB, "memory_reserved_mb": found.reserved / _MIB}
            except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch) as error:
                self._has_memory_v2 = False
                self.refused["memory_reserved_mb"] = f"{error}: memory_mb has what the driver keeps for itself in it"
        return {"memory_mb": pynvml.nvmlDeviceGetMemoryInfo(self._own).used / _MIB}

    def _read_utilization(self, _: float) -> dict[str, float]:
        if self.gpu.board:
            self.refused["utilization"] = _NOT_OF_INSTANCES
            del self._queries["utilization"]
            return {}
        found = pynvml.nvmlDeviceGetUtilizationRates(self.board)
        return {"util_percent": float(found.gpu), "memory_util_percent": float(found.memory)}

    def _read_clocks(self, _: float) -> dict[str, float]:
        return {
            "sm_mhz": float(pynvml.nvmlDeviceGetClockInfo(self.board, pynvml.NVML_CLOCK_SM)),
            "mem_mhz": float(pynvml.nvmlDeviceGetClockInfo(self.board, pynvml.NVML_CLOCK_MEM)),
        }

    def _read_temperature(self, _: float) -> dict[str, float]:
        return {"temperature_c": float(pynvml.nvmlDeviceGetTemperature(self.board, pynvml.NVML_TEMPERATURE_GPU))}

    def _read_ring(self, _: float) -> dict[str, float]:
        """Take what the driver has measured since the last call: many readings for the price of one call."""
        try:
            kind, samples = pynvml.nvmlDeviceGetSamples(self.board, pynvml.NVML_TOTAL_POWER_SAMPLES, self._ring_us)
        except pynvml.NVMLError_NotFound:
            return {}  # nothing new yet
        field = _VALUES[kind]
        count = 0
        for sample in samples:
            if sample.timeStamp > self._ring_us:  # some drivers send again what was seen, or leave places empty
                self._ring_us = int(sample.timeStamp)
                self._ring.add(sample.timeStamp / 1e6, getattr(sample.sampleValue, field) / 1e3)
                count += 1
        return {"power_integral_j": self._ring.energy_j, "power_samples": float(count)} if self._ring_us else {}

    def _read_power_usage(self, _: float) -> dict[str, float]:
        return {"power_w": pynvml.nvmlDeviceGetPowerUsage(self.board) / 1e3}

    def _begin_activity(self) -> dict[str, float]:
        activity = Activity(self.board, self.gpu.instance[0] if self.gpu.instance else None)
        self._queries["activity"] = (activity.read, Pace())
        return {}

    def _settle_throttle(self, at_s: float) -> dict[str, float]:
        """See once whether all reasons for lower clocks are counted, and sample those that are not."""
        if "fields" in self._queries and not self._has_fields:
            return {}
        self._is_throttle_settled = True
        fields = self._fields if "fields" in self._queries else {}
        counted = {name for name, _ in fields.values() if name.startswith("throttle_")}
        bits = ThrottleBits(self.board, counted)
        values = self._try("throttle reasons", lambda: bits.read(at_s)) if bits.is_needed else None
        if values is not None:
            self._queries["throttle reasons"] = (bits.read, Pace())
        ways = ("counters" if counted else None, "samples" if values is not None else None)
        self.throttle_from = "+".join(filter(None, ways)) or None
        return values or {}

    def _with_power(self, values: dict[str, float], at_s: float) -> dict[str, float]:
        """Settle once which reading is the power, and integrate it where the driver keeps no readings of its own."""
        average_w = values.pop("power_average_w", None)
        if self.power_field is None:
            self._choose_power(values, average_w)
        if self.power_field == "average_1s" and average_w is not None:
            values["power_w"] = average_w
        elif self.power_field == "instant" and "power_instant_w" in values:
            values["power_w"] = values.pop("power_instant_w")
        if "power samples" in self._queries:
            self.integral_of = "samples"
        elif "power_w" in values:
            if self.integral_of == "samples":  # the driver has stopped keeping them: go on from there
                self._polled.energy_j = self._ring.energy_j
            self.integral_of = self.power_field
            self._polled.add(at_s, values["power_w"])
            values["power_integral_j"] = self._polled.energy_j
        return values

    def _choose_power(self, values: dict[str, float], average_w: float | None) -> None:
        if average_w is not None:
            self.power_field = "average_1s"
        elif "power_instant_w" in values:
            self.power_field = "instant"
        elif "fields" not in self._queries or not {185, 186} & self._fields.keys():
            usage = self._try("power", lambda: self._read_power_usage(0.0))
            if usage is not None:
                self.power_field = "usage"  # the last second's average on Ampere (not GA100) and newer, else instant
                self._queries["power"] = (self._read_power_usage, Pace())
                values |= usage
