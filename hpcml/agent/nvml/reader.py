"""Reads one GPU repeatedly: the readings as named values, and the reasons for those that NVML refuses.

`GpuReader` asks for all values in each tick. `ThrottleBits` samples why clocks are lowered, for drivers that do not
count how long they were. `Activity` measures how busy the units were between two ticks, by NVML's GPU performance
monitoring (GPM; Hopper and newer). Units are in the names: W, J, s, us, MiB, MHz, degrees Celsius, percent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping

import pynvml

from hpcml.agent.telemetry.backoff import Backoff
from hpcml.agent.telemetry.energy import PowerIntegral
from hpcml.agent.telemetry.gpus import Gpu

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
_ALL_LINKS = 0xFFFFFFFF  # of NVLink's fields (nvml.h); the others know no scope but 0
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # in the order of nvmlValueType_t
_NOT_OF_INSTANCES = "not of a MIG instance (nvml.h)"
Query = Callable[[float], dict[str, float]]


def _refusals() -> tuple[int, ...]:
    """Return the errors that say no for ever."""
    return (
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # a field that this driver does not know yet
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    )


class GpuLostError(Exception):
    """The GPU no longer answers, and will not until the node is restarted (NVML_ERROR_GPU_IS_LOST)."""


class GpuReader:
    """Reads all values of one GPU in each `read`; what the device refuses for good is not asked for again.

    Power, energy, clocks and faults of a MIG instance are those of its board: NVML has no others. *traffic* adds the
    counters of PCIe and NVLink. Making one raises `pynvml.NVMLError` where the GPU cannot be opened.
    """

    def __init__(self, gpu: Gpu, *, traffic: bool = False) -> None:
        self.gpu = gpu
        self.refused: dict[str, str] = {}  # by what was asked for; whoever reads it may empty it
        self.power_field: str | None = None
        self.throttle_from: str | None = None  # counters, samples or both: how it is known why clocks were lowered
        self.slowest_s = 0.0
        self.board = pynvml.nvmlDeviceGetHandleByUUID((gpu.board or gpu.uuid).encode())
        self._own = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode()) if gpu.board else self.board
        self._fields = {**_FIELDS, **_TRAFFIC} if traffic else dict(_FIELDS)
        self._has_memory_v2 = True
        self._has_fields = False  # they have been answered once: what is not there now never will be
        self._is_throttle_settled = False
        self._integral = PowerIntegral()
        self._queries: dict[str, tuple[Query, Backoff]] = {
            name: (query, Backoff())
            for name, query in {
                "fields": self._read_fields,
                "memory": self._read_memory,
                "utilization": self._read_utilization,
                "clocks": self._read_clocks,
                "temperature": self._read_temperature,
            }.items()
        }
        self._try("activity", self._begin_activity)

    def read(self, at_s: float, *, whatever_it_takes: bool = False) -> dict[str, float]:
        """Return the values at *at_s* (monotonic seconds) by name; raise `GpuLostError` once the GPU is lost.

        Slow queries are left out in most ticks (`Backoff`), unless *whatever_it_takes*.
        """
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
        """The slow queries, and in one of how many ticks each is made."""
        return {name: pace.every for name, (_, pace) in self._queries.items() if pace.every > 1}

    def _try(self, name: str, ask: Callable[[], dict[str, float]]) -> dict[str, float] | None:
        """Return the answer of the query *name*, or None where NVML refuses it, with the reason in `refused`.

        A query that will never be answered is removed. Raises `GpuLostError` once the GPU is lost.
        """
        try:
            return ask()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLostError(str(error)) from error
            self.refused[name] = str(error)
            if error.value in _refusals():
                self._queries.pop(name, None)
            return None

    def _read_fields(self, _: float) -> dict[str, float]:
        """Return the counters and power readings that NVML has as fields, in joules, watts, seconds, counts and MiB."""
        values = {}
        asked = [(field, _ALL_LINKS if field in (138, 139) else 0) for field in self._fields]
        for found in pynvml.nvmlDeviceGetFieldValues(self.board, asked):
            name, unit = self._fields[found.fieldId]
            if found.nvmlReturn == pynvml.NVML_SUCCESS:
                values[name] = getattr(found.value, _VALUES[found.valueType]) / unit
            elif found.nvmlReturn == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise pynvml.NVMLError(found.nvmlReturn)
            else:
                self.refused[name] = str(pynvml.NVMLError(found.nvmlReturn))
                if found.nvmlReturn in _refusals():
                    del self._fields[found.fieldId]
        self._has_fields = True
        return values

    def _read_memory(self, _: float) -> dict[str, float]:
        """Return the MiB in use, and apart from them those that the driver keeps, where it tells the two apart."""
        if self._has_memory_v2:
            try:
                found = pynvml.nvmlDeviceGetMemoryInfo(self._own, version=pynvml.nvmlMemory_v2)
                return {"memory_mb": found.used / _MIB, "memory_reserved_mb": found.reserved / _MIB}
            except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch) as error:
                self._has_memory_v2 = False
                self.refused["memory_reserved_mb"] = f"{error}: memory_mb has what the driver keeps for itself in it"
        return {"memory_mb": pynvml.nvmlDeviceGetMemoryInfo(self._own).used / _MIB}

    def _read_utilization(self, _: float) -> dict[str, float]:
        """Return the percentages of time in which any kernel ran, and in which memory was read or written (nvml.h)."""
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

    def _read_power_usage(self, _: float) -> dict[str, float]:
        return {"power_w": pynvml.nvmlDeviceGetPowerUsage(self.board) / 1e3}

    def _begin_activity(self) -> dict[str, float]:
        activity = Activity(self.board, self.gpu.instance[0] if self.gpu.instance else None)
        self._queries["activity"] = (activity.read, Backoff())
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
            self._queries["throttle reasons"] = (bits.read, Backoff())
        ways = ("counters" if counted else None, "samples" if values is not None else None)
        self.throttle_from = "+".join(filter(None, ways)) or None
        return values or {}

    def _with_power(self, values: dict[str, float], at_s: float) -> dict[str, float]:
        """Settle once which reading is the power, and integrate it."""
        average_w = values.pop("power_average_w", None)
        if self.power_field is None:
            self._choose_power(values, average_w)
        if self.power_field == "average_1s" and average_w is not None:
            values["power_w"] = average_w
        elif self.power_field == "instant" and "power_instant_w" in values:
            values["power_w"] = values.pop("power_instant_w")
        if "power_w" in values:
            self._integral.add(at_s, values["power_w"])
            values["power_integral_j"] = self._integral.energy_j
        return values

    def _choose_power(self, values: dict[str, float], average_w: float | None) -> None:
        """Decide which reading is `power_w`: the last second's average, else the instant, else NVML's power usage."""
        if average_w is not None:
            self.power_field = "average_1s"
        elif "power_instant_w" in values:
            self.power_field = "instant"
        elif "fields" not in self._queries or not {185, 186} & self._fields.keys():
            usage = self._try("power", lambda: self._read_power_usage(0.0))
            if usage is not None:
                self.power_field = "usage"  # the last second's average on Ampere (not GA100) and newer, else instant
                self._queries["power"] = (self._read_power_usage, Backoff())
                values |= usage


# Reason -> its bit (nvml.h, nvmlClocksEventReason...), and the counters that make it needless to look
_REASONS: Mapping[str, tuple[int, frozenset[str]]] = {
    "power": (0x04, frozenset({"throttle_power_s"})),
    "hw": (0x08, frozenset({"throttle_hw_thermal_s", "throttle_power_brake_s"})),  # by either: all that old GPUs say
    "sync_boost": (0x10, frozenset({"throttle_sync_boost_s"})),
    "sw_thermal": (0x20, frozenset({"throttle_sw_thermal_s"})),
    "hw_thermal": (0x40, frozenset({"throttle_hw_thermal_s"})),
    "power_brake": (0x80, frozenset({"throttle_power_brake_s"})),
}


class ThrottleBits:
    """Reads those reasons for lowered clocks that no counter covers; every call may raise `pynvml.NVMLError`."""

    def __init__(self, board: object, counted: Collection[str]) -> None:
        """Take the handle of a GPU and the names of the counters that it has."""
        self._board = board
        self._bits = {reason: bit for reason, (bit, counters) in _REASONS.items() if counters.isdisjoint(counted)}
        self._has_new_name = True

    @property
    def is_needed(self) -> bool:
        """Whether there is a reason that no counter counts."""
        return bool(self._bits)

    def read(self, _: float) -> dict[str, float]:
        """Return 100 for each reason that holds now, else 0: the mean over samples is a percentage of the time."""
        found = self._ask()
        return {f"throttled_{reason}_percent": 100.0 if found & bit else 0.0 for reason, bit in self._bits.items()}

    def _ask(self) -> int:
        if self._has_new_name:
            try:
                return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._board))
            except pynvml.NVMLError_FunctionNotFound:  # R510 knows the older name alone, R550 both
                self._has_new_name = False
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._board))


_METRICS: Mapping[int, str] = {  # nvmlGpmMetricId_t
    2: "sm_active_percent",
    3: "sm_occupancy_percent",
    5: "tensor_percent",
    6: "tensor_fp64_percent",
    7: "tensor_half_percent",
    9: "tensor_int_percent",
    10: "dram_percent",
    11: "fp64_percent",
    12: "fp32_percent",
    13: "fp16_percent",
}
_APART_S = 0.1  # two samples must be so far apart (nvml.h, nvmlGpmSampleGet)


class Activity:
    """Measures activity between two samples by GPM; every call may raise `pynvml.NVMLError`."""

    def __init__(self, board: object, instance: int | None) -> None:
        """Take the handle of a GPU, with the GPU instance's id where that alone is meant."""
        if not pynvml.nvmlGpmQueryDeviceSupport(board).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._board, self._instance = board, instance
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        self._asked = pynvml.c_nvmlGpmMetricsGet_t()
        self._asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._asked.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS):
            self._asked.metrics[place].metricId = metric
        self._at_s: float | None = None

    def read(self, at_s: float) -> dict[str, float]:
        """Return percentages for the time since the last call; an empty dict in the first, or soon after the last."""
        if self._at_s is not None and at_s - self._at_s < _APART_S:
            return {}
        newer = self._samples[1]
        if self._instance is None:
            pynvml.nvmlGpmSampleGet(self._board, newer)
        else:
            pynvml.nvmlGpmMigSampleGet(self._board, self._instance, newer)
        values = self._compare() if self._at_s is not None else {}
        self._samples.reverse()
        self._at_s = at_s
        return values

    def _compare(self) -> dict[str, float]:
        self._asked.sample1, self._asked.sample2 = self._samples
        pynvml.nvmlGpmMetricsGet(self._asked)
        found = zip(_METRICS.values(), self._asked.metrics, strict=False)
        values = {name: float(metric.value) for name, metric in found if metric.nvmlReturn == pynvml.NVML_SUCCESS}
        return {name: value for name, value in values.items() if math.isfinite(value)}  # an H100's driver says nan, too
