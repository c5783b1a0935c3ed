"""A store on a PostgreSQL server, reached by its URL, which several users may fill at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from hpcml.errors import StoreError
from hpcml.store.database import APPLICATION_ID, REVISION, Database, of_json, to_json

log = logging.getLogger(__name__)

_SCHEMES = ("postgresql", "postgresql+psycopg", "postgres")
_CONNECT_TIMEOUT_S = 15
_MARK = "hpcml store"  # the comment on alembic_version: other programs have a table of that name, too

# Whoever vanishes without a word, because its machine lost power or it was stopped, must not hold up the others.
_SESSION = (
    "SET lock_timeout = '60s'",
    "SET idle_in_transaction_session_timeout = '10min'",
    "SET tcp_keepalives_idle = 60",
    "SET tcp_keepalives_interval = 15",
    "SET tcp_keepalives_count = 4",
)
_CONNECTION: Mapping[str, Any] = {
    "client_encoding": "utf8",
    "fallback_application_name": "hpcml",
    # A pooler (PgBouncer, "transaction pooling") gives each transaction whatever connection is free, where another has
    # prepared another statement under the same name: psycopg numbers them from 0 in each process.
    "prepare_threshold": None,
}
_FOUND = """
SELECT current_schema(), getdatabaseencoding(), obj_description(version.oid, 'pg_class') = %s,
  EXISTS (SELECT FROM pg_class WHERE relnamespace = home.oid AND relkind IN ('r', 'p', 'v', 'm', 'f'))
FROM (SELECT (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AS oid) AS home
LEFT JOIN pg_class AS version ON version.relnamespace = home.oid AND version.relname = 'alembic_version'
"""
# these locks are the database's, which may hold a store in each of several schemas (manual, "Advisory Locks")
_HOLD_SCHEMA = "SELECT pg_advisory_xact_lock(%s, hashtext(current_schema()))"
_MAY_WRITE = """
SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'
  AND has_table_privilege('run', 'INSERT')
"""
_ANEW = "DROP SCHEMA or DATABASE, and hpcml sync makes them anew from the run directories"
_CHANGED = f"somebody changed its tables by other means: {_ANEW}"
_ADVICE: Mapping[str, str] = {  # by SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html)
    "28P01": "is the password right? It is read from ~/.pgpass (chmod 600) or PGPASSWORD",
    "28000": "its administrator decides who may connect, and from where (pg_hba.conf)",
    "3D000": "create the database (createdb), or name another",
    "42501": "ask its owner for the rights, or for membership in the role that owns the tables",
    "25006": "this server only answers: write to its primary",
    "53300": "try again later, or ask its administrator for more connections",
    "55P03": "somebody else has kept it from being written for a minute: try again",
    "40P01": "try again",
    "57014": "somebody ended it, or its statement_timeout, which its administrator can raise for a role (ALTER ROLE)",
    "57P01": "the server was stopped: try again once it runs",
    "42P01": _CHANGED,
    "42703": _CHANGED,
    "08P01": "PgBouncer takes no options: name the schema in ALTER ROLE ... SET search_path, and not in the URL",
    "ssl": "sslmode, sslrootcert and the like stand behind the ? of the URL, or in PGSSLMODE, PGSSLROOTCERT ...",
    "53100": "its disk is full: nothing of this was written, and the run directories have it all",
}
# A refused connection has no SQLSTATE in the driver, only the server's words, in its own language.
_BY_WORDS: Mapping[str, str] = {
    "password authentication failed": "28P01",
    "no password supplied": "28P01",
    "pg_hba.conf": "28000",
    "Peer authentication failed": "28000",
    "is not permitted to log in": "28000",
    "too many clients": "53300",
    "too many connections": "53300",  # for a role, or for a database
    "remaining connection slots": "53300",
    "certificate": "ssl",
    "sslmode": "ssl",
    "support SSL": "ssl",  # and not each word of SSL: a connection that broke has it, too
    "unsupported startup parameter: options": "08P01",  # PgBouncer speaks English alone
}


@dataclass(frozen=True, slots=True)
class _Found:
    """What lies in the schema that the URL names."""

    schema: str | None
    encoding: str
    is_ours: bool
    has_tables: bool


def open_server(url: str) -> Database:
    """Return the store at *url*, its tables made where needed.

    Raises `StoreError` where the server cannot be reached, or the schema holds something else. *url* is
    ``postgresql://USER@HOST:PORT/DATABASE``; a schema other than the first in the search path is named by
    ``?options=-csearch_path%3DNAME`` (PostgreSQL manual, "Connection URIs"). The password is better kept in ~/.pgpass
    or PGPASSWORD. One connection is kept for as long as the process needs it, and a broken one is replaced.

    Several processes may open and make it at the same time: the first holds the lock of the schema, and the others find
    it done. A role that may not write gets a store that is read-only.
    """
    address = parsed(url)
    store = Database(
        name=_shown(address),
        used="",
        engine=_make_engine(address),
        explained=lambda error: _explained(address, error),
        is_shared=True,
        # one state from beginning to end (PostgreSQL manual, "Transaction Isolation")
        reading_options={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
        # not the server's default, which may be another: what a lock was waited for must then be seen
        writing_options={"isolation_level": "READ COMMITTED"},
    )
    try:
        with store.explaining():
            _make_if_empty(store)
    except BaseException:
        store.close()
        raise
    return store


def _make_if_empty(store: Database) -> None:
    with store.engine.connect() as connection, connection.begin():
        is_made = _look_at(store, connection)
        if is_made and not connection.exec_driver_sql(_MAY_WRITE).scalar_one():
            store.used += ", read only"
            store.read_only = f"the store {store.name} is read-only for you"
    if is_made:
        return
    # Imported here, since Alembic would double the start-up time of every command that finds it made.
    from hpcml.store.create import create_schema  # noqa: PLC0415

    with store.writing() as connection:
        connection.exec_driver_sql(_HOLD_SCHEMA, (APPLICATION_ID,))
        if _look_at(store, connection):  # again: somebody else may have been faster
            return
        create_schema(connection)
        connection.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{_MARK}'")
        log.info("made %s with schema %s", store.name, REVISION)


def _look_at(store: Database, connection: Connection) -> bool:
    """Tell whether the tables are there; False where nothing is. The server and the schema become `Database.used`.

    Raises `StoreError` for anything that is not ours, and for tables of another version. Ours is recognized by a
    comment on the table alembic_version, since other programs use Alembic too.
    """
    found = _Found(*connection.exec_driver_sql(_FOUND, (_MARK,)).one())
    if found.schema is None:
        raise StoreError(f"the store {store.name} has no schema to write to: create the one in its search_path")
    version = ".".join(map(str, connection.dialect.server_version_info or ()))
    store.used = f"PostgreSQL {version}, schema {found.schema}"
    if found.encoding != "UTF8":
        raise StoreError(
            f"the store {store.name} is encoded in {found.encoding}, which cannot hold all names: "
            "create a database with ENCODING 'UTF8' TEMPLATE template0"
        )
    if found.is_ours:
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
        if revision != REVISION:
            other = f"another version of hpcml (schema {revision})"
            raise StoreError(f"the tables of the store {store.name} are those of {other}: {_ANEW}")
        return True
    if found.has_tables:
        raise StoreError(
            f"the store {store.name} has tables of another program in schema {found.schema}: it was left as it is; "
            "give hpcml a database of its own, or a schema (?options=-csearch_path%3Dhpcml)"
        )
    return False


def _explained(url: URL, error: Exception) -> StoreError | None:
    """Return one line on what the server complains of, with what to do where its SQLSTATE is known.

    None for integrity and programming errors that are not known: they are bugs of hpcml.
    """
    import psycopg  # noqa: PLC0415 - as everything of this module, only for who uses it

    cause: BaseException | None = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, psycopg.Error):
        return None
    if cause.sqlstate not in _ADVICE and isinstance(cause, psycopg.IntegrityError | psycopg.ProgrammingError):
        return None
    words = " ".join(str(cause.diag.message_primary or cause).split())
    state = cause.sqlstate or next((code for part, code in _BY_WORDS.items() if part in words), None)
    if state is None and f'database "{url.database}" does not exist' in words:
        state = "3D000"
    if state is None and f'role "{url.username}" does not exist' in words:
        state = "28000"
    advice = _ADVICE.get(state or "")
    # as libpq asks in English
    if advice is None and cause.diag.message_primary is None and "Is the server running" not in words:
        advice = "is the server running, and may it be reached from here?"
    return StoreError(f"the store {_shown(url)} cannot be used: {words}{f'; {advice}' if advice else ''}")


def parsed(url: str) -> URL:
    """Return *url* for the driver that is used here (psycopg); raises `StoreError`, without repeating a password.

    Also raised where the driver is not installed (``pip install 'hpcml[postgres]'``) or *url* names another one.
    """
    try:
        from psycopg import ProgrammingError as NoOption  # noqa: PLC0415
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415
    except ImportError as error:
        raise StoreError("a store on PostgreSQL needs a driver: pip install 'hpcml[postgres]'") from error
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        raise StoreError(f"the store {scheme}://... names another driver: write postgresql://USER@HOST:PORT/DATABASE")
    if rest.partition("?")[0].count("@") > 1:
        raise StoreError(f"the store {scheme}://... has more than one @: write that of a password as %40")
    try:
        made = make_url(url)
    except (ArgumentError, ValueError) as error:  # a port that is no number, and what else looks like no URL
        raise StoreError(f"the store {scheme}://... is no URL: write postgresql://USER@HOST:PORT/DATABASE") from error
    try:
        make_conninfo(" ".join(f"{name}=''" for name in made.query))
    except NoOption as error:
        raise StoreError(f"the store {_shown(made)}: {str(error).strip()} behind the ? (as sslmode is one)") from error
    return made.set(drivername="postgresql+psycopg")


def _shown(url: URL) -> str:
    """Return *url* without secrets; its options may hold some, too."""
    shown = URL.create("postgresql", url.username, None, url.host, url.port, url.database)
    places = [
        f"{name}={value}"
        for name, values in sorted(url.normalized_query.items())
        if name in ("host", "service")
        for value in values
    ]
    return shown.render_as_string() + (f"?{'&'.join(places)}" if places else "")


def _make_engine(url: URL) -> Engine:
    given: dict[str, Any] = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
    engine = create_engine(
        url,
        pool_size=1,  # one connection for as long as this process needs it: to make one takes many round trips
        pool_pre_ping=True,  # a wait may take days, in which the server is started anew
        json_serializer=to_json,
        json_deserializer=of_json,
        use_native_hstore=False,  # else it asks the server for a type that is not used
        connect_args={**given, **_CONNECTION},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:  # noqa: ANN401 - psycopg's, whose import costs time
        with connection.cursor() as cursor:
            cursor.execute("; ".join(_SESSION))
        connection.commit()

    return engine
