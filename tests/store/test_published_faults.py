"""What dies or runs out of room at any point, on one machine and on two."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs
from tests import warm
from tests.store.building import contents
from tests.store.published_stores import published
from tests.store.test_ingest import fresh
from tests.store.test_many_ingesters import make_journals, write_some
from tests.warm import Process

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two hosts, or mount")
INGESTER = """
import sys
from pathlib import Path
from hpcml.errors import StoreError
from hpcml.store.ingest import ingest_all
from tests.store.published_stores import published
place, scratch, runs = map(Path, sys.argv[1:])
store = published(place, scratch)
print("ready", flush=True)
for _ in sys.stdin:
    try:
        print(ingest_all(store, runs, batch_bytes=2000), flush=True)
    except StoreError as error:  # on a loaded machine a slow one is taken for dead
        print(error, flush=True)
"""


def start(host: str, place: Path, scratch: Path, runs: Path) -> Process:
    """Start an ingester on a host of this name."""
    words, cwd = (str(place), str(scratch), str(runs)), Path(__file__).parents[2]
    process: Process
    if host:
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, sys.executable, "-c", INGESTER]
        process = subprocess.Popen([*named, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd)
    else:
        process = warm.start(INGESTER, *words, cwd=cwd, stderr=None)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_killed_at_any_point_it_leaves_a_whole_store_that_the_next_one_completes(tmp_path: Path, runs: Path) -> None:
    rng = random.Random(11)  # noqa: S311
    place = tmp_path / "store.db"
    store = published(place, tmp_path / "scratch")
    journals = make_journals(runs)
    killed_at_work = 0
    for trial in range(12):
        write_some(journals, trial * 60, rng)
        victim = start("", place, tmp_path / "scratch", runs)
        go(victim)
        time.sleep(rng.random() * 0.2)
        victim.kill()
        out, _ = victim.communicate()
        killed_at_work += not out
        find_runs(store)  # readers are never disturbed
        assert integrity(place) == "ok"

    ingest_all(store, runs)

    assert killed_at_work >= 3
    assert contents(store) == fresh(tmp_path, runs)


@as_root
def test_two_hosts_of_which_one_dies_again_and_again_lose_nothing(tmp_path: Path, runs: Path) -> None:
    rng = random.Random(12)  # noqa: S311
    place = tmp_path / "store.db"
    journals = make_journals(runs)
    steady = start("login1", place, tmp_path / "login1", runs)
    for trial in range(6):
        write_some(journals, trial * 60, rng)
        victim = start("login2", place, tmp_path / "login2", runs)
        go(steady)
        go(victim)
        time.sleep(rng.random() * 0.5)
        victim.kill()
        victim.communicate()
        assert integrity(place) == "ok"
    told, _ = steady.communicate(timeout=300)
    assert steady.returncode == 0
    assert told.count("IngestReport") + told.count("took over") + told.count("cannot be replaced") == 6

    store = published(place, tmp_path / "login3")
    ingest_all(store, runs)

    assert contents(store) == fresh(tmp_path, runs)


@as_root
@pytest.mark.parametrize("left_bytes", [0, 64 << 10], ids=["nothing", "room for the lease alone"])
def test_a_full_disk_leaves_what_was_published_and_the_rest_is_read_in_later(
    tmp_path: Path, runs: Path, left_bytes: int
) -> None:
    journals = make_journals(runs)
    with small_disk(tmp_path / "small", mib=2) as folder:
        place = folder / "store.db"
        store = published(place, tmp_path / "scratch")
        ingest_all(store, runs)
        before = contents(store)
        write_some(journals, 0, random.Random(13))  # noqa: S311
        fill(folder, leave_bytes=left_bytes)

        with pytest.raises(StoreError, match="No space left on device") as refusal:
            ingest_all(store, runs)

        assert "\n" not in str(refusal.value)
        assert contents(store) == before
        assert integrity(place) == "ok"
        assert {file.name for file in folder.iterdir()} == {place.name, "ballast", ".store.db.lease"}
        (folder / "ballast").unlink()
        ingest_all(store, runs)
        assert contents(store) == fresh(tmp_path, runs)
        store.close()


@as_root
def test_a_full_disk_of_its_own_is_said_and_another_one_taken_next_time(tmp_path: Path, runs: Path) -> None:
    journals = make_journals(runs)
    with small_disk(tmp_path / "scratch", mib=16) as folder:
        place = tmp_path / "store.db"
        store = published(place, folder)
        ingest_all(store, runs)
        write_some(journals, 0, random.Random(14))  # noqa: S311
        fill(folder, leave_bytes=16 << 10)

        ingest_all(store, runs)  # works elsewhere: there is too little room from the beginning

        assert contents(store) == fresh(tmp_path, runs)
        store.close()


@as_root
def test_a_direct_store_on_a_full_disk_undoes_what_it_was_reading_in(tmp_path: Path, runs: Path) -> None:
    journals = make_journals(runs)
    with small_disk(tmp_path / "small", mib=2) as folder:
        store = open_store(str(folder / "store.db"), "direct")
        ingest_all(store, runs)
        before = contents(store)
        write_some(journals, 0, random.Random(15))  # noqa: S311
        fill(folder, leave_bytes=64 << 10)

        with pytest.raises(StoreError, match="no room is left for the store") as refusal:
            ingest_all(store, runs)

        assert "\n" not in str(refusal.value)
        assert contents(store) == before
        (folder / "ballast").unlink()
        ingest_all(store, runs)
        assert contents(store) == fresh(tmp_path, runs)
        store.close()


def integrity(place: Path) -> str:
    """Return what SQLite finds in the file as it is, without anything beside it."""
    with sqlite3.connect(f"file:{place}?mode=ro&immutable=1", uri=True) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


@contextmanager
def small_disk(folder: Path, *, mib: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "hpcml-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, *, leave_bytes: int) -> None:
    """Leave so much room and no more."""
    with (folder / "ballast").open("wb", buffering=0) as ballast:
        try:
            while shutil.disk_usage(folder).free > leave_bytes:
                ballast.write(b"\0" * 4096)
        except OSError:
            pass
