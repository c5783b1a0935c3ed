"""Records that never came, and lines that cannot be read: counted once, however the journal is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcml.runs.layout import find_run_dirs
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.missing import damage, without_directory
from hpcml.store.news import IngestReport
from hpcml.store.opening import open_store
from hpcml.store.query import get_run
from tests.effort import times
from tests.store.building import T0, Journal, contents, curve, make_run_dir

UID = "20260528-202640-aaaaaa"


def line(seq: int) -> str:
    return f'{{"s":{seq},"t":0.5,"k":"m","i":{seq},"v":{{"loss":{seq}}}}}\n'


def lost_of(store: Database) -> int:
    return get_run(store, UID).lost_records


def test_a_hole_in_the_numbers_is_so_many_lost_records(store: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs))
    for seq in (0, 1, 5, 6, 9):
        journal.write(line(seq))

    assert ingest_all(store, runs) == IngestReport(runs=1, new_points=5, lost_records=5)
    assert ingest_all(store, runs) == IngestReport(runs=1)
    assert (lost_of(store), get_run(store, UID).bad_lines) == (5, 0)


def test_a_hole_between_two_times_of_reading_is_seen(store: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs))
    journal.write(line(0))
    ingest_all(store, runs)
    journal.write(line(4))

    assert ingest_all(store, runs).lost_records == 3
    assert lost_of(store) == 3


def test_the_event_that_tells_of_a_gap_does_not_count_it_again(store: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs))
    journal.write(line(0) + line(8))
    journal.write('{"s":9,"t":0.6,"k":"e","n":"journal_gap","d":{"dropped":7}}\n')
    ingest_all(store, runs)

    assert lost_of(store) == 7


def test_what_was_lost_before_the_first_record_is_lost(store: Database, runs: Path) -> None:
    Journal(make_run_dir(runs)).write(line(3))
    ingest_all(store, runs)

    assert lost_of(store) == 3


def test_a_number_taken_a_moment_too_early_is_no_loss(store: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs))
    journal.write(line(0) + line(2))  # a signal handler wrote in the middle of record 1
    before = ingest_all(store, runs).lost_records
    journal.write(line(1) + line(3))

    assert (before, ingest_all(store, runs).lost_records, lost_of(store)) == (1, -1, 0)


def test_a_number_that_was_damaged_itself_makes_no_thousand_lost_records(store: Database, runs: Path) -> None:
    journal = Journal(make_run_dir(runs))
    journal.write("".join(map(line, (0, 1, 2, 9003, 4, 5))))
    ingest_all(store, runs)

    assert lost_of(store) == 0


def test_damage_of_all_runs_is_summed_and_the_runs_are_named(store: Database, runs: Path) -> None:
    for name in "abc":
        run_dir = make_run_dir(runs, UID[:-1] + name)
        for rank in range(2):
            journal = Journal(run_dir, writer=f"rank{rank}")
            journal.write(line(0) if name == "b" else "garbage\n" + line(2))
    ingest_all(store, runs)

    found = damage(store)

    assert (found.uids, found.bad_lines, found.lost_records) == ([UID[:-1] + "a", UID[:-1] + "c"], 4, 8)
    assert (get_run(store, UID[:-1] + "b").bad_lines, get_run(store, UID).lost_records) == (0, 4)


def test_runs_whose_directories_are_gone_are_found_and_a_disk_that_is_away_is_not(
    store: Database, tmp_path: Path
) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    made = [make_run_dir(here, UID), make_run_dir(here, UID[:-1] + "b"), make_run_dir(away, UID[:-1] + "c")]
    ingest_all(store, here, away)
    for run_dir in made[1:]:
        run_dir.path.rename(tmp_path / f"moved-{run_dir.uid}")
    (away / "default").rmdir()
    away.rmdir()

    assert without_directory(store, [here, away]) == [UID[:-1] + "b"]


@settings(max_examples=times(12, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kept=st.sets(st.integers(0, 60), min_size=1),
    cuts=st.lists(st.floats(0, 1), max_size=4),
)
def test_however_it_is_read_the_same_records_are_lost(tmp_path: Path, kept: set[int], cuts: list[float]) -> None:
    for path in tmp_path.glob("cut.db*"):
        path.unlink()
    root = tmp_path / "runs"
    run_dir = next(find_run_dirs(root), None) or make_run_dir(root)
    for path in run_dir.journal_files():
        path.unlink()
    journal = Journal(run_dir)
    header = journal.path.read_bytes().split(b"\n")[0] + b"\n"
    content = header + "".join(map(line, sorted(kept))).encode()
    store = open_store(str(tmp_path / "cut.db"))
    told = 0
    for cut in [*sorted(cuts), 1.0]:
        journal.path.write_bytes(content[: round(cut * len(content))])
        told += ingest_all(store, root).lost_records

    assert told == lost_of(store) == max(kept) + 1 - len(kept)
    store.close()


def test_the_journal_that_counts_most_is_taken_whenever_it_comes(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = make_run_dir(runs)
    Journal(run_dir, writer="agent", attempt=1).metrics(0, loss=1.0)
    Journal(run_dir, writer="rank0", attempt=0, t0=T0 + 900).metrics(0, loss=2.0)  # its clock was ahead
    ingest_all(store, runs)
    Journal(run_dir, writer="rank1", attempt=1).metrics(0, loss=3.0)
    Journal(run_dir, writer="rank0", attempt=1).metrics(0, loss=4.0)
    Journal(run_dir, writer="launch", attempt=0).event("submitted")
    ingest_all(store, runs)

    assert [point.value for point in curve(store, UID, "loss")] == [4.0]
    fresh = open_store(str(tmp_path / "fresh.db"))
    ingest_all(fresh, runs)
    assert contents(fresh) == contents(store)


@pytest.mark.parametrize("is_anew", [False, True])
def test_reading_anew_finds_what_was_changed_without_a_trace(store: Database, runs: Path, *, is_anew: bool) -> None:
    journal = Journal(make_run_dir(runs))
    journal.metrics(0, loss=1.5)
    ingest_all(store, runs)
    journal.path.write_text(journal.path.read_text().replace("1.5", "2.5"))

    report = ingest_all(store, runs, is_anew=is_anew)

    assert report == IngestReport(runs=1, new_points=int(is_anew))
    assert curve(store, UID, "loss")[0].value == (2.5 if is_anew else 1.5)


def test_reading_anew_changes_nothing_else(store: Database, runs: Path) -> None:
    for name in "ab":
        journal = Journal(make_run_dir(runs, UID[:-1] + name, tags=["first"]))
        journal.metrics(0, loss=1.5)
        journal.event("checkpoint", step=1)
    ingest_all(store, runs)
    before = contents(store)

    assert ingest_all(store, runs, is_anew=True).new_points == 2
    assert contents(store) == before
