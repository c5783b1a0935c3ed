"""A store that several machines share: each works in a copy of its own and leaves a snapshot, whatever dies."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcml.errors import StoreError
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs
from hpcml.store.rows import forget_runs
from hpcml.store.sqlite.file import open_read_only
from hpcml.store.sqlite.host_copy import open_published
from hpcml.store.sqlite.location import placement_of
from tests import warm
from tests.cluster.disk.building import build_failing_disk
from tests.store.building import contents, make_run_dir
from tests.store.test_ingest import UID, a_finished_run, fresh
from tests.store.test_many_ingesters import make_journals, write_some
from tests.warm import Process

OTHER = UID[:-1] + "z"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two hosts, or mount")
INGESTER = """
import sys
from pathlib import Path
from hpcml.store.ingest import ingest_all
from hpcml.store.query import find_runs
from tests.store.test_host_copy import published
place, scratch, runs = map(Path, sys.argv[1:])
print("ready", flush=True)
for _ in sys.stdin:
    store = published(place, scratch)
    report = ingest_all(store, runs)
    uids = [run.uid for run in find_runs(store)]
    store.close()
    print(*uids, report, flush=True)
"""


def start(host: str, place: Path, scratch: Path, runs: Path, **environ: str) -> Process:
    """Start an ingester on a host of this name, with processes and mounts of its own; "": on this one."""
    words, cwd = (str(place), str(scratch), str(runs)), Path(__file__).parents[2]
    process: Process
    if host:
        alone = ["unshare", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        named = [*alone, "sh", "-c", 'hostname "$0" && exec "$@"', host, sys.executable, "-c", INGESTER, *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(named, **pipes, text=True, cwd=cwd, env={**os.environ, **environ})
    else:
        process = warm.start(INGESTER, *words, cwd=cwd, stderr=None)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def line_of(process: Process) -> str:
    """Return what it says next."""
    assert process.stdout is not None
    return process.stdout.readline()


def published(path: Path, scratch: Path) -> Database:
    """Open the store in *path*, published, on a host whose own disk is *scratch*."""
    scratch.mkdir(exist_ok=True)
    return open_published(placement_of(path, "published"), {"XDG_RUNTIME_DIR": str(scratch)})


def read_in(path: Path, scratch: Path, runs: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Bring the store up to date on that host; return what it then says."""
    with closing(published(path, scratch)) as store:
        ingest_all(store, runs)
        return contents(store)


def of_snapshot(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what any other program finds in the file, which nobody changes."""
    with closing(open_read_only(placement_of(path))) as store:
        return contents(store)


def test_a_snapshot_appears_at_the_end_and_is_its_owners_alone(tmp_path: Path, runs: Path) -> None:
    path = tmp_path / "store.db"
    a_finished_run(runs)

    store = published(path, tmp_path / "here")
    ingest_all(store, runs)
    assert not path.exists()
    store.close()

    assert of_snapshot(path) == fresh(tmp_path, runs)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {file.name for file in tmp_path.iterdir()} >= {"store.db"}
    assert not list(tmp_path.glob(".store.db*"))
    (copy,) = (tmp_path / "here").rglob("copy.db")
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in (copy.parent, copy.parent.parent))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_two_machines_read_runs_in_turns_and_each_knows_what_the_other_did(tmp_path: Path, runs: Path) -> None:
    path, rng = tmp_path / "store.db", random.Random(3)  # noqa: S311
    journals = make_journals(runs)
    for turn in range(4):
        write_some(journals, turn * 60, rng)
        known = read_in(path, tmp_path / f"login{turn % 2}", runs)
        assert known == of_snapshot(path)
    assert known == fresh(tmp_path, runs)

    with closing(published(path, tmp_path / "login0")) as store:
        forget_runs(store, [uid for uid, *_ in known["settings"]])
    with closing(published(path, tmp_path / "login1")) as store:
        assert find_runs(store) == []


def test_who_is_late_replaces_nothing_and_reads_again(tmp_path: Path, runs: Path) -> None:
    path = tmp_path / "store.db"
    read_in(path, tmp_path / "late", runs)
    late = published(path, tmp_path / "late")
    a_finished_run(runs)
    read_in(path, tmp_path / "early", runs)
    before = path.read_bytes()

    ingest_all(late, runs)
    late.close()

    assert path.read_bytes() == before
    assert read_in(path, tmp_path / "late", runs) == fresh(tmp_path, runs)


def test_nothing_is_published_where_nothing_changed_and_no_copy_made_again(tmp_path: Path, runs: Path) -> None:
    path = tmp_path / "store.db"
    read_in(path, tmp_path / "here", runs)
    (copy,) = (tmp_path / "here").rglob("copy.db")
    before = path.stat().st_ino, copy.stat().st_ino

    read_in(path, tmp_path / "here", runs)

    assert (path.stat().st_ino, copy.stat().st_ino) == before


def test_a_copy_that_is_used_stays_where_another_machine_publishes(tmp_path: Path, runs: Path) -> None:
    path = tmp_path / "store.db"
    read_in(path, tmp_path / "here", runs)
    using = published(path, tmp_path / "here")
    a_finished_run(runs)
    ingest_all(using, runs)
    make_run_dir(runs, OTHER)
    read_in(path, tmp_path / "there", runs)

    second = published(path, tmp_path / "here")

    assert [run.uid for run in find_runs(using)] == [run.uid for run in find_runs(second)] == [UID]
    for store in (using, second):
        store.close()
    with closing(published(path, tmp_path / "here")) as store:
        assert len(find_runs(store)) == 2


def test_a_folder_that_others_may_enter_is_not_worked_in(tmp_path: Path, runs: Path) -> None:
    ours = tmp_path / "open" / f"hpcml-{os.getuid()}"
    ours.mkdir(parents=True)
    ours.chmod(0o777)

    read_in(tmp_path / "store.db", tmp_path / "open", runs)

    assert list(ours.iterdir()) == []


def test_rights_and_symbolic_links_stay(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "far").mkdir()
    path, link = tmp_path / "far" / "store.db", tmp_path / "link.db"
    read_in(path, tmp_path / "here", runs)
    path.chmod(0o664)
    link.symlink_to(path)
    a_finished_run(runs)

    read_in(link, tmp_path / "here", runs)

    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert of_snapshot(path) == fresh(tmp_path, runs)


def test_a_store_that_was_used_directly_is_taken_over_with_all_that_is_in_its_log(tmp_path: Path, runs: Path) -> None:
    path = tmp_path / "store.db"
    a_finished_run(runs)
    direct = open_store(str(path), "direct")
    with direct.reading() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM run")
        ingest_all(direct, runs)  # its log is not taken into the file while somebody reads

        with closing(published(path, tmp_path / "here")) as store:
            assert [run.uid for run in find_runs(store)] == [UID]


@pytest.mark.nightly("kills")
def test_killed_at_any_point_it_leaves_a_whole_store_that_the_next_one_completes(tmp_path: Path, runs: Path) -> None:
    rng = random.Random(11)  # noqa: S311
    place, scratch = tmp_path / "store.db", tmp_path / "scratch"
    published(place, scratch).close()
    journals = make_journals(runs)
    killed_at_work = 0
    for trial in range(12):
        write_some(journals, trial * 60, rng)
        victim = start("", place, scratch, runs)
        go(victim)
        time.sleep(rng.random() * 0.2)
        victim.kill()
        out, _ = victim.communicate()
        killed_at_work += not out
        of_snapshot(place)  # readers are never disturbed
        assert integrity(place) == "ok"

    assert killed_at_work >= 3
    assert read_in(place, scratch, runs) == fresh(tmp_path, runs)


@pytest.mark.nightly("kills")
@as_root
def test_two_hosts_of_which_one_dies_again_and_again_lose_nothing(tmp_path: Path, runs: Path) -> None:
    rng = random.Random(12)  # noqa: S311
    place = tmp_path / "store.db"
    published(place, tmp_path / "login1").close()
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
    assert told.count("IngestReport") == 6
    assert read_in(place, tmp_path / "login3", runs) == fresh(tmp_path, runs)


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """A file system on which it takes long to replace the snapshot in the test's folder."""
    library = build_failing_disk(tmp_path)
    return {"LD_PRELOAD": str(library), "SLOW_RENAME": str(tmp_path / "store.db")}


@pytest.mark.nightly("kills")
@as_root
def test_two_hosts_lose_nothing_where_replacing_the_snapshot_takes_long(
    tmp_path: Path, runs: Path, slow: dict[str, str]
) -> None:
    rng = random.Random(14)  # noqa: S311
    place = tmp_path / "store.db"
    published(place, tmp_path / "login1").close()
    journals = make_journals(runs)
    late = start("login1", place, tmp_path / "login1", runs, **slow, SLOW_BEFORE_MS="400", SLOW_AFTER_MS="100")
    later = start("login2", place, tmp_path / "login2", runs, **slow, SLOW_BEFORE_MS="200", SLOW_AFTER_MS="300")
    for trial in range(4):
        write_some(journals, trial * 60, rng)
        go(late)
        go(later)
        for host in (late, later):
            assert "IngestReport" in line_of(host)
        assert integrity(place) == "ok"
    for host in (late, later):
        host.communicate(timeout=300)
        assert host.returncode == 0

    assert read_in(place, tmp_path / "login1", runs) == fresh(tmp_path, runs)
    assert of_snapshot(place) == fresh(tmp_path, runs)


@as_root
def test_what_another_host_forgot_while_this_one_published_stays_forgotten(
    tmp_path: Path, runs: Path, slow: dict[str, str]
) -> None:
    place = tmp_path / "store.db"
    a_finished_run(runs)
    read_in(place, tmp_path / "login2", runs)
    before = place.stat().st_ino
    make_run_dir(runs, OTHER)
    late = start("login1", place, tmp_path / "login1", runs, **slow, SLOW_AFTER_MS="3000")
    go(late)
    while place.stat().st_ino == before:  # then its snapshot is there, and it does not know that yet
        time.sleep(0.01)
    shutil.rmtree(runs / "default" / UID)
    with closing(published(place, tmp_path / "login2")) as store:
        forget_runs(store, [UID])

    line_of(late)
    go(late)

    assert line_of(late).split()[0] == OTHER
    late.communicate(timeout=300)


@as_root
def test_a_full_disk_leaves_what_was_published_and_the_rest_is_read_in_later(tmp_path: Path, runs: Path) -> None:
    journals = make_journals(runs)
    with small_disk(tmp_path / "small", mib=2) as folder:
        place = folder / "store.db"
        read_in(place, tmp_path / "scratch", runs)
        before = place.read_bytes()
        write_some(journals, 0, random.Random(13))  # noqa: S311
        fill(folder, leave_bytes=0)
        store = published(place, tmp_path / "scratch")
        ingest_all(store, runs)

        with pytest.raises(StoreError, match="No space left on device") as refusal:
            store.close()

        assert "\n" not in str(refusal.value)
        assert place.read_bytes() == before
        assert {file.name for file in folder.iterdir()} == {place.name, "ballast"}
        (folder / "ballast").unlink()
        assert read_in(place, tmp_path / "scratch", runs) == fresh(tmp_path, runs)
        store.close()


@as_root
def test_where_its_own_disk_is_full_another_one_is_taken(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_finished_run(runs)
    with small_disk(tmp_path / "scratch", mib=16) as folder:
        assert read_in(tmp_path / "store.db", folder, runs) == fresh(tmp_path, runs)
        assert list(folder.iterdir()) == []
    monkeypatch.setattr("hpcml.store.sqlite.host_copy._private_folder", lambda *_: None)
    with pytest.raises(StoreError, match=r"no folder of this machine has room for a copy .*TMPDIR"):
        published(tmp_path / "store.db", tmp_path / "scratch")


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
