"""What a GPU's units did between two moments, by NVML's GPU performance monitoring (GPM): Hopper and newer."""

from __future__ import annotations

from collections.abc import Mapping

import pynvml

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
    """Compares each sample with the one before; may raise NVML's errors in every call."""

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
        """Return percentages of the time since the last call; none in the first."""
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
        return {name: float(metric.value) for name, metric in found if metric.nvmlReturn == pynvml.NVML_SUCCESS}
