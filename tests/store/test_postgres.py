from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.store.database import REVISION
from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs, get_run
from tests import warm
from tests.cluster.postgres.server import Server
from tests.store.building import contents
from tests.store.test_engine import OPENER, lines_until_opened, read_line
from tests.store.test_ingest import UID, a_finished_run, fresh
from tests.warm import Process

NewDatabase = Callable[..., str]


@pytest.fixture
def database(new_database: NewDatabase) -> str:
    """A database that has nothing in it yet."""
    return new_database()


def refused(url: str, *words: str) -> str:
    with pytest.raises(StoreError) as refusal:
        open_store(url)
    message = str(refusal.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_an_empty_database_becomes_a_store_at_first_use(postgres: Server, database: str, tmp_path: Path) -> None:
    a_finished_run(tmp_path / "runs")
    store = open_store(postgres.url(database).replace("+psycopg", ""))

    ingest_all(store, tmp_path / "runs")

    assert postgres.sql("SELECT version_num FROM alembic_version", database) == REVISION
    assert contents(store) == fresh(tmp_path, tmp_path / "runs")
    assert store.used.startswith("PostgreSQL ")
    assert "schema public" in store.used
    assert not store.is_read_only
    store.close()


def start_opener() -> Process:
    return warm.start(OPENER, stderr=None)


def send(process: Process, url: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{url}\n")
    process.stdin.flush()


def test_of_sixteen_simultaneous_first_users_all_succeed_and_one_makes_it(
    postgres: Server, new_database: NewDatabase
) -> None:
    """Whatever isolation of transactions is the site's own: a snapshot would not show what a lock was waited for."""
    users = [start_opener() for _ in range(16)]
    try:
        assert [read_line(user) for user in users] == ["ready"] * 16
        for isolation in ("read committed", "repeatable read", "serializable"):
            database = new_database()
            postgres.sql(f"ALTER DATABASE {database} SET default_transaction_isolation = '{isolation}'")
            url = postgres.url(database)
            for user in users:
                send(user, url)
            told = [list(lines_until_opened(user)) for user in users]
            assert sum("made" in line for lines in told for line in lines) == 1
    finally:
        for user in users:
            user.communicate()
    assert [user.returncode for user in users] == [0] * 16


def test_a_first_user_killed_at_any_point_leaves_nothing_that_stops_the_next(
    postgres: Server, new_database: NewDatabase
) -> None:
    rng = random.Random(1)  # noqa: S311
    for _ in range(5):
        database = new_database()
        victim = start_opener()
        assert read_line(victim) == "ready"
        send(victim, postgres.url(database))
        time.sleep(rng.random() * 0.4)
        victim.kill()
        victim.communicate()

        store = open_store(postgres.url(database))
        with store.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM settings").scalar() == 0
        store.close()


def test_the_schema_of_another_version_is_refused_and_left_alone(postgres: Server, database: str) -> None:
    open_store(postgres.url(database)).close()
    postgres.sql("UPDATE alembic_version SET version_num = '9999'", database)

    refused(postgres.url(database), "another version of hpcml (schema 9999)", "DROP SCHEMA")

    assert postgres.sql("SELECT version_num FROM alembic_version", database) == "9999"


@pytest.mark.parametrize("table", ["alembic_version (version_num TEXT)", "experiments (name TEXT)"])
def test_the_database_of_another_program_is_refused_and_left_alone(postgres: Server, database: str, table: str) -> None:
    postgres.sql(f"CREATE TABLE {table}", database)
    tables = "SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'public'::regnamespace"

    refused(postgres.url(database), "tables of another program in schema public", "left as it is", "csearch_path")

    assert postgres.sql(tables, database) == table.partition(" ")[0]


def test_a_schema_of_its_own_in_a_database_of_others_is_enough(postgres: Server, database: str) -> None:
    postgres.sql("CREATE TABLE experiments (name TEXT); CREATE SCHEMA hpcml", database)

    store = open_store(postgres.url(database, options="&options=-csearch_path%3Dhpcml"))

    assert "schema hpcml" in store.used
    assert postgres.sql("SELECT count(*) FROM hpcml.run", database) == "0"
    store.close()
    refused(postgres.url(database, options="&options=-csearch_path%3Dnowhere"), "no schema to write to")


def test_nothing_of_a_session_is_relied_upon_that_a_pool_of_connections_gives_to_others(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    # PgBouncer gives each transaction another connection: a statement that one prepared there is run by the next under
    # the same name, or is not there
    a_finished_run(tmp_path)
    store = open_store(postgres.url(database))

    for _ in range(8):  # psycopg prepares what it is asked for the sixth time
        ingest_all(store, tmp_path, is_anew=True)

    with store.writing() as connection:
        assert connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements").scalars().all() == []
    store.close()


def test_what_cannot_be_reached_is_said_in_one_line_with_what_to_do(postgres: Server, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    refused(postgres.url("nowhere"), 'database "nowhere" does not exist', "createdb")
    away = refused(f"postgresql://ada@/x?host={tmp_path}", "No such file or directory")
    refusing = refused(f"postgresql://ada@127.0.0.1:{port}/x", "Connection refused")
    assert [message.lower().count("is the server running") for message in (away, refusing)] == [1, 1]
    refused(postgres.url("postgres", user="nobody_here"), 'role "nobody_here" does not exist', "who may connect")


@pytest.mark.parametrize(
    ("role", "words", "advice"),
    [
        ("locked NOLOGIN", "not permitted to log in", "who may connect"),
        ("crowd LOGIN CONNECTION LIMIT 0", "too many connections for role", "try again later"),
    ],
)
def test_a_server_that_answers_no_is_not_asked_whether_it_runs(
    postgres: Server, role: str, words: str, advice: str
) -> None:
    name = role.partition(" ")[0]
    postgres.sql(f"CREATE ROLE {role}")
    try:
        refused(postgres.url("postgres", user=name), words, advice)
    finally:
        postgres.sql(f"DROP ROLE {name}")


def test_a_role_without_rights_is_told_whom_to_ask(postgres: Server, database: str) -> None:
    postgres.sql("CREATE ROLE guest LOGIN", database)
    try:
        refused(postgres.url(database, user="guest"), "permission denied for schema public", "ask its owner")

        open_store(postgres.url(database)).close()
        refused(postgres.url(database, user="guest"), "permission denied for table", "ask its owner")
    finally:
        postgres.sql("DROP ROLE guest", database)


def test_a_servers_limit_of_time_is_named(postgres: Server, database: str) -> None:
    store = open_store(postgres.url(database))

    with pytest.raises(StoreError, match="statement_timeout"), store.reading() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)")
    store.close()


def test_a_role_that_may_only_read_reads(postgres: Server, database: str, tmp_path: Path) -> None:
    a_finished_run(tmp_path / "runs")
    writer = open_store(postgres.url(database))
    ingest_all(writer, tmp_path / "runs")
    postgres.sql("CREATE ROLE onlooker LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO onlooker", database)
    try:
        store = open_store(postgres.url(database, user="onlooker"))

        assert store.is_read_only
        assert "read only" in store.used
        assert find_runs(store) == find_runs(writer)
        with pytest.raises(StoreError, match="read-only for you"), store.writing():
            pass
        store.close()
    finally:
        writer.close()
        postgres.sql("DROP OWNED BY onlooker; DROP ROLE onlooker", database)


def test_a_database_that_cannot_hold_all_names_is_refused(postgres: Server) -> None:
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")

    refused(postgres.url("latin"), "encoded in LATIN1", "ENCODING 'UTF8'")


@pytest.fixture
def with_passwords(postgres: Server, new_database: NewDatabase) -> Iterator[str]:
    """The URL, without a password, of a user who needs one."""
    database = new_database()
    postgres.sql("CREATE ROLE ada LOGIN PASSWORD 'a-secret'")
    postgres.sql(f"ALTER DATABASE {database} OWNER TO ada")
    rules = postgres.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all ada scram-sha-256\n{before}")
    postgres.sql("SELECT pg_reload_conf()")
    yield postgres.url(database, user="ada")
    rules.write_text(before)
    postgres.sql("SELECT pg_reload_conf()")
    postgres.sql(f"DROP DATABASE {database} WITH (FORCE)")
    postgres.sql("DROP ROLE ada")


def test_a_password_is_taken_from_everywhere_and_shown_nowhere(
    with_passwords: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    with_wrong = with_passwords.replace("ada@", "ada:wrong-secret@")
    deadline = time.monotonic() + 300
    while "password" not in (message := refused(with_wrong, "cannot be used")):
        assert time.monotonic() < deadline, f"the server has not read its rules: {message}"
    assert "password right? It is read from ~/.pgpass" in message
    assert "wrong-secret" not in message
    assert "no password" in refused(with_passwords, "~/.pgpass")

    in_url = open_store(with_passwords.replace("ada@", "ada:a-secret@"))
    assert "a-secret" not in f"{in_url.name} {in_url.used}"
    in_url.close()
    open_store(f"{with_passwords}&password=a-secret").close()
    assert "a-secret" not in refused(f"{with_passwords}&password=a-secret&port=1", "cannot be used")
    monkeypatch.setenv("PGPASSWORD", "a-secret")
    open_store(with_passwords).close()
    monkeypatch.delenv("PGPASSWORD")
    (tmp_path / "pgpass").write_text("*:*:*:ada:a-secret\n")
    (tmp_path / "pgpass").chmod(0o600)
    open_store(with_passwords).close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:se@cret@db/hpcml",
        "postgresql://ada:secret@db:port/hpcml",
        "postgresql+psycopg2://ada:secret@db/hpcml",
        "postgresql+asyncpg://ada:secret@db/hpcml",
        "mysql://ada:secret@db/hpcml",
    ],
)
def test_a_url_that_leads_nowhere_is_not_repeated(url: str) -> None:
    message = refused(url, "the store")

    assert "cret" not in message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("sslmoode=require", 'invalid connection option "sslmoode" behind the ?'),
        ("conninfo=a", 'invalid connection option "conninfo" behind the ?'),
        ("sslmode=requir", "sslmode, sslrootcert and the like stand behind the ?"),
        ("host=nowhere.invalid:1&host=nowhere.invalid:2", "?host=nowhere.invalid:1&host=nowhere.invalid:2 cannot"),
    ],
)
def test_options_of_a_url_that_are_none_are_told(options: str, says: str) -> None:
    message = refused(f"postgresql://ada:secret@localhost:1/hpcml?{options}&password=also-secret", says)

    assert "secret" not in message
    assert "\n" not in message


def test_a_connection_that_breaks_is_not_called_one_whose_ssl_is_set_wrongly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def break_off() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(8)  # asks for SSL
                connection.sendall(b"S")
                connection.recv(1 << 16)  # all of its hello: what is unread would reset the connection

        thread = threading.Thread(target=break_off)
        thread.start()
        url = f"postgresql://ada@127.0.0.1:{server.getsockname()[1]}/hpcml?sslmode=require&gssencmode=disable"

        # in a process of its own: the driver's OpenSSL has aborted one in which other libraries had theirs
        program = f"from hpcml.store.opening import open_store; open_store({url!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        thread.join()

    *_, message = done.stderr.splitlines()
    assert "StoreError" in message
    assert "SSL" in message
    assert "may it be reached from here?" in message
    assert "sslrootcert" not in message


def test_a_missing_driver_is_named_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no such thing')")
    program = "from hpcml.store.opening import open_store; open_store('postgresql://ada:secret@db/hpcml')"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}

    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)

    assert "pip install 'hpcml[postgres]'" in done.stderr.splitlines()[-1]


def test_names_are_in_the_order_of_their_characters_whatever_language_the_server_speaks(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    uids = ["a-run", "B-run", "A_run", "aa-run", "Z-run"]
    for uid in uids:
        a_finished_run(tmp_path / "runs", uid)
    store = open_store(postgres.url(database))
    ingest_all(store, tmp_path / "runs")

    assert postgres.sql("SELECT 'a' < 'B'", database) == "t"  # this server would have it otherwise
    assert [record.uid for record in find_runs(store)] == sorted(uids)
    store.close()


def test_an_end_of_a_uid_finds_its_run_in_capital_letters_too(store_url: str, runs: Path) -> None:
    store = open_store(store_url)
    a_finished_run(runs)
    ingest_all(store, runs)

    assert get_run(store, UID[-8:].upper()).uid == UID
    store.close()
