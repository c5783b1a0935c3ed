from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, create_engine

from hpcml.errors import StoreError
from hpcml.model.failure_causes import Cause
from hpcml.model.state import State
from hpcml.store.database import APPLICATION_ID, Database
from hpcml.store.ingest import ingest_all
from hpcml.store.manifest_rows import _of_group
from hpcml.store.news import IngestReport
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs, get_run
from hpcml.store.sqlite.file import SqliteFile
from hpcml.store.telemetry import timelines
from hpcml.store.upgrade import alembic_config, upgrade
from tests.store.building import PARAMS, T0, Journal, contents, make_run_dir, take_back_to_0004
from tests.store.test_ingest import UID, a_finished_run, fresh
from tests.store.test_samples import one_run

FAILED, WAITS = UID[:-1] + "f", UID[:-1] + "w"


@pytest.fixture
def some_runs(runs: Path) -> Path:
    """A run that completed, one that the scheduler ended, one that waits."""
    a_finished_run(runs)
    ended = make_run_dir(runs, FAILED, submission="s-1", name="ended")
    Journal(ended, writer="launch", attempt=0).event("submitted", scheduler="slurm", job_id="7", job_name="sweep.s-1-0")
    agent = Journal(ended, writer="agent", attempt=0, t0=T0 + 5)
    agent.event("attempt_started", pid=1, job_id="7", array_index=None)
    Journal(ended, writer="collect", attempt=0).event("ended_by_scheduler", state="NODE_FAIL", reason="slurm says so")
    Journal(make_run_dir(runs, WAITS), writer="launch", attempt=0).event("submitted", scheduler="local", job_id="1")
    return runs


@pytest.fixture
def old_store(tmp_path: Path, some_runs: Path) -> Path:
    """A store of the first schema, with the rows that its hpcml would have read in."""
    ingest_all(open_store(str(tmp_path / "new.db")), some_runs)
    path = tmp_path / "store.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection, connection.begin():
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("ATTACH ? AS new", (str(tmp_path / "new.db"),))
        tables = [name for (name,) in connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
        params = PARAMS.replace("FROM setting JOIN run_settings", "FROM new.setting JOIN new.run_settings")
        connection.execute(f"INSERT INTO run_param {params}")
        for table in set(tables) - {"alembic_version", "run_param"}:
            columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")  # noqa: S608
        # as hpcml once folded them, in part by other rules
        connection.execute("UPDATE run SET state = 'FAILED', t_start = 1, wall_s = 2, reason = 'an old rule'")
    return path


def test_a_store_of_the_first_schema_gives_the_answers_of_a_new_one_after_the_next_ingest(
    old_store: Path, some_runs: Path, tmp_path: Path
) -> None:
    with sqlite3.connect(old_store) as connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(run)")}
    assert "is_settled" not in columns
    store = open_store(str(old_store))

    report = ingest_all(store, some_runs)

    assert contents(store) == fresh(tmp_path, some_runs)
    assert (report.runs, report.problems) == (3, ())  # read again from the beginning: holes were passed over then
    ended = get_run(store, "ended")
    assert (ended.state, ended.cause, ended.is_settled) == (State.NODE_FAIL, Cause.NODE_FAILURE, True)
    assert (ended.job_name, ended.submission, ended.is_shared) == ("sweep.s-1-0", "s-1", False)
    assert ingest_all(store, some_runs).runs == 3


def test_a_run_without_a_directory_keeps_what_the_old_store_knew(
    old_store: Path, some_runs: Path, tmp_path: Path
) -> None:
    shutil.rmtree(some_runs / "default" / UID)
    store = open_store(str(old_store))
    ingest_all(store, some_runs)

    kept = get_run(store, "baseline")

    assert (kept.state, kept.is_settled, kept.cause, kept.is_shared) == (State.FAILED, True, None, False)
    assert kept.params == get_run(open_store(str(tmp_path / "new.db")), "baseline").params
    assert kept.params["model.name"] == "digits_cnn"
    assert len(find_runs(store)) == 3


def test_a_killed_upgrade_leaves_the_old_store(old_store: Path) -> None:
    with sqlite3.connect(old_store) as connection:
        connection.execute("CREATE TABLE word (in_the_way TEXT)")  # so that the migration fails at its last step
    before = schema(old_store)

    with pytest.raises(StoreError, match="cannot be used"):
        open_store(str(old_store))

    assert schema(old_store) == before


def schema(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        version = [str(row) for row in connection.execute("SELECT * FROM alembic_version")]
        return version + [str(row) for row in connection.execute("SELECT sql FROM sqlite_master ORDER BY name")]


def test_a_store_without_usage_has_it_after_the_next_ingest(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = one_run(runs)
    with_factor = json.loads(run_dir.manifest.read_text())
    with_factor["run"]["cluster"] |= {"co2_g_per_kwh": 360.0, "co2_source": "the site"}
    run_dir.manifest.write_text(json.dumps(with_factor))
    ingest_all(store, runs)
    with store.writing() as connection, connection.begin():
        offsets = connection.exec_driver_sql("SELECT file, byte_offset FROM journal ORDER BY file").all()
        take_back_to_0004(connection)
    url = str(store.path) if isinstance(store, SqliteFile) else ""

    store = open_store(url) if url else store
    if not url:
        with store.writing() as connection, connection.begin():
            upgrade(connection)
    assert get_run(store, UID).usage is None
    with store.reading() as reading:  # what was read of the journals stays
        connection = reading.connection
        assert connection.exec_driver_sql("SELECT file, byte_offset FROM journal ORDER BY file").all() == offsets
    report = ingest_all(store, runs)

    assert report == IngestReport(runs=1)
    assert contents(store) == fresh(tmp_path, runs)
    usage = get_run(store, UID).usage
    assert usage is not None
    assert (usage.energy_j, usage.co2_g) == (2500.0, 0.25)
    assert len(timelines(store, UID)) == 2


def test_secrets_that_an_earlier_hpcml_kept_are_hidden_and_their_runs_alike(
    store: Database, runs: Path, tmp_path: Path
) -> None:
    lines = ["python t.py --api-key abc1 --lr 1", "python t.py --api-key abc2 --lr 1", "python t.py --lr 1"]
    for uid, line in zip((UID, FAILED, WAITS), lines, strict=True):
        run_dir = make_run_dir(runs, uid)
        manifest = json.loads(run_dir.manifest.read_text())
        manifest["run"]["workload"] |= {"command": line, "env": {"HF_TOKEN": line[-9:]}}
        run_dir.manifest.write_text(json.dumps(manifest))
        Journal(run_dir, writer="agent", attempt=0).event("workload_started", argv=line.split(), pids=[1])
    with pytest.MonkeyPatch.context() as before:
        before.setattr("hpcml.model.secrets._masked_words", lambda words, _: [*words])
        before.setattr("hpcml.store.manifest_rows.masked_settings", dict)
        before.setattr("hpcml.store.manifest_rows._of_group", _of_group.__wrapped__)  # which would keep it
        ingest_all(store, runs)
    with store.writing() as connection, connection.begin():
        assert {line.split()[3] for line in _commands(connection)} >= {"abc1", "abc2"}
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0010'")
        upgrade(connection)

        assert _commands(connection) == {"python t.py --api-key *** --lr 1", "python t.py --lr 1"}
        told = connection.exec_driver_sql("SELECT details FROM event WHERE name = 'workload_started'").scalars()
        assert [text for text in told if "abc" in text] == []
    assert contents(store) == fresh(tmp_path, runs)
    assert {get_run(store, uid).params["workload.env.HF_TOKEN"] for uid in (UID, FAILED, WAITS)} == {"***"}


def test_summaries_of_runs_that_began_anew_are_made_anew(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = make_run_dir(runs, UID)
    for attempt, n_steps in ((0, 9), (1, 3)):
        journal = Journal(run_dir, attempt=attempt, t0=T0 + 100 * attempt)
        for step in range(n_steps):
            journal.metrics(step, loss=1.0 + attempt)
    ingest_all(store, runs)
    shutil.move(run_dir.path, tmp_path / "away")  # what is known of it is kept
    with store.writing() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE summary SET n = 9, last = 1.0, last_step = 8, min = 1.0")  # as before
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0011'")
        upgrade(connection)

    summary = get_run(store, UID).metrics["loss"]
    assert (summary.n, summary.last, summary.last_step, summary.min) == (3, 2.0, 2, 2.0)


def _commands(connection: Connection) -> set[str]:
    rows = connection.exec_driver_sql("SELECT value FROM setting WHERE key = 'workload.command'").scalars()
    return {json.loads(value) for value in rows}


@pytest.mark.parametrize("is_there", [True, False])
def test_spans_of_an_earlier_hpcml_are_made_anew_where_their_samples_are_still_there(
    store: Database, runs: Path, tmp_path: Path, *, is_there: bool
) -> None:
    run_dir = one_run(runs)
    ingest_all(store, runs)
    with store.writing() as connection, connection.begin():  # as they were: at full ten seconds, and carried otherwise
        connection.exec_driver_sql(
            "UPDATE bucket SET t_ms = t_ms - 7000, cpu_covered_s = NULL, energy_covered_s = NULL"
        )
        connection.exec_driver_sql("""UPDATE sampler SET carry = '{"host": {"uuid": null, "t_ms": 0}}'""")
        connection.exec_driver_sql("UPDATE run SET is_sampled = false, manifest_stamp = ''")  # as the migration does
    if not is_there:
        shutil.rmtree(run_dir.telemetry)

    ingest_all(store, runs)

    spans = timelines(store, UID)[0].spans
    assert [span.t_s for span in spans] == ([0, 10, 20] if is_there else [-7, 3, 13])
    assert [span.energy_j for span in spans] == [1000, 1000, 500]
    if is_there:
        assert contents(store) == fresh(tmp_path, runs)
