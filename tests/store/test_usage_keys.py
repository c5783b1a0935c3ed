"""Usage and work under the words of conditions, columns and orders."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.model.record_keys import MEASURED, SCALED, value_of
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.keys import parts_of
from hpcml.store.loading import load_runs
from hpcml.store.query import check_keys, find_runs, get_run
from hpcml.store.schema import RUN
from hpcml.store.where import parse_condition
from tests.store.building import T0, Journal, make_run_dir
from tests.store.test_ingest import UID
from tests.store.test_samples import one_run

OTHER = UID[:-1] + "b"


@pytest.fixture
def measured(store: Database, runs: Path) -> Database:
    """One run that was measured, and another that was not."""
    rank0 = Journal(one_run(runs), t0=T0 + 61)
    rank0.event("work", devices=1, model_flops=2e9, flops_method="meta", samples=64.0)
    rank0.event("memory", 24.0, device="cuda:0", peak_allocated_mb=700.0, peak_reserved_mb=900.0)
    Journal(make_run_dir(runs, OTHER), writer="agent").event("attempt_started")
    ingest_all(store, runs)
    return store


def test_every_word_means_the_same_in_a_record_and_in_a_condition(measured: Database) -> None:
    run, other = get_run(measured, UID), get_run(measured, OTHER)
    names = [(space, name) for space, names in MEASURED.items() for name in names] + [
        ("usage", name) for name in SCALED
    ]

    with measured.reading() as connection:
        for space, name in names:
            for key in (name, f"{space}.{name}"):
                some = load_runs(connection, RUN.c.id.is_not(None), parts_of([key]))
                assert [value_of(one, key, now=0.0) for one in some] == [value_of(run, key, now=0.0), None], key
                assert value_of(other, key, now=0.0) is None
    assert run.work is not None
    assert (run.work.model_flops, run.work.peak_allocated_mb) == (2e9, 700.0)


@pytest.mark.parametrize(
    ("condition", "uids"),
    [
        ("usage.energy_j > 1000", [UID]),
        ("energy_kj > 2.4 and energy_kj < 2.6", [UID]),
        ("usage.gpu_hours<1", [UID]),
        ("usage.energy_j=none", [OTHER]),
        ("work.samples=64", [UID]),
        ("model_flops>1e9", [UID]),
        ("energy_scope=gpu", [UID]),
        ("co2_g>0", []),  # a word that is known, and a value that no run has
    ],
)
def test_conditions_know_what_was_measured(measured: Database, condition: str, uids: list[str]) -> None:
    assert [run.uid for run in find_runs(measured, filters=[parse_condition(condition)])] == uids


def test_runs_are_ordered_by_what_was_measured_and_those_without_come_last(measured: Database) -> None:
    assert [run.uid for run in find_runs(measured, sort="energy_kj", descending=True)] == [UID, OTHER]
    check_keys(measured, ["energy_kj", "usage.mean_power_w", "work.tokens", "co2_kg"])


def test_a_slip_is_told_with_what_is_near(measured: Database) -> None:
    with pytest.raises(StoreError, match="did you mean energy_kj"):
        check_keys(measured, ["energy_kjj"])


def test_a_metric_of_the_program_comes_before_what_was_measured_beside_it(store: Database, runs: Path) -> None:
    Journal(one_run(runs), t0=T0 + 61).metrics(0, energy_j=7.0)
    ingest_all(store, runs)
    run = get_run(store, UID)

    assert value_of(run, "energy_j", now=0.0) == 7.0
    assert value_of(run, "usage.energy_j", now=0.0) == 2500.0
    assert [
        len(find_runs(store, filters=[parse_condition(text)])) for text in ("energy_j=7", "usage.energy_j=2500")
    ] == [1, 1]
