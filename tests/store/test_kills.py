"""Many deaths, a thousand in full: writers and readers killed at any moment, on one host and on two."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml_client.journal import JournalWriter
from tests.effort import times
from tests.parts import require
from tests.store.building import contents, make_run_dir
from tests.store.test_many_ingesters import INGESTER, go, make_journals, write_some

RUNS = 20
WRITERS = times(120, 800)
READERS = times(30, 200)
PATIENCE_S = 300.0


def killed_after(delay_s: float, work: Callable[[int], None], *, at_work: bool = False) -> bytes:
    """Have a child do *work*, kill it, and return what it had written to its pipe: what it knew to be done.

    It has *delay_s* from its birth, where on a slow machine it may not come to write anything, or,
    *at_work*, from the first word that it wrote.
    """
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            work(tell)
        finally:
            os._exit(1)
    os.close(tell)
    if at_work:
        select.select([told], [], [], PATIENCE_S)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(told, "rb") as pipe:
        return pipe.read()


def write_until_killed(run_dir: RunDir, number: int) -> Callable[[int], None]:
    def work(tell: int) -> None:
        journal = JournalWriter.open(str(run_dir.journals), run=run_dir.uid, attempt=number, writer="rank0")
        for step in range(1_000_000):
            journal.metrics(step, {f"value{number}": value_of(number, step), "x" * (step % 50): 1.0})
            os.write(tell, struct.pack("<I", step))

    return work


def value_of(number: int, step: int) -> float:
    return number * 1e6 + step + 1 / 3


def read_until_killed(url: str, root: Path) -> Callable[[int], None]:
    def work(_: int) -> None:
        store = open_store(url)
        while True:
            ingest_all(store, root)

    return work


def test_killed_writers_and_readers_lose_no_record_that_was_acknowledged(runs: Path, tmp_path: Path) -> None:
    rng = random.Random(6)  # noqa: S311
    url = str(tmp_path / "store.db")
    open_store(url).close()
    run_dirs = [make_run_dir(runs, f"20260528-202640-aaaa{at:02d}") for at in range(RUNS)]
    acknowledged: dict[int, int] = {}
    for number in range(WRITERS):
        write = write_until_killed(run_dirs[number % RUNS], number)
        known = killed_after(rng.random() * 0.004, write, at_work=number % 2 == 0)
        acknowledged[number] = len(known) // 4
        if number % (WRITERS // READERS) == 0:
            killed_after(rng.random() * 0.03, read_until_killed(url, runs))

    store = open_store(url)
    report = ingest_all(store, runs)
    found = points_by_writer(store)
    store.close()

    assert sum(count > 0 for count in acknowledged.values()) >= WRITERS / 2
    assert report.problems == ()
    for number, count in acknowledged.items():
        steps = found.get(number, {})
        assert list(steps) == list(range(len(steps)))
        assert count <= len(steps) <= count + 1  # the last may have been killed before it could say so
        assert all(value == value_of(number, step) for step, value in steps.items())
    fresh = open_store(str(tmp_path / "fresh.db"))
    ingest_all(fresh, runs)
    again = open_store(url)
    assert contents(fresh) == contents(again)


def points_by_writer(store: Database) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {}
    with store.reading() as connection:
        points = connection.execute(text("SELECT metric, step, value FROM points ORDER BY metric, step"))
        for metric, step, value in points:
            if metric.startswith("value"):
                found.setdefault(int(metric.removeprefix("value")), {})[step] = value
    return found


@pytest.mark.parametrize("mode", ["direct", "published"])
def test_readers_on_two_hosts_take_each_line_once(runs: Path, tmp_path: Path, mode: str) -> None:
    entered = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
    if subprocess.run([*entered, "elsewhere", "true"], capture_output=True, check=False).returncode:
        require("a UTS namespace", "another host cannot be played here")
    environ = {**os.environ, "HPCML_STORE_MODE": mode}
    rng = random.Random(9)  # noqa: S311
    journals = make_journals(runs)
    store = str(tmp_path / "store.db")
    with ExitStack() as ended:
        readers = [
            ended.enter_context(
                subprocess.Popen(
                    [*entered, f"login{number % 2}", sys.executable, "-c", INGESTER, store, str(runs)],
                    env=environ,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(4)
        ]
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        for trial in range(5):
            write_some(journals, trial * 60, rng)
            for reader in readers:
                go(reader)
        for reader in readers:
            out, _ = reader.communicate(timeout=300)
            assert reader.returncode == 0
            assert out.count("problems=()") == 5

    found, fresh = open_store(store, mode), open_store(str(tmp_path / "fresh.db"))
    ingest_all(found, runs)
    ingest_all(fresh, runs)
    assert contents(found) == contents(fresh)
