"""Runs as the store would hand them out, for the tests of this room."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from hpcml.analysis.compare.result import Cell, Interval, Row
from hpcml.analysis.nodes import Measured, ratio
from hpcml.model.records import MetricSummary, Point, RunRecord
from hpcml.model.state import State

PARAMS: dict[str, Any] = {
    "model.name": "digits_cnn",
    "model.recipe": "torch_classification",
    "data.name": "digits",
    "data.path": None,
    "precision.numerics": "auto",
    "precision.rounding": "rna",
    "strategy.name": "single",
    "strategy.processes_per_node": None,
    "layout.name": "nchw",
    "container.name": "none",
    "cluster.name": "karolina",
    "cluster.max_parallel": None,
    "resources.nodes": 1,
    "resources.gpus_per_node": 1,
    "resources.walltime": "1h",
    "training.batch_size": 64,
    "training.steps": 100,
    "objective.metric": "val_accuracy",
    "objective.goal": "max",
    "objective.margin": 0.01,
    "workload.stop_grace": "30s",
    "experiment": "precision-study",
}
FACTS = {"device": "cuda", "gpu_model": "A100", "cpu_model": "EPYC 7763", "torch": "2.13.0", "threads": 8}


def summary(name: str, last: float | None, *, n: int = 10) -> MetricSummary:
    finite = last is not None and math.isfinite(last)
    return MetricSummary(
        name=name,
        n=n if finite else n - 1,
        n_nonfinite=0 if finite else 1,
        first=0.1,
        last=last if finite else None,
        last_step=100,
        min=0.1,
        min_step=1,
        max=0.99,
        max_step=90,
        mean=0.5,
    )


def run(
    precision: str = "fp32",
    seed: int = 0,
    value: float | None = 0.9,
    *,
    uid: str | None = None,
    params: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    **fields: Any,  # noqa: ANN401
) -> RunRecord:
    known: dict[str, Any] = {
        "uid": uid or f"20261121-080000-{precision}s{seed}",
        "path": "/scratch/runs",
        "experiment": "precision-study",
        "name": None,
        "spec_hash": f"{precision}{seed}",
        "state": State.COMPLETED,
        "reason": None,
        "exit_code": 0,
        "attempt": 0,
        "scheduler": "slurm",
        "job_id": "4711",
        "array_index": None,
        "job_name": None,
        "is_shared": False,
        "submission": None,
        "is_settled": True,
        "cause": None,
        "submitted_at": "2026-11-21T08:00:00+01:00",
        "t_start": 1_800_000_000.0,
        "t_end": 1_800_000_060.0,
        "wall_s": 60.0,
        "seed": seed,
        "precision": precision,
        "precision_effective": precision,
        "numerics": "native",
        "git_commit": "abc1234",
        "git_dirty": False,
        "params": {**PARAMS, "precision.name": precision, "seed": seed, **(params or {})},
        "facts": {**FACTS, **(facts or {})},
        "metrics": {"val_accuracy": summary("val_accuracy", value)},
    }
    return RunRecord(**{**known, **fields})


def arm(precision: str, values: Sequence[float | None], **fields: Any) -> list[RunRecord]:  # noqa: ANN401
    return [run(precision, seed, value, **fields) for seed, value in enumerate(values)]


def curve(step_s: float, *, seed: int = 0, steps: int = 100) -> list[Point]:
    """Return step times with a slow start, little noise and a stall now and then."""
    noise = random.Random(seed)  # noqa: S311
    times = [step_s * (5.0 if s < 5 else 3.0 if s % 40 == 0 else 1.0) * noise.uniform(0.98, 1.02) for s in range(steps)]
    return [Point(step=step, t_s=float(step), value=value) for step, value in enumerate(times)]


def curves(runs: Sequence[RunRecord], step_s: dict[str, float]) -> dict[str, list[Point]]:
    return {r.uid: curve(step_s[r.precision], seed=r.seed + i) for i, r in enumerate(runs) if r.precision in step_s}


def texts(flagged: Row | Cell) -> list[str]:
    """Return the sentences of the flags of a row, or of a cell."""
    return [str(flag) for flag in flagged.flags]


def ratio_of(
    numerator: Sequence[float], denominator: Sequence[float], *, pairs: bool
) -> tuple[float, Interval | None] | None:
    """Return the ratio of geometric means with its interval; values at the same place are of one seed where *pairs*."""
    tops = [Measured(seed=seed, node=None, value=value) for seed, value in enumerate(numerator)]
    first = 0 if pairs else 1000
    bottoms = [Measured(seed=first + seed, node=None, value=value) for seed, value in enumerate(denominator)]
    found = ratio(tops, bottoms)
    return None if found is None else (found.value, found.ci95)
