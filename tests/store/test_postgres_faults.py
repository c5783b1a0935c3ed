from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcml.errors import StoreError
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all, ingest_run
from hpcml.store.opening import open_store
from hpcml.store.query import events, find_runs, get_run
from hpcml.store.rows import forget_run
from tests.cluster.postgres.server import Server, missing, running
from tests.effort import times
from tests.store.building import Journal, contents, curve, make_run_dir
from tests.store.test_ingest import UID, a_finished_run, fresh
from tests.store.test_many_ingesters import go, make_journals, start_ingester, write_some


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, to be stopped."""
    if reason := missing():
        pytest.skip(reason)  # the fixture `postgres` fails where it must be there
    with running() as server:
        server.sql("CREATE DATABASE store")
        yield server


@pytest.fixture
def postgres_store(postgres: Server, new_database: object) -> Iterator[Database]:
    """An empty store on a server."""
    assert callable(new_database)
    name = new_database("empty_store")
    store = open_store(postgres.url(name))
    yield store
    store.close()
    postgres.sql(f"DROP DATABASE {name} WITH (FORCE)")


def test_killed_servers_and_killed_ingesters_lose_nothing(server: Server, runs: Path, tmp_path: Path) -> None:
    rng = random.Random(3)  # noqa: S311
    url, journals = server.url("store"), make_journals(runs)
    store = open_store(url)
    for trial in range(6):
        write_some(journals, trial * 60, rng)
        victims = [start_ingester(url, runs) for _ in range(2)]
        for victim in victims:
            go(victim)
        time.sleep(rng.random() * 0.3)
        victims[0].kill()
        if trial % 2:
            server.stop()
            server.start()
        for victim in victims:
            assert victim.stdin is not None
            victim.stdin.close()
            victim.wait(300)
            assert victim.stdout is not None
            victim.stdout.close()

    ingest_all(store, runs)  # its own connection was cut, too

    assert contents(store) == fresh(tmp_path, runs)
    store.close()


def test_a_server_that_is_gone_is_one_line_and_the_next_try_goes_on(server: Server, runs: Path) -> None:
    store = open_store(server.url("store"))
    a_finished_run(runs)
    ingest_all(store, runs)
    server.stop(signal.SIGINT)

    with pytest.raises(StoreError, match=r"(?i)cannot be used: .*is the server running") as refusal:
        find_runs(store)
    assert "\n" not in str(refusal.value)
    server.start()

    assert [record.uid for record in find_runs(store)] == [UID]
    store.close()


def test_ingesters_and_who_forgets_never_wait_for_each_other_forever(
    postgres_store: Database, runs: Path, tmp_path: Path
) -> None:
    """Each ingester meets new names in an order of its own, and each run that is forgotten takes names away."""
    url = postgres_store.engine.url.render_as_string(hide_password=False)
    troubles: list[BaseException] = []

    def ingest_and_forget(worker: int) -> None:
        rng = random.Random(worker)  # noqa: S311
        try:
            with_own = open_store(url)
            for at in range(12):
                run_dir = make_run_dir(runs / str(worker), f"run-{worker}-{at}")
                for rank in range(3):
                    names = [f"metric{number}" for number in range(20)]
                    rng.shuffle(names)
                    Journal(run_dir, writer=f"rank{rank}").metrics(1, **dict.fromkeys(names, 1.0))
                ingest_run(with_own, run_dir)
                if rng.random() < 0.7:
                    (run_dir.path / "run.json").rename(run_dir.path / "gone.json")
                    forget_run(with_own, run_dir.uid)
            with_own.close()
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            troubles.append(error)

    workers = [threading.Thread(target=ingest_and_forget, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)

    assert troubles == []
    everything = tmp_path / "all"
    everything.mkdir()
    for path in runs.glob("*/*"):
        (everything / path.parent.name).mkdir(exist_ok=True)
        (everything / path.parent.name / path.name).symlink_to(path)
    assert {record.uid for record in find_runs(postgres_store)} == {
        path.parent.name for path in runs.glob("*/*/*/run.json")
    }
    for record in find_runs(postgres_store):
        assert len(record.metrics) == 20


def test_what_only_some_databases_can_hold_comes_back_from_all_alike(
    postgres_store: Database, runs: Path, tmp_path: Path
) -> None:
    run_dir = make_run_dir(runs, name="a\0b <script>'; DROP TABLE run; --", tags=["t\0", "ü \ud800", "%s ? :x"])
    journal = Journal(run_dir)
    largest = 2**63 - 1
    for step, value in [(-(2**63), 1e-320), (0, math.nan), (1, math.inf), (2, -math.inf), (largest, -0.0)]:
        journal.metrics(step, **{"m\0": value, "m\ud800\t\\N\n": value, "x" * 10_000: value})
    journal.event("note", text="a\0b\ud800\\N\t\n%s", deep={"k\0": ["\0"]})
    journal.event("odd\0\\.")

    ingest_all(postgres_store, runs)

    assert contents(postgres_store) == fresh(tmp_path, runs)
    assert repr([point.value for point in curve(postgres_store, UID, "m\ufffd")]) == "[1e-320, nan, inf, -inf, -0.0]"
    assert [point.step for point in curve(postgres_store, UID, "x" * 10_000)][-1] == largest
    told = {event.name: event.details for event in events(postgres_store, UID)}
    assert told["note"]["deep"] == {"k\ufffd": ["\ufffd"]}
    assert get_run(postgres_store, UID).tags == ("t\ufffd", "ü ?", "%s ? :x")


@settings(max_examples=times(8, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(-3, 12), st.floats(allow_nan=True, allow_infinity=True)), max_size=12),
        min_size=1,
        max_size=4,
    ),
    text=st.text(max_size=20),
)
def test_steps_in_any_order_and_texts_of_any_kind_give_what_a_file_would_have(
    postgres_store: Database, tmp_path: Path, batches: list[list[tuple[int, float]]], text: str
) -> None:
    root = Path(tmp_path / f"r{time.monotonic_ns()}")
    run_dir = make_run_dir(root, f"{UID}-{time.monotonic_ns()}")
    journals = [Journal(run_dir), Journal(run_dir, writer="rank1")]
    for at, batch in enumerate(batches):
        for step, value in batch:
            journals[at % 2].metrics(step, **{f"loss{text}": value, "other": 1.0})
        journals[0].event("note", text=text)
        ingest_all(postgres_store, root)

    assert of_run(postgres_store, run_dir) == fresh(tmp_path, root)


def of_run(store: Database, run_dir: RunDir) -> dict[str, list[tuple[object, ...]]]:
    """Return what the store has of one run: its uid is in each row, in that of a journal as the beginning."""
    return {
        table: [row for row in rows if str(row[0]).startswith(run_dir.uid)] for table, rows in contents(store).items()
    }


def test_whoever_stops_in_the_middle_is_let_go_by_the_server(postgres_store: Database, runs: Path) -> None:
    a_finished_run(runs)
    with postgres_store.writing() as connection:
        held = {
            name: connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("lock_timeout", "idle_in_transaction_session_timeout")
        }
    assert held == {"lock_timeout": "1min", "idle_in_transaction_session_timeout": "10min"}

    with postgres_store.writing() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10ms'")
        other = open_store(postgres_store.engine.url.render_as_string(hide_password=False))
        with other.writing() as holder:
            holder.exec_driver_sql("LOCK TABLE run")
            with pytest.raises(StoreError, match="kept it from being written"), postgres_store.explaining():
                connection.exec_driver_sql("SELECT 1 FROM run")
        other.close()
        connection.rollback()


def test_a_disk_that_is_full_undoes_the_batch_and_the_next_try_has_it_all(
    server: Server, runs: Path, tmp_path: Path
) -> None:
    store = open_store(server.url("store"))
    journal = Journal(make_run_dir(runs))
    with journal.path.open("a") as file:
        for step in range(300_000):
            file.write(json.dumps({"k": "m", "s": step + 1, "t": 0.1, "i": step, "v": {"loss": step / 7}}) + "\n")

    with a_small_disk(server):
        server.sql("ALTER TABLE point SET TABLESPACE small", "store")
        server.sql("ALTER INDEX pk_point SET TABLESPACE small", "store")
        with pytest.raises(StoreError, match="its disk is full") as refusal:
            ingest_all(store, runs)
        assert "\n" not in str(refusal.value)
        server.sql("ALTER TABLE point SET TABLESPACE pg_default", "store")
        server.sql("ALTER INDEX pk_point SET TABLESPACE pg_default", "store")
    ingest_all(store, runs)

    assert get_run(store, UID).metrics["loss"].n == 300_000
    assert contents(store) == fresh(tmp_path, runs)
    store.close()


@contextmanager
def a_small_disk(server: Server) -> Iterator[None]:
    """Give the server a tablespace `small` on a disk of a few MiB; only root can."""
    disk = server.folder / "small"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0777", "none", str(disk)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("only root can make a small disk")
    try:
        (disk / "space").mkdir()
        subprocess.run(["chown", "--reference", str(server.folder / "data"), str(disk / "space")], check=True)
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk}/space'")
        yield
        server.sql("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
