"""Settings that runs have alike are in the store once, and each run has its own answers all the same."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select

from hpcml.errors import StoreError
from hpcml.runs.layout import RunDir
from hpcml.store.conditions import parse_condition
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs, get_run
from hpcml.store.rows import forget_runs
from hpcml.store.schema import RUN_SETTINGS, SETTING, SETTINGS
from tests.store.building import contents, make_run_dir

_UIDS = [f"20260528-202640-00000{at}" for at in range(6)]


def test_of_six_alike_runs_of_three_seeds_the_store_has_each_group_once(store: Database, runs: Path) -> None:
    six_runs(runs)

    ingest_all(store, runs)

    first = get_run(store, _UIDS[0])
    groups = {key.partition(".")[0] for key in first.params}
    assert count(store, SETTINGS) == len(groups) + 2  # a group for each seed
    assert count(store, SETTING) == len(first.params) + 2
    assert count(store, RUN_SETTINGS) == 6 * len(groups)
    assert [run.params["seed"] for run in find_runs(store)] == [0, 1, 2, 0, 1, 2]
    assert list(first.params) == sorted(first.params)
    found = find_runs(store, filters=[parse_condition("params.seed=2")])
    assert [run.uid for run in found] == [_UIDS[2], _UIDS[5]]


def test_a_changed_run_json_changes_its_own_run_alone(store: Database, runs: Path) -> None:
    directories = six_runs(runs)
    ingest_all(store, runs)
    before = get_run(store, _UIDS[1]).params
    edit(directories[0], optimizer="adam")
    ingest_all(store, runs)
    assert get_run(store, _UIDS[0]).params == get_run(store, _UIDS[3]).params | {"optimizer": "adam"}
    assert get_run(store, _UIDS[1]).params == before

    edit(directories[0], optimizer=None)
    ingest_all(store, runs)

    assert get_run(store, _UIDS[0]).params == get_run(store, _UIDS[3]).params
    with pytest.raises(StoreError, match="no run has anything called 'optimizer'"):
        find_runs(store, sort="optimizer")


def test_what_the_last_run_had_goes_with_it_and_what_others_have_stays(store: Database, runs: Path) -> None:
    directories = six_runs(runs)
    ingest_all(store, runs)
    for at in (2, 5):
        shutil.rmtree(directories[at].path)

    assert forget_runs(store, [_UIDS[2], _UIDS[5]]) == 2

    assert count(store, SETTING) == len(get_run(store, _UIDS[0]).params) + 1
    assert {run.params["seed"] for run in find_runs(store)} == {0, 1}


def test_on_a_server_several_read_runs_with_the_same_settings_at_once(
    store: Database, store_url: str, runs: Path, tmp_path: Path
) -> None:
    six_runs(runs)
    others = [open_store(store_url) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda each: ingest_all(each, runs), others))

    fresh = open_store(str(tmp_path / "fresh.db"))
    ingest_all(fresh, runs)
    assert contents(store) == contents(fresh)
    for each in others:
        each.close()


def six_runs(runs: Path) -> list[RunDir]:
    return [make_run_dir(runs, uid, seed=at % 3) for at, uid in enumerate(_UIDS)]


def edit(run_dir: RunDir, **values: str | None) -> None:
    """Add top-level settings to run.json, or take them out (None), as another tool's import writes it."""
    manifest = json.loads(run_dir.manifest.read_text())
    manifest["format"] = "other"
    for key, value in values.items():
        if value is None:
            manifest["run"].pop(key)
        else:
            manifest["run"][key] = value
    run_dir.manifest.write_text(json.dumps(manifest))


def count(store: Database, table: object) -> int:
    with store.reading() as reading:
        connection = reading.connection
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())  # type: ignore[arg-type]
