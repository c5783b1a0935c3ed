"""A comparison and a run as the other rooms would hand them over, for the tests of this room."""

from __future__ import annotations

import math
from typing import Any

from hpcml.analysis.compare.result import (
    Cell,
    Comparison,
    Difference,
    Discrepancy,
    Excluded,
    Interval,
    Occurrence,
    Row,
    Speed,
)
from hpcml.analysis.flags import Flag, FlagCode
from hpcml.model.records import MetricSummary, RunRecord, StoredEvent
from hpcml.model.state import State

EVIL = "a[bold]b\x1b[31m\nc|d\r\u202e"  # markup, an escape sequence, line breaks, a table's bar, reversed writing


def ci(low: float, high: float, confidence: float = 0.95) -> Interval:
    return Interval(low=low, high=high, confidence=confidence)


def flag(text: str, code: FlagCode = FlagCode.RECORDS) -> Flag:
    return Flag(code=code, level="doubt", text=text)


def speed(step_ms: float, speedup: float | None = None) -> Speed:
    return Speed(
        step_ms=step_ms,
        step_ms_p5=step_ms * 0.98,
        step_ms_p95=step_ms * 1.2,
        samples_per_s=64000 / step_ms,
        speedup=speedup,
        speedup_ci95=None if speedup is None else ci(speedup - 0.01, speedup + 0.01),
        speedup_paired=None if speedup is None else True,
        n=5,
        wall_s=63.2,
    )


def row(level: str, mean: float | None, **fields: Any) -> Row:  # noqa: ANN401
    known: dict[str, Any] = {
        "level": level,
        "numerics": "native",
        "precision_requested": (level,),
        "precision_effective": (level,),
        "n_ok": 5,
        "n_failed": 0,
        "n_nan": 0,
        "n_without_metric": 0,
        "n_incomplete": 0,
        "n_unfinished": 0,
        "seeds": (0, 1, 2, 3, 4),
        "mean": mean,
        "sd": 0.0019,
        "mean_ci95": None if mean is None else ci(mean - 0.0024, mean + 0.0024),
        "difference": None,
        "verdict": "reference",
        "speed": None,
    }
    return Row(**{**known, **fields})


def difference(value: float, half: float, *, rho: float | None = 0.93) -> Difference:
    return Difference(
        value=value,
        ci90=ci(value - half, value + half, 0.90),
        ci95=ci(value - 1.3 * half, value + 1.3 * half),
        p_tost=0.0321,
        paired=rho is not None,
        rho=rho,
    )


def comparison(**fields: Any) -> Comparison:  # noqa: ANN401
    rows = (
        row("fp32", 0.9108, speed=speed(19.97)),
        row("amp_bf16", 0.9098, difference=difference(-0.001, 0.0008), verdict="equivalent", speed=speed(8.979, 2.22)),
        row(
            "tf32",
            0.8783,
            numerics="emulated",
            precision_effective=("fp32", "tf32"),
            n_ok=3,
            n_nan=1,
            seeds=(0, 1, 2),
            difference=difference(-0.0325, 0.0125, rho=None),
            verdict="worse",
            flags=(flag("3 seeds: indicative only, take 5"), flag("emulated: no speed")),
        ),
    )
    cell: dict[str, Any] = {
        "where": {
            "model": "digits_cnn",
            "data": "digits",
            "strategy": "single",
            "layout": "nchw",
            "cluster": "karolina",
            "container": "none",
        },
        "device": "cuda (A100)",
        "batch_size": 64,
        "reference": "fp32",
        "margin": 0.005,
        "margin_source": "config",
        "steady_from_step": 50,
        "steady_to_step": 99,
        "rows": rows,
        "notes": (
            Discrepancy(
                key="hostname",
                kind="fact",
                occurrences=(
                    Occurrence(value="acn01", n_runs=12, levels=("fp32", "amp_bf16")),
                    Occurrence(value="acn02", n_runs=1, levels=("tf32",)),
                ),
            ),
        ),
        "excluded": (Excluded(uid="20261121-080000-abcdef", level="tf32", reason="val_accuracy ended non-finite"),),
    }
    return Comparison(
        by="precision",
        metric="val_accuracy",
        goal="max",
        goal_source="config",
        n_runs=14,
        n_comparisons=2,
        cells=(Cell(**{**cell, **fields}),),
    )


def summary(name: str, last: float | None) -> MetricSummary:
    return MetricSummary(
        name=name,
        n=10,
        n_nonfinite=0 if last is not None else 2,
        first=0.1,
        last=last,
        last_step=100,
        min=0.1,
        min_step=1,
        max=0.99,
        max_step=90,
        mean=0.5,
    )


def run(**fields: Any) -> RunRecord:  # noqa: ANN401
    known: dict[str, Any] = {
        "uid": "20261121-080000-abcdef",
        "path": "/scratch/runs/study/20261121-080000-abcdef",
        "experiment": "study",
        "name": None,
        "spec_hash": "0123456789abcdef",
        "state": State.COMPLETED,
        "reason": None,
        "exit_code": 0,
        "attempt": 1,
        "scheduler": "slurm",
        "job_id": "4711",
        "array_index": None,
        "job_name": None,
        "is_shared": False,
        "submission": None,
        "is_settled": True,
        "cause": None,
        "submitted_at": "2026-11-21T08:00:00+00:00",
        "t_start": 1_795_248_030.0,
        "t_end": 1_795_248_093.2,
        "wall_s": 63.2,
        "seed": 3,
        "precision": "tf32",
        "precision_effective": "tf32",
        "numerics": "native",
        "git_commit": "abc1234",
        "git_dirty": True,
        "tags": ("nightly",),
        "params": {"model.name": "digits_cnn", "objective.metric": "val_accuracy", "tags": ["nightly"]},
        "facts": {"gpu_model": "A100", "threads": 8},
        "metrics": {"val_accuracy": summary("val_accuracy", 0.9123), "grad_norm": summary("grad_norm", None)},
    }
    return RunRecord(**{**known, **fields})


NOW = 1_795_248_000.0 + 7260.0  # two hours and a minute after submission


def event(**fields: Any) -> StoredEvent:  # noqa: ANN401
    known: dict[str, Any] = {
        "t_s": 1.5,
        "writer": "rank0",
        "attempt": 1,
        "name": "probe",
        "details": {"matmul": "tf32", "error": math.nan},
    }
    return StoredEvent(**{**known, **fields})
