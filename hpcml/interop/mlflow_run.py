"""A run as MLflow recorded it: `mlflow_folder` and `mlflow_database` read such, `mlflow_import` makes them ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.errors import ConfigError

_LATEST_MS = 253_402_300_800_000  # the year 10000, which no calendar of Python's has: nanoseconds, mostly


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One value of a metric, as MLflow stored it: time in unix milliseconds; step 0 where none was logged."""

    at_ms: int
    value: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowRun:
    """One run of MLflow's.

    Times are in unix milliseconds, None where MLflow has none. The values of a metric are in the order in which they
    lie there. A run that has not ended has no `ended_ms`.
    """

    experiment_id: str
    experiment: str
    run_id: str
    name: str | None
    status: str  # RUNNING, SCHEDULED, FINISHED, FAILED, KILLED, or what else stood there
    started_ms: int | None
    ended_ms: int | None
    user: str | None
    artifact_uri: str | None
    folder: Path
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Sequence[Logged]] = field(default_factory=dict)
    bad_values: int = 0  # of metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A run or experiment that cannot be imported, and why, in one line."""

    why: str


def moment(value: object) -> int | None:
    """Return a time of MLflow in unix milliseconds; None for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 < value < _LATEST_MS else None


def word(value: object) -> str | None:
    """Return what stands there as text; None where nothing does."""
    return None if value is None or value == "" else str(value)


def no_such_experiment(source: Path, wanted: str, there: Collection[str]) -> ConfigError:
    """Return what to raise where *source* has the experiments *there* and not the one that is *wanted*."""
    return ConfigError(f"{source} has no experiment {wanted}: it has {', '.join(sorted(there)) or 'none'}")
