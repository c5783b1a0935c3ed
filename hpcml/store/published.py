"""A store on a file system that several machines share: a snapshot that is only ever replaced whole.

Whoever reads opens the snapshot as it is; it never changes. Whoever writes takes a lease, works in a copy on its own
machine, and puts that in the place of the snapshot with one rename. So neither needs a lock of the file system, and
whatever dies at any point leaves a whole store. What a dead writer had not published is read in again from journals.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from hpcml import lease
from hpcml.errors import StoreError
from hpcml.lease import Lock, Owner, Patience
from hpcml.store.placement import Placement
from hpcml.store.read_only import connect_to_snapshot
from hpcml.store.sqlite_file import (
    BUSY_TIMEOUT_S,
    SqliteFile,
    as_it_is,
    begin,
    bring_up_to_date,
    for_writing,
    make_engine,
    revision_of,
)
from hpcml.store.sqlite_path import Header, check_file
from hpcml.store.tables import REVISION
from hpcml.store.working_copy import WorkingCopy, beside, leftovers, prepare_copy, remove_sides

PATIENCE = Patience(poll_s=0.25)
_WAIT_S = 30.0
_TURN_S = 10.0  # after this long others get a turn, and the work so far is published
_PAUSE_S = 1.0  # longer than others take to see that it is their turn
_WRITER = "writer"


class PublishedStore(SqliteFile):
    """A file of which each state is published as a whole."""

    def __init__(
        self,
        placement: Placement,
        *,
        environ: Mapping[str, str] = os.environ,
        patience: Patience = PATIENCE,
        wait_s: float = _WAIT_S,
    ) -> None:
        super().__init__(placement)
        self._file = placement.path.resolve()  # a rename replaces what a symbolic link points to, not the link
        self._turns = _Turns(self._file, environ=environ, patience=patience, wait_s=wait_s)
        self._snapshot = make_engine(lambda: connect_to_snapshot(self._file), prepare=lambda _: None)
        event.listen(self._snapshot, "begin", begin)

    @classmethod
    def open(cls, placement: Placement, **details: object) -> PublishedStore:
        """Return the store in this file, made, upgraded and published where needed."""
        check_file(placement.path)
        store = cls(placement, **details)  # type: ignore[arg-type]
        with store.translated(), store._turns.session() as turns:
            if turns.take(unless=store._is_ready, or_direct=True):
                bring_up_to_date(turns.engine, placement.path)
                turns.publish(None if Header.of(store._file).publication else new_number())
        return store

    def _is_ready(self) -> bool:
        if not Header.of(self._file).publication:
            return False
        with self.reading() as connection:
            return revision_of(connection) == REVISION

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the store from beginning to end.

        Inside `writing` and `together`, that is what was written last, else what was published last.
        """
        if self._turns.is_taken:
            with self.translated(), self._turns.engine.connect() as connection, connection.begin():
                yield connection
            return
        with self.translated(), ExitStack() as stack:
            try:
                connection = stack.enter_context(self._see())
            except OperationalError:  # replaced on another machine just between finding and reading it (ESTALE)
                connection = stack.enter_context(self._see())
            yield connection

    @contextmanager
    def _see(self) -> Iterator[Connection]:
        with self._snapshot.connect() as connection, connection.begin():
            if not connection.exec_driver_sql("PRAGMA user_version").scalar_one():
                raise StoreError(f"another process began to use the store {self.name} directly: run this command again")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection whose first ``begin()`` waits until nobody else writes; at the end others see it."""
        with self.translated(), self._turns.session() as turns, for_writing(turns.engine).connect() as connection:
            yield connection

    @contextmanager
    def together(self) -> Iterator[None]:
        """Publish what is written inside at once at the end, or when others have waited for long."""
        with self.translated(), self._turns.session():
            yield

    @contextmanager
    def maintaining(self) -> Iterator[Connection]:
        """Give a connection to the copy, outside of any transaction; what it does is published at the end."""
        with self.translated(), self._turns.session() as turns:
            turns.take()
            with as_it_is(turns.engine).connect() as connection:
                yield connection

    def hand_over(self) -> None:
        """Publish it for the last time: from then on it is used directly."""
        with self.translated(), self._turns.session() as turns:
            turns.take()
            turns.publish(0)

    def close(self) -> None:
        """Let go of the files."""
        self._snapshot.dispose()
        self._turns.engine.dispose()


class _Turns:
    """The turns that one process takes at writing: from the lease to the publication."""

    def __init__(self, file: Path, *, environ: Mapping[str, str], patience: Patience, wait_s: float) -> None:
        self._file = file
        self._environ = environ
        self._patience = patience
        self._wait_s = wait_s
        self._depth = 0
        self._turn: ExitStack | None = None
        self._lock: Lock | None = None
        self._copy = WorkingCopy(file, is_local=True)  # of the turn
        self._since = 0.0
        self._published = 0  # how often the copy had been changed when it was equal to what is published
        self._publishing_s = 0.0
        self.engine = make_engine(self._connect, prepare=prepare_copy)
        event.listen(self.engine, "begin", self._begin)

    @property
    def is_taken(self) -> bool:
        """Whether this process is the one that may write."""
        return self._turn is not None

    @contextmanager
    def session(self) -> Iterator[_Turns]:
        """Publish what is written inside at the end of the outermost session, also if it ends badly.

        Each transaction is whole: of those before a failure the store is to know.
        """
        self._depth += 1
        is_outermost = self._depth == 1
        try:
            yield self
        except BaseException:
            if is_outermost and self.is_taken:
                with suppress(StoreError, OSError, sqlite3.Error):  # the first failure is the one to tell of
                    self.publish()
            raise
        else:
            if is_outermost and self.is_taken:
                self.publish()
                self._keep()
        finally:
            self._depth -= 1
            if is_outermost:
                self._let_go()

    def take(self, *, unless: Callable[[], bool] = lambda: False, or_direct: bool = False) -> bool:
        """Wait until nobody else writes, to work in what is published then; *or_direct*: in whatever is there.

        Return False, and wait no longer, as soon as *unless* says that there is nothing to do.
        """
        turn = ExitStack()
        try:
            lock = self._wait(unless)
            if lock is None:
                return False
            turn.enter_context(lease.kept_alive(lock, self._patience))
            for path in leftovers(self._file):  # of dead ones; one that only seems dead can publish nothing then
                path.unlink(missing_ok=True)
            # On NFS a name may mean an older file for a while; a folder that changed is looked at anew.
            probe = beside(self._file, "probe")
            probe.touch()
            probe.unlink()
            self._make_ready(or_direct=or_direct)
            copy = WorkingCopy.of(self._file, self._environ)
            copy.refresh(self._file)
            self._published = copy.changes
        except BaseException as error:
            turn.close()
            if isinstance(error, OSError):
                raise StoreError(f"the store {self._file} cannot be written: {error.strerror}") from error
            raise
        self._turn, self._lock, self._copy, self._since = turn, lock, copy, time.monotonic()
        return True

    def publish(self, publication: int | None = None) -> None:
        """Put the copy in the place of what is published, if it has changed since or *publication* is its number."""
        assert self._lock is not None
        if publication is None:
            if self._copy.changes == self._published:
                return
            publication = new_number()
        began = time.monotonic()
        self._copy.number(publication)
        unfinished = beside(self._file, "snapshot")
        try:
            _copy_durably(self._copy.file, unfinished, like=self._file)
            if not self._lock.is_ours:
                raise StoreError(f"another process took over the store {self._file}: run this command again")
            unfinished.replace(self._file)  # gone, and refused, if another one took the lease just now
        except OSError as error:
            raise StoreError(
                f"the store {self._file} cannot be replaced: {error.strerror}; it is as it was, "
                "and what was being read in will be read again"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)
        _sync_folder(self._file.parent)
        self._published, self._publishing_s = self._copy.changes, time.monotonic() - began

    def _begin(self, connection: Connection) -> None:
        if connection.get_execution_options().get("hpcml_write", False):
            is_over = time.monotonic() - self._since > max(_TURN_S, 4 * self._publishing_s)
            if self.is_taken and is_over:
                self.publish()
                self._keep()
                self._let_go()
                time.sleep(_PAUSE_S)
            if not self.is_taken:
                self.take()
                connection.invalidate()  # so that it is opened anew: on the copy, as it is now
        begin(connection)

    def _connect(self) -> sqlite3.Connection:
        # Without the lease there is nothing to be opened yet: the first transaction will.
        return self._copy.connect() if self.is_taken else sqlite3.connect(":memory:")

    def _keep(self) -> None:
        with suppress(OSError):
            self._copy.note(self._file)

    def _let_go(self) -> None:
        turn, self._turn, self._lock = self._turn, None, None
        if turn is not None:
            if not self._copy.is_local:
                self._copy.discard()
            turn.close()

    def _wait(self, unless: Callable[[], bool]) -> Lock | None:
        if unless():
            return None
        folder = self._file.parent / f".{self._file.name}.lease"
        if not folder.exists():
            with suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(self._file.parent.stat().st_mode & 0o2777)  # whoever may replace the store may say so
        give_up_at = time.monotonic() + self._wait_s
        lease.clear_dead(folder)
        for found in lease.wait_for(folder, _WRITER, patience=self._patience):
            if isinstance(found, Lock):
                return found
            if unless():
                return None
            if time.monotonic() > give_up_at:
                raise StoreError(self._still_busy(found))
        raise AssertionError("the wait ends with the lock")

    def _still_busy(self, owner: Owner) -> str:
        dead = f"if it has died, it is passed over after {self._patience.silence_s / 60:.0f} minutes"
        return f"{owner} has been writing the store {self._file} for {self._wait_s:.0f} s: try again later; {dead}"

    def _make_ready(self, *, or_direct: bool) -> None:
        header = Header.of(self._file)
        if header.publication:
            remove_sides(self._file)  # of a time when it was used directly: nothing is to be finished any more
        elif or_direct and not header.is_empty:
            _settle(self._file)
        elif not header.is_empty:
            raise StoreError(f"another process began to use the store {self._file} directly: run this command again")


def new_number() -> int:
    """Return a number that no other publication has, nor 0."""
    return 1 + secrets.randbelow(2**31 - 1)


def _settle(file: Path) -> None:
    """Finish what direct users of *file* left, and let those that still are see that they no longer may be."""
    connection = sqlite3.connect(file, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute(f"PRAGMA user_version = {new_number()}")
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreError(
                f"the store {file} is in use by others who write directly into it: end them first"
            ) from error
        # no locks on this file system: then nobody can have used it directly, and the copy is made from all there is
    finally:
        connection.close()


def _copy_durably(source: Path, target: Path, *, like: Path) -> None:
    with source.open("rb") as reader, target.open("xb") as writer:
        os.fchmod(writer.fileno(), 0o600)
        with suppress(FileNotFoundError):
            seen = like.stat()
            with suppress(PermissionError):
                os.fchown(writer.fileno(), -1, seen.st_gid)
            os.fchmod(writer.fileno(), seen.st_mode & 0o777)
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
