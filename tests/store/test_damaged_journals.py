"""Journals cut, zeroed, flipped and mixed with garbage: what was left alone is read, the rest counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import get_run
from hpcml_client.journal import JournalWriter
from tests.effort import times
from tests.store.building import make_run_dir

UID = "20260528-202640-aaaaaa"
STEPS = 60

# what, and where it begins: as shares of the length, so that hypothesis can shrink it
_place = st.floats(0, 1, exclude_max=True)
_damage = st.one_of(
    st.tuples(st.just("cut"), _place, st.integers(1, 400)),
    st.tuples(st.just("zeroed"), _place, st.integers(1, 700)),
    st.tuples(st.just("flipped"), _place, st.integers(0, 7)),
    st.tuples(st.just("garbage"), _place, st.binary(min_size=1, max_size=200)),
)


def damaged(content: bytes, kind: str, place: float, much: int | bytes) -> bytes:
    at = int(place * len(content))
    if isinstance(much, bytes):
        return content[:at] + much + content[at:]
    if kind == "cut":
        return content[:at] + content[at + much :]
    if kind == "zeroed":
        much = min(much, len(content) - at)
        return content[:at] + b"\0" * much + content[at + much :]
    return content[:at] + bytes([content[at] ^ 1 << much]) + content[at + 1 :]


def a_journal(run_dir: RunDir) -> Path:
    """Write a journal as programs do, whose header stands at its beginning and at its end."""
    with JournalWriter.open(str(run_dir.journals), run=UID, writer="rank0") as journal:
        for step in range(STEPS):
            journal.metrics(step, {"loss": step / 7, "accuracy": step / 70})
    return Path(journal.path or "")


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Path]:
    path = a_journal(make_run_dir(tmp_path / "runs"))
    shutil.copy(path, tmp_path / "whole")
    yield path
    for path in tmp_path.glob("damaged.db*"):
        path.unlink()


def points_in(lines: list[bytes]) -> dict[tuple[str, int], float]:
    records = (json.loads(line) for line in lines)
    return {(name, one["i"]): value for one in records if one.get("k") == "m" for name, value in one["v"].items()}


def points_of(store: Database) -> dict[tuple[str, int], float | None]:
    with store.reading() as connection:
        points = connection.execute(text("SELECT metric, step, value FROM points"))
        return {(name, step): value for name, step, value in points}


@settings(max_examples=times(25, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=st.lists(_damage, min_size=1, max_size=4))
def test_every_line_that_was_left_alone_is_in_the_store_and_the_others_are_counted(
    tmp_path: Path, whole: Path, damages: list[tuple[str, float, int | bytes]]
) -> None:
    for path in tmp_path.glob("damaged.db*"):
        path.unlink()
    content = (tmp_path / "whole").read_bytes()
    lines = content.split(b"\n")[:-1]
    header = lines[0]
    for kind, place, much in damages:
        content = damaged(content, kind, place, much)
    whole.write_bytes(content)
    left = set(content.split(b"\n")[:-1])
    written, expected = points_in(lines), points_in([line for line in lines if line in left])

    store = open_store(str(tmp_path / "damaged.db"))
    report = ingest_all(store, tmp_path / "runs")
    found, run = points_of(store), get_run(store, UID)
    store.close()

    assert found.items() <= written.items()  # nothing is read that was not written
    if header in left:
        assert expected.items() <= found.items()
    if found:
        assert report.problems == ()
        garbage = sum(much.count(b"\n") for *_, much in damages if isinstance(much, bytes))
        assert run.bad_lines <= 2 * len(damages) + garbage
        is_noticeable = ("loss", STEPS - 1) in found  # what was cut off at the end nobody can miss
        assert run.lost_records + run.bad_lines > 0 or found == written or not is_noticeable


def test_zeroed_pages_in_the_middle_cost_their_lines_alone(store: Database, whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    at = content.index(b'{"s":20,')
    behind = content.index(b'{"s":30,') + 10
    whole.write_bytes(content[:at] + b"\0" * (behind - at) + content[behind:])

    ingest_all(store, tmp_path / "runs")

    run = get_run(store, UID)
    assert (run.bad_lines, run.lost_records) == (1, 11)
    assert run.metrics["loss"].n == STEPS - 11


def test_a_journal_without_its_first_page_is_read_by_the_header_that_stands_further_on(
    store: Database, whole: Path, tmp_path: Path
) -> None:
    content = whole.read_bytes()
    whole.write_bytes(b"\0" * 1000 + content[1000:])

    report = ingest_all(store, tmp_path / "runs")  # which lies in another batch
    with whole.open("ab") as file:
        file.write(b'{"s":60,"t":9.5,"k":"m","i":60,"v":{"loss":60}}\n')
    again = ingest_all(store, tmp_path / "runs")

    run = get_run(store, UID)
    lost = content[:1000].count(b"\n")  # the header and so many records, of which the last is torn
    assert (report.problems, report.bad_lines, report.lost_records) == ((), 1, lost)
    assert (again.new_points, again.bad_lines, run.metrics["loss"].last) == (1, 0, 60.0)
    assert run.metrics["accuracy"].n == STEPS - lost


def test_another_runs_journal_is_not_taken_for_a_damaged_one(store: Database, whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes().replace(UID.encode(), b"20260528-202640-bbbbbb")
    (whole.parent / "0-other-1-rank0.jsonl").write_bytes(b"\0\n" + content)

    report = ingest_all(store, tmp_path / "runs")

    assert (report.new_points, len(report.problems)) == (2 * STEPS, 1)
    assert "left out" in report.problems[0]
