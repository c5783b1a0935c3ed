"""A benchmark over sizes: smallest first, each once, also where it is interrupted; its clock counts what it ran."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpcml.runs.journal import Event, Metrics, read_journal
from hpcml_client import connect
from hpcml_train.errors import RecipeError, TrainingFailed
from hpcml_train.size_sweep import SizeSweep, time_calls


def measure(run_dir: Path, attempt: int, *, interrupted_at: int | None = None) -> tuple[bool, list[int]]:
    """Measure three sizes in *run_dir*; return whether to the end, and which were measured."""
    measured: list[int] = []

    def one(size: int) -> dict[str, float]:
        measured.append(size)
        if size == interrupted_at:
            os.kill(os.getpid(), signal.SIGUSR1)
        return {"rate": float(size % 4 + 1)}

    with connect({"HPCML_RUN_DIR": str(run_dir), "HPCML_ATTEMPT": str(attempt)}) as run:
        sweep = SizeSweep(run, run.checkpoints(), [6, 2, 5, 2])
        finished = sweep.measure(one)
        if finished:
            sweep.report_best("rate", "share")
    return finished, measured


def records(run_dir: Path, attempt: int) -> tuple[list[Metrics], dict[str, dict[str, object]]]:
    (path,) = (run_dir / "journal").glob(f"{attempt}-*-rank0.jsonl")
    found = read_journal(path).records
    events = {record.name: dict(record.details) for record in found if isinstance(record, Event)}
    return [record for record in found if isinstance(record, Metrics)], events


def test_sizes_are_measured_once_each_and_the_smallest_first(tmp_path: Path) -> None:
    assert measure(tmp_path, 0) == (True, [2, 5, 6])

    metrics, events = records(tmp_path, 0)
    assert [(record.step, dict(record.values)) for record in metrics[:3]] == [
        (2, {"rate": 3.0}),
        (5, {"rate": 2.0}),
        (6, {"rate": 3.0}),
    ]
    assert [(record.step, record.values["share"]) for record in metrics[3:]] == [(2, 1.0), (5, 2 / 3), (6, 1.0)]
    assert events["empirical_peak"] == {"metric": "rate", "value": 3.0, "size": 2, "basis": "best of this sweep"}


def test_an_interrupted_sweep_goes_on_with_what_is_left(tmp_path: Path) -> None:
    assert measure(tmp_path, 0, interrupted_at=2) == (False, [2])
    assert measure(tmp_path, 1) == (True, [5, 6])

    metrics, events = records(tmp_path, 1)
    assert events["resumed"]["step"] == 2
    assert [(record.step, record.values["share"]) for record in metrics[2:]] == [(2, 1.0), (5, 2 / 3), (6, 1.0)]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_sweep_that_is_nearly_done_is_ended_rather_than_left(tmp_path: Path) -> None:
    assert measure(tmp_path, 0, interrupted_at=6) == (True, [2, 5, 6])


def test_a_checkpoint_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "checkpoints" / "step2-attempt0"
    bad.parent.mkdir()
    bad.write_text("no results")

    with pytest.raises(RecipeError, match=f"cannot go on from {bad}: .*: remove it"):
        measure(tmp_path, 1)


@pytest.mark.parametrize(
    "error", [MemoryError("2 GiB"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_a_size_that_does_not_fit_is_said_in_one_line(tmp_path: Path, error: Exception) -> None:
    def one(_: int) -> dict[str, float]:
        raise error

    with connect({"HPCML_RUN_DIR": str(tmp_path)}) as run:
        sweep = SizeSweep(run, run.checkpoints(), [7])
        with pytest.raises(TrainingFailed, match=r"out of memory at size 7 .*: leave it out of model.options.sizes"):
            sweep.measure(one)


def test_calls_are_timed_after_the_warm_up_and_as_many_as_last_long_enough() -> None:
    clock = [0.0]
    calls: list[float] = []

    def call() -> None:
        clock[0] += 10.0 if len(calls) < 2 else 1.0  # the first ones are slow
        calls.append(clock[0])

    times = time_calls(call, lambda: None, warmup=2, repeats=3, repeat_time_s=4.0, now=lambda: clock[0])

    assert times == (1.0, 1.0, len(calls))
    assert len(calls) == 2 + 1 + 4 + 3 * 4
