from __future__ import annotations

import os
import random
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from hpcml.errors import StoreError
from hpcml.store.create import alembic_config
from hpcml.store.database import REVISION, Database
from hpcml.store.opening import open_store
from hpcml.store.schema import METADATA
from tests import warm
from tests.store.rights import somebody_without_rights
from tests.warm import Process

OPENER = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
logging.getLogger("alembic").setLevel(logging.ERROR)
import hpcml.store.create
from hpcml.store.opening import open_store
print("ready", flush=True)
for line in sys.stdin:
    with open_store(line.strip()).reading() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM run")
    print("opened", flush=True)
"""


def test_a_new_store_is_its_owners_alone_and_has_the_newest_schema(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "new.db"))

    assert stat.S_IMODE((tmp_path / "new.db").stat().st_mode) == 0o600
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all() == [REVISION]
    with store.writing() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_path_and_url_mean_the_same_store(tmp_path: Path) -> None:
    by_path, by_url = open_store(str(tmp_path / "s 100%?.db")), open_store(f"sqlite:///{tmp_path}/t.db")

    assert by_path.name == str(tmp_path / "s 100%?.db")
    assert by_url.name == str(tmp_path / "t.db")
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.suffix == ".db") == [".db", ".db"]


@pytest.mark.on_postgres
def test_tables_and_migrations_agree(store: Database) -> None:
    with store.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == REVISION


@pytest.mark.parametrize("mode", ["direct", "published"])
def test_of_sixteen_simultaneous_first_users_all_succeed_and_one_makes_it(tmp_path: Path, mode: str) -> None:
    users = [start_opener(HPCML_STORE_MODE=mode) for _ in range(16)]
    try:
        assert [read_line(user) for user in users] == ["ready"] * 16
        for trial in range(4):
            for user in users:
                open_in(user, tmp_path / f"{trial}.db")
            told = [list(lines_until_opened(user)) for user in users]
            assert sum("made" in line for lines in told for line in lines) == 1
    finally:
        for user in users:
            user.communicate()
    assert [user.returncode for user in users] == [0] * 16


def read_line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lines_until_opened(process: Process) -> Iterator[str]:
    while (line := read_line(process)) != "opened":
        assert line, "the process died"
        yield line


@pytest.mark.parametrize("mode", ["direct", "published"])
def test_a_first_user_killed_at_any_point_leaves_nothing_that_stops_the_next(tmp_path: Path, mode: str) -> None:
    rng = random.Random(1)  # noqa: S311
    for trial in range(6):
        path = tmp_path / f"{trial}.db"
        victim = start_opener(HPCML_STORE_MODE=mode)
        assert read_line(victim) == "ready"
        open_in(victim, path)
        time.sleep(rng.random() * 0.06)
        victim.kill()
        victim.communicate()

        with open_store(str(path), mode).reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM settings").scalar() == 0


def start_opener(**variables: str) -> Process:
    return warm.start(OPENER, environ={**os.environ, **variables}, stderr=None)


def open_in(process: Process, path: Path) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{path}\n")
    process.stdin.flush()


def refused(url: str, *words: str) -> None:
    with pytest.raises(StoreError) as refusal:
        open_store(url)
    message = str(refusal.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_another_kind_of_server_is_not_supported_and_its_password_not_shown() -> None:
    with pytest.raises(StoreError, match="not supported") as refusal:
        open_store("mysql://ada:secret@db/hpcml")
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///", "sqlite:///x.db?mode=ro"])
def test_a_url_must_name_a_file(url: str) -> None:
    refused(url, "names no file")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    refused(str(tmp_path / "no" / "store.db"), f"{tmp_path}/no does not exist", f"mkdir -p {tmp_path}/no")
    assert not (tmp_path / "no").exists()


def test_a_directory_is_no_store(tmp_path: Path) -> None:
    refused(str(tmp_path), "is a directory")


def test_a_pipe_is_no_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(str(tmp_path / "pipe"), "no regular file")


@pytest.mark.parametrize("content", [b"hello\n", b"\0" * 8192, b"SQLite format 3"], ids=["text", "zeros", "short"])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)

    refused(str(path), "no database", "choose another path")

    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_database_of_another_program_is_left_alone(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "mlflow.db"
    foreign = sqlite3.connect(path)
    foreign.execute(f"PRAGMA journal_mode = {mode}")
    foreign.execute("CREATE TABLE experiments (name TEXT)")
    foreign.close()
    before = path.read_bytes()

    refused(str(path), "database of another program")

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_store_of_another_version_is_set_aside_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = open_store(str(path))
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    store.close()

    with open_store(str(path)).reading() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all() == [REVISION]
    with sqlite3.connect(f"{path}.schema-9999") as before:
        assert before.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)


@pytest.mark.parametrize("mode", ["direct", "published"])
def test_a_torn_store_is_said_in_one_line(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "store.db"
    open_store(str(path), mode).close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))

    refused(str(path), "is damaged", "hpcml sync --check", f"rm -f {path} {path}-*")


@pytest.mark.parametrize("mode", ["direct", "published"])
def test_a_store_cut_short_is_said_in_one_line(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "store.db"
    open_store(str(path), mode).close()
    os.truncate(path, 4096)

    refused(str(path), "is damaged")


def test_what_may_not_be_read_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not below tmp_path, which root's tests close to everybody else
        path = Path(folder, "store.db")
        open_store(str(path)).close()
        path.chmod(0o000)
        Path(folder).chmod(0o777)

        with somebody_without_rights():
            refused(str(path), "Permission denied")


def test_a_store_cannot_be_made_where_nothing_may_be_written() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)

        with somebody_without_rights():
            refused(f"{folder}/store.db", f"{folder} is not writable")

        Path(folder).chmod(0o755)
