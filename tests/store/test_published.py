from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.runs.lock import Lock, try_lock
from hpcml.store.opening import open_store
from hpcml.store.sqlite import published as publishing
from hpcml.store.sqlite.location import SqliteHeader
from hpcml.store.sqlite.published import PublishedStore
from tests.store.published_stores import keep, kept, kept_in, published


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder / "store.db"


@pytest.fixture
def here(path: Path, tmp_path: Path) -> Iterator[PublishedStore]:
    """The store as one machine sees it."""
    store = published(path, tmp_path / "here")
    yield store
    store.close()


@pytest.fixture
def there(path: Path, tmp_path: Path) -> Iterator[PublishedStore]:
    """The store as another machine sees it, which has no file in common with the first but the store."""
    store = published(path, tmp_path / "there")
    yield store
    store.close()


def names_beside(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()} - {path.name, ".store.db.lease"}


def test_what_is_written_appears_whole_at_the_end_and_stays_as_it_is_for_who_reads_already(
    path: Path, here: PublishedStore, there: PublishedStore
) -> None:
    with there.reading() as early:
        with here.writing() as connection:
            with connection.begin():
                connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('loss')")
            assert (kept(here), kept(there), kept_in(path)) == (["loss"], [], [])
        assert (kept(here), kept(there), kept_in(path)) == (["loss"], ["loss"], ["loss"])
        assert early.column("SELECT count(*) FROM metric") == [0]
    assert names_beside(path) == set()


def test_two_machines_write_in_turns_and_each_begins_with_what_the_other_published(
    here: PublishedStore, there: PublishedStore
) -> None:
    for turn in range(3):
        keep(here, f"here{turn}")
        keep(there, f"there{turn}")

    expected = sorted([f"{place}{turn}" for place in ("here", "there") for turn in range(3)])
    assert kept(here) == kept(there) == expected


def test_nothing_is_published_where_nothing_changed(path: Path, here: PublishedStore) -> None:
    before = SqliteHeader.of(path).publication

    with here.writing() as connection, connection.begin():
        connection.exec_driver_sql("SELECT count(*) FROM metric").scalar()
    with here.writing():
        pass

    assert SqliteHeader.of(path).publication == before


def test_a_copy_that_equals_the_publication_is_not_made_again(
    tmp_path: Path, here: PublishedStore, there: PublishedStore
) -> None:
    keep(here, "a")
    (copy,) = (tmp_path / "here").rglob("copy.db")
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in (copy.parent, copy.parent.parent))

    with copy.open("rb") as first:  # open, so that no other file gets its number
        number = os.fstat(first.fileno()).st_ino
        keep(here, "b")
        assert copy.stat().st_ino == number
        keep(there, "c")
        keep(here, "d")
        assert copy.stat().st_ino != number

    assert kept(here) == ["a", "b", "c", "d"]


def test_a_copy_that_was_left_half_written_is_not_used(path: Path, tmp_path: Path, here: PublishedStore) -> None:
    code = f"""
import os
from pathlib import Path
from tests.store.published_stores import published
store = published(Path({str(path)!r}), Path({str(tmp_path / "here")!r}))
with store.writing() as connection:
    with connection.begin():
        connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('never published')")
    os.kill(os.getpid(), 9)
"""  # noqa: S608 - a program
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -9

    keep(here, "loss")

    assert kept(here) == ["loss"]
    assert names_beside(path) == set()


def test_a_folder_that_others_may_enter_is_not_worked_in(path: Path, tmp_path: Path) -> None:
    ours = tmp_path / "open" / f"hpcml-{os.getuid()}"
    ours.mkdir(parents=True)
    ours.chmod(0o777)

    keep(published(path, tmp_path / "open"), "loss")

    assert list(ours.iterdir()) == []
    assert kept_in(path) == ["loss"]


def test_without_any_disk_of_its_own_it_works_beside_the_store(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcml.store.sqlite.published._private_folder", lambda *_: None)
    store = published(path, tmp_path / "none")

    keep(store, "a")
    keep(store, "b")

    assert kept_in(path) == ["a", "b"]
    assert names_beside(path) == set()


def test_rights_and_symbolic_links_stay(path: Path, tmp_path: Path) -> None:
    published(path, tmp_path / "here").close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o664)
    link = tmp_path / "link.db"
    link.symlink_to(path)

    keep(published(link, tmp_path / "here"), "loss")

    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert kept_in(path) == ["loss"]


def test_of_a_writer_that_fails_the_transactions_before_are_kept(path: Path, here: PublishedStore) -> None:
    with pytest.raises(ZeroDivisionError), here.writing() as connection:  # noqa: PT012 - at the end of it
        with connection.begin():
            connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('whole')")
        with connection.begin():
            connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('half')")
            raise ZeroDivisionError

    assert kept_in(path) == ["whole"]
    keep(here, "next")
    assert kept_in(path) == ["next", "whole"]


def test_who_holds_it_for_too_long_is_named(path: Path, tmp_path: Path, here: PublishedStore) -> None:
    lock = try_lock(path.parent / ".store.db.lease", "writer")
    assert isinstance(lock, Lock)
    hasty = published(path, tmp_path / "there", wait_s=0.3)

    with pytest.raises(StoreError) as refusal:
        keep(hasty, "loss")

    assert f"process {os.getpid()} on {socket.gethostname()} has been writing" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    lock.release()
    keep(hasty, "loss")
    assert kept(here) == ["loss"]


def test_a_writer_that_was_declared_dead_publishes_nothing(
    path: Path, here: PublishedStore, there: PublishedStore
) -> None:
    owner = path.parent / ".store.db.lease" / "writer" / "owner.json"
    with pytest.raises(StoreError, match="took over"), here.writing() as connection:  # noqa: PT012 - at the end of it
        with connection.begin():
            connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('late')")
        owner.unlink()
        owner.parent.rmdir()  # as another machine does after minutes of silence
        keep(there, "in time")

    assert kept_in(path) == ["in time"]
    assert kept(here) == ["in time"]
    assert names_beside(path) == set()


def test_not_even_if_it_is_declared_dead_while_it_publishes(
    path: Path, here: PublishedStore, there: PublishedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = path.parent / ".store.db.lease" / "writer" / "owner.json"
    really = Lock.is_ours.fget
    assert really is not None

    def is_ours_until_now(lock: Lock) -> bool:
        answer = bool(really(lock))
        if answer and not taken_over:
            taken_over.append(True)
            owner.unlink()
            owner.parent.rmdir()
            keep(there, "in time")
        return answer

    taken_over: list[bool] = []
    with pytest.raises(StoreError, match="cannot be replaced"), here.writing() as connection:  # noqa: PT012 - at the end of it
        with connection.begin():
            connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('late')")
        monkeypatch.setattr(Lock, "is_ours", property(is_ours_until_now))

    assert kept_in(path) == ["in time"]


def test_what_is_written_together_is_published_once(path: Path, here: PublishedStore) -> None:
    before = SqliteHeader.of(path).publication
    with here.together():
        for turn in range(3):
            keep(here, f"m{turn}")
            assert kept(here) == [f"m{number}" for number in range(turn + 1)]
            assert SqliteHeader.of(path).publication == before

    assert SqliteHeader.of(path).publication != before
    assert kept_in(path) == ["m0", "m1", "m2"]


def test_a_long_turn_is_interrupted_for_others(
    path: Path, here: PublishedStore, there: PublishedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_TURN_S", 0.0)
    monkeypatch.setattr(here._turns, "_publishing_s", 0.0)
    other = threading.Thread(target=keep, args=(there, "other"), daemon=True)
    with here.writing() as connection:
        with connection.begin():
            connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('first')")
        other.start()
        deadline = time.monotonic() + 300
        while other.is_alive():
            assert time.monotonic() < deadline
            with connection.begin():
                connection.exec_driver_sql("UPDATE metric SET name = name || '+' WHERE name LIKE 'first%'")
        assert kept_in(path)[-1] == "other"

    assert len(kept_in(path)) == 2


def test_readers_see_whole_states_while_it_is_replaced_again_and_again(
    here: PublishedStore, there: PublishedStore
) -> None:
    ended = threading.Event()
    torn: list[list[str]] = []

    def read() -> None:
        while not ended.is_set():
            with there.reading() as reading:
                connection = reading.connection
                names = list(connection.exec_driver_sql("SELECT name FROM metric ORDER BY id").scalars())
                if len(names) % 5 or names != list(connection.exec_driver_sql("SELECT name FROM metric").scalars()):
                    torn.append(names)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(25):
            keep(here, f"turn{turn}-", times=5)
    finally:
        ended.set()
        reader.join()

    assert torn == []
    assert len(kept(there)) == 125


def test_a_store_that_was_used_directly_is_taken_over_with_all_that_is_in_its_log(path: Path, tmp_path: Path) -> None:
    direct = open_store(str(path), "direct")
    with direct.writing() as connection, connection.begin():
        connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('loss')")
    assert SqliteHeader.of(path).has_wal

    store = published(path, tmp_path / "here")

    assert kept(store) == ["loss"]
    assert not SqliteHeader.of(path).has_wal
    with pytest.raises(StoreError, match="began to publish"), direct.reading():
        pass
    with pytest.raises(StoreError, match="began to publish"), direct.writing() as connection, connection.begin():
        pass


def test_who_publishes_notices_that_others_began_to_use_it_directly(path: Path, here: PublishedStore) -> None:
    keep(here, "loss")
    direct = open_store(str(path), "direct")
    with direct.writing() as connection, connection.begin():
        connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('accuracy')")

    with pytest.raises(StoreError, match="directly"):
        kept(here)
    with pytest.raises(StoreError, match="directly"):
        keep(here, "step_time_s")

    with direct.reading() as reading:
        connection = reading.connection
        assert sorted(connection.exec_driver_sql("SELECT name FROM metric").scalars()) == ["accuracy", "loss"]


def test_a_store_is_not_taken_from_who_is_writing_into_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "BUSY_TIMEOUT_S", 0.2)
    direct = open_store(str(path), "direct")
    with direct.writing() as connection, connection.begin():
        with pytest.raises(StoreError, match="in use by others"):
            published(path, tmp_path / "here")
        connection.exec_driver_sql("INSERT INTO metric (name) VALUES ('loss')")

    assert kept(published(path, tmp_path / "here")) == ["loss"]


def test_what_a_dead_one_left_is_removed(path: Path, here: PublishedStore) -> None:
    (path.parent / ".store.db.new-snapshot-0123").write_text("half a store")

    keep(here, "loss")

    assert names_beside(path) == set()


def test_a_holder_on_another_machine_is_believed_until_it_was_silent_for_long(path: Path, here: PublishedStore) -> None:
    lock = try_lock(path.parent / ".store.db.lease", "writer")
    assert isinstance(lock, Lock)
    elsewhere = replace(lock._owner, host="another-host")
    owner = path.parent / ".store.db.lease" / "writer" / "owner.json"
    owner.write_text(owner.read_text().replace(lock._owner.host, elsewhere.host))

    keep(here, "loss")  # after a second of silence

    assert kept_in(path) == ["loss"]
