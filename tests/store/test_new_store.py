"""A new store is made from one file of SQL, and is to the letter what all migrations lead to.

python -m tests.store.test_new_store      # writes that file anew, after a migration was added
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

from sqlalchemy import create_engine

from hpcml.store.database import APPLICATION_ID, REVISION
from hpcml.store.opening import open_store
from hpcml.store.sqlite.location import Mode, Placement
from hpcml.store.sqlite.new import STATEMENTS
from hpcml.store.sqlite.published import PublishedStore
from hpcml.store.upgrade import upgrade


def schema_of(driver: sqlite3.Connection) -> str:
    """Return the statements that made all that is in the file, in their order, and the number of the last migration."""
    made = driver.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
    ((revision,),) = driver.execute("SELECT version_num FROM alembic_version").fetchall()
    statements = [sql for (sql,) in made] + [f"INSERT INTO alembic_version (version_num) VALUES ('{revision}')"]  # noqa: S608
    return "".join(f"{statement};\n" for statement in statements)


def migrated() -> str:
    engine = create_engine("sqlite://")
    with engine.connect() as connection, connection.begin():
        upgrade(connection)
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        return schema_of(driver)


def test_a_new_store_is_to_the_letter_what_all_migrations_lead_to(tmp_path: Path) -> None:
    assert STATEMENTS.read_text() == migrated(), "write it anew: python -m tests.store.test_new_store"

    open_store(str(tmp_path / "store.db"))
    PublishedStore.open(
        Placement(path=tmp_path / "published.db", file_system="lustre", mode=Mode.published, why="a network")
    )

    for name in ("store.db", "published.db"):
        with sqlite3.connect(tmp_path / name) as driver:
            assert schema_of(driver) == migrated()
            assert driver.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
            assert driver.execute("SELECT version_num FROM alembic_version").fetchall() == [(REVISION,)]
            assert driver.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_new_store_loads_neither_alembic_nor_sqlalchemy(tmp_path: Path) -> None:
    code = f"""
import sys
from hpcml.store.opening import open_store
open_store({str(tmp_path / "store.db")!r})
print([name for name in ("alembic", "sqlalchemy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_many_that_open_a_new_store_at_once_find_one(tmp_path: Path) -> None:
    code = f"from hpcml.store.opening import open_store; open_store({str(tmp_path / 'store.db')!r})"
    programs = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]

    assert [(program.communicate(timeout=60)[1], program.returncode) for program in programs] == [(b"", 0)] * 4
    with sqlite3.connect(tmp_path / "store.db") as driver:
        assert schema_of(driver) == migrated()


if __name__ == "__main__":
    STATEMENTS.write_text(migrated())
