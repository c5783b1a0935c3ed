"""One run in several directories: which counts does not depend on which was found first."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.news import IngestReport
from hpcml.store.opening import open_store
from hpcml.store.query import get_run
from tests.store.building import T0, Journal, contents, curve, make_run_dir

UID = "20260528-202640-aaaaaa"


def copied(run_dir: RunDir, to: Path, *, loss: float, later_s: int = 0) -> RunDir:
    """Copy the run, let the copy have a journal of its own, and be so much younger."""
    copy = RunDir(Path(shutil.copytree(run_dir.path, to)))
    Journal(copy, writer=f"rank{int(loss)}").metrics(int(loss), loss=loss)
    written = run_dir.manifest.stat().st_mtime_ns + later_s * 10**9
    os.utime(copy.manifest, ns=(written, written))
    return copy


@pytest.fixture
def own(tmp_path: Path) -> RunDir:
    run_dir = make_run_dir(tmp_path / "own")
    Journal(run_dir).metrics(0, loss=0.0)
    return run_dir


def losses(store: Database) -> list[float]:
    return [point.value for point in curve(store, UID, "loss")]


def read_in_all_orders(tmp_path: Path, roots: Sequence[Path]) -> list[tuple[str, list[float], list[str]]]:
    """Bring the *roots* into a store of its own for each order in which they may have become known."""
    found = []
    for number, order in enumerate(itertools.permutations(range(len(roots)))):
        store = open_store(str(tmp_path / f"order{number}.db"))
        known: list[int] = []
        for at in order:
            known = sorted([*known, at])
            ingest_all(store, *(roots[at] for at in known))
        problems = ingest_all(store, *roots).problems
        found.append((get_run(store, UID).path, losses(store), sorted(problems)))
        store.close()
    return found


def test_of_two_roots_the_earlier_ones_run_counts(own: RunDir, tmp_path: Path) -> None:
    first = copied(own, tmp_path / "first" / "default" / UID, loss=1.0)
    copied(own, tmp_path / "second" / "default" / UID, loss=2.0)

    found = read_in_all_orders(tmp_path, [tmp_path / "own", tmp_path / "first", tmp_path / "second"])

    assert {tuple(one[1]) for one in found} == {(0.0,)}
    assert {one[0] for one in found} == {str(own.path)}
    assert all(len(problems) == 2 for _, _, problems in found)
    assert all(str(first.path) in problems[0] and "remove the copy" in problems[0] for _, _, problems in found)


@pytest.mark.parametrize("later_s", [0, 60])
def test_in_one_root_the_one_in_its_own_place_counts_then_the_older(own: RunDir, tmp_path: Path, later_s: int) -> None:
    copied(own, tmp_path / "own" / "default" / f"{UID}-backup", loss=1.0, later_s=-60)
    copied(own, tmp_path / "own" / "zzz" / UID, loss=2.0, later_s=later_s)

    ((path, values, problems),) = read_in_all_orders(tmp_path, [tmp_path / "own"])

    assert (path, values, len(problems)) == (str(own.path), [0.0], 2)


def test_the_copy_takes_over_once_the_other_is_removed(own: RunDir, store: Database, tmp_path: Path) -> None:
    copy = copied(own, tmp_path / "other" / "default" / UID, loss=1.0)
    roots = [tmp_path / "own", tmp_path / "other"]
    ingest_all(store, *roots)
    before = losses(store)
    shutil.rmtree(own.path)

    report = ingest_all(store, *roots)

    assert (before, losses(store), report.problems) == ([0.0], [0.0, 1.0], ())
    assert get_run(store, UID).path == str(copy.path)
    fresh = open_store(str(tmp_path / "fresh.db"))
    ingest_all(fresh, *roots)
    assert contents(fresh) == contents(store)


@pytest.mark.usefixtures("own")
def test_one_folder_by_two_names_is_no_copy(store: Database, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "own")

    reports = [ingest_all(store, tmp_path / name) for name in ("own", "link", "own")]

    assert [report.problems for report in reports] == [(), (), ()]
    assert losses(store) == [0.0]


def test_a_folder_of_another_name_is_the_run_that_it_says(own: RunDir, store: Database, tmp_path: Path) -> None:
    second = Journal(own, writer="rank7", t0=T0 + 1)
    second.metrics(1, loss=7.0)
    text = second.path.read_text()
    second.path.unlink()
    renamed = RunDir(own.path.rename(own.path.with_name("my-best-run")))
    ingest_all(store, tmp_path / "own")
    (renamed.journals / second.path.name).write_text(text)

    assert ingest_all(store, tmp_path / "own") == IngestReport(runs=1, new_points=1)
    assert losses(store) == [0.0, 7.0]


def test_a_root_may_be_a_run_an_experiment_or_a_folder_of_experiments(own: RunDir, tmp_path: Path) -> None:
    found = []
    for root in (own.path, own.path.parent, own.path.parent.parent):
        store = open_store(str(tmp_path / f"{len(found)}.db"))
        found.append((ingest_all(store, root).runs, ingest_all(store, root).new_points, losses(store)))

    assert found == [(1, 0, [0.0])] * 3
