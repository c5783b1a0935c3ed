"""The state and the last values of runs as OpenMetrics text, which Prometheus and its node_exporter read.

Everything is a gauge without a time, which the older text format of node_exporter's textfile collector also knows. Each
sample has the labels ``run`` and ``experiment``. A metric's name is put behind ``hpcml_metric_``, with ``_`` for
characters that Prometheus does not allow, and stands whole in the label ``metric``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, Any

from hpcml.interop.exported import Export, clean, needing
from hpcml.model.records import RunRecord

_UNSAFE = re.compile(r"[^a-zA-Z0-9_]")
_BEGINNING = "# HELP hpcml_run_info "
_INFO = ("name", "precision", "precision_effective", "scheduler", "job_id", "seed")
_TIMES = {
    "wall_s": ("hpcml_run_wall_seconds", "How long the program ran."),
    "t_start": ("hpcml_run_start_time_seconds", "When the run started, in unix time."),
    "t_end": ("hpcml_run_end_time_seconds", "When the run ended, in unix time."),
}
_USAGE = {
    "energy_j": ("hpcml_run_energy_joules", "What the run's GPU boards drew."),
    "gpu_s": ("hpcml_run_gpu_seconds", "GPUs times seconds that the program had them."),
    "mean_power_w": ("hpcml_run_power_watts", "Mean power of one GPU board."),
    "co2_g": ("hpcml_run_co2_grams", "CO2 of that energy, by the cluster's factor."),
}
_WHICH = ("run", "experiment")  # labels of every sample


def write_openmetrics(export: Export, file: IO[str]) -> None:
    """Write the states and last values of the runs, as they are now, to *file*.

    A value that is not known has no sample. Raises `ConfigError` where prometheus_client is missing.
    """
    with needing("prometheus_client", extra="openmetrics"):
        from prometheus_client.openmetrics.exposition import generate_latest  # noqa: PLC0415 - an extra
    file.write(generate_latest(_Collected(export)).decode())


def is_openmetrics_export(head: bytes) -> bool:
    """Tell whether a file that begins with *head* was written by `write_openmetrics`."""
    return head.startswith(_BEGINNING.encode())


class _Collected:
    """What prometheus_client takes for a registry: an object with the method `collect`."""

    def __init__(self, export: Export) -> None:
        self._records = export.records
        self._last_value = export.last_value

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an extra

        info = GaugeMetricFamily("hpcml_run_info", "What a run is; always 1.", labels=[*_WHICH, *_INFO])
        state = GaugeMetricFamily("hpcml_run_state", "1 for the state of a run.", labels=[*_WHICH, "state"])
        for record in self._records:
            words = [_label(getattr(record, field)) for field in _INFO]
            info.add_metric([*_labels(record), *words], 1)
            state.add_metric([*_labels(record), record.state.value], 1)
        yield info
        yield state
        for field, (name, text) in _TIMES.items():
            family = GaugeMetricFamily(name, text, labels=_WHICH)
            for record in self._records:
                if (value := getattr(record, field)) is not None:
                    family.add_metric(_labels(record), value)
            yield family
        for field, (name, text) in _USAGE.items():
            family = GaugeMetricFamily(name, text, labels=_WHICH)
            for record in self._records:
                if record.usage is not None and (value := getattr(record.usage, field)) is not None:
                    family.add_metric(_labels(record), value)
            yield family
        yield from self._last_values()

    def _last_values(self) -> Iterator[Any]:
        """Yield a family for each metric; names that become alike share one, and its label tells them apart."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an extra

        values: dict[str, Any] = {}
        steps = GaugeMetricFamily("hpcml_step", "The step of the last value.", labels=[*_WHICH, "metric"])
        for record in self._records:
            for metric, summary in record.metrics.items():
                value = self._last_value(record, metric)
                if value is None:
                    continue
                name = f"hpcml_metric_{_UNSAFE.sub('_', metric)[:200]}"
                if name not in values:
                    text = "The last value of a metric that runs reported."
                    values[name] = GaugeMetricFamily(name, text, labels=[*_WHICH, "metric"])
                values[name].add_metric([*_labels(record), _label(metric)], value)
                if summary.last_step is not None:
                    steps.add_metric([*_labels(record), _label(metric)], summary.last_step)
        yield from (values[name] for name in sorted(values))
        yield steps


def _labels(record: RunRecord) -> list[str]:
    return [_label(record.uid), _label(record.experiment)]


def _label(value: object) -> str:
    return "" if value is None else clean(str(value))
