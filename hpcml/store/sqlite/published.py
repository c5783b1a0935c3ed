"""A store on a file system that several machines share: a snapshot that is only ever replaced as a whole.

A reader opens the snapshot as it is; it never changes. A writer takes a lease (a lock with a time limit), works in a
private copy on its own machine (`WorkingCopy`), and replaces the snapshot with one rename. So neither needs a lock of
the file system, and a process killed at any point leaves a whole store. What a killed writer had not published is read
in again from journals.

A note beside the copy says which publication it equals. It is removed before the copy is changed and written again
after that was published: whatever kills the writer in between, the next one copies anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from hpcml.errors import StoreError
from hpcml.mounts import file_system_of, is_local
from hpcml.runs.atomic import sync, write_text
from hpcml.runs.liveness import boot_id
from hpcml.runs.lock import Lock, Owner, Patience, clear_dead, kept_alive, wait_for
from hpcml.store.sqlite.file import BUSY_TIMEOUT_S, FileReader, SqliteFile
from hpcml.store.sqlite.location import Placement, SqliteHeader, check_file, is_made
from hpcml.store.sqlite.read_only import connect_to_snapshot

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

PATIENCE = Patience(poll_s=0.25)
_WAIT_S = 30.0
_TURN_S = 10.0  # after this long others get a turn, and the work so far is published
_PAUSE_S = 1.0  # longer than others take to see that it is their turn
_WRITER = "writer"


class PublishedStore(SqliteFile):
    """A store whose file is replaced as a whole by each publication.

    For SQLite's locks are not reliable on network file systems (sqlite.org/faq.html, question 5). *patience* and
    *wait_s* say how a lease is waited for: after *wait_s* seconds a `StoreError` names who holds it.
    """

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

    @classmethod
    def open(cls, placement: Placement, **details: object) -> PublishedStore:
        """Return the store in this file, made and published where needed.

        *details* are the keyword arguments of the class. A store that is ready is opened without the lease. Raises
        `StoreError` where others still use the file directly, or hold the lease for too long.
        """
        check_file(placement.path)
        store = cls(placement, **details)  # type: ignore[arg-type]
        with store.translated(), store._turns.session() as turns:
            if turns.take(unless=store._is_ready, or_direct=True):
                from hpcml.store.sqlite.engine import make_if_empty  # noqa: PLC0415 - loads SQLAlchemy

                make_if_empty(turns.engine, placement.path)
                turns.publish(None if SqliteHeader.of(store._file).publication else new_number())
        return store

    def _is_ready(self) -> bool:
        if not SqliteHeader.of(self._file).publication:
            return False
        with self.reading() as reading:
            return is_made(reading.driver, self.path)

    @contextmanager
    def reading(self) -> Iterator[FileReader]:
        """Return a context manager with one state of the store from beginning to end.

        Inside `writing` and `together` that is what was written last, else what was published last.
        """
        if self._turns.is_taken:
            with self.translated(), closing(FileReader(self._turns.connect())) as reading:
                reading.driver.execute("BEGIN")
                yield reading
            return
        with self.translated(), ExitStack() as stack:
            try:
                reading = stack.enter_context(self._see())
            except sqlite3.OperationalError:  # replaced on another machine just between finding and reading it (ESTALE)
                reading = stack.enter_context(self._see())
            yield reading

    @contextmanager
    def _see(self) -> Iterator[FileReader]:
        with closing(FileReader(connect_to_snapshot(self._file))) as reading:
            reading.driver.execute("BEGIN")
            if not reading.driver.execute("PRAGMA user_version").fetchone()[0]:
                raise StoreError(f"another process began to use the store {self.name} directly: run this command again")
            yield reading

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Return a context manager with a connection; the first ``begin()`` waits for the lease, the end publishes.

        Each publication writes the whole file once more, so several `writing`s belong into one `together`. Raises
        `StoreError` where the lease is not to be had or was taken over by another process: what was not published is
        then as if it had never been written.
        """
        from hpcml.store.sqlite.engine import for_writing  # noqa: PLC0415 - who only reads does not load SQLAlchemy

        with self.translated(), self._turns.session() as turns, for_writing(turns.engine).connect() as connection:
            yield connection

    @contextmanager
    def together(self) -> Iterator[None]:
        """Publish what is written inside once, at the end, or earlier when others have waited for long."""
        with self.translated(), self._turns.session():
            yield

    @contextmanager
    def maintaining(self) -> Iterator[Connection]:
        """Return a context manager with a connection to the copy, in no transaction; the end publishes."""
        from hpcml.store.sqlite.engine import as_it_is  # noqa: PLC0415 - as above

        with self.translated(), self._turns.session() as turns:
            turns.take()
            with as_it_is(turns.engine).connect() as connection:
                yield connection

    def hand_over(self) -> None:
        """Publish the store for the last time; from then on the file is used directly.

        Called by `hpcml.store.opening` where HPCML_STORE_MODE=direct ends the publishing. Number 0 in the file says so
        to everybody.
        """
        with self.translated(), self._turns.session() as turns:
            turns.take()
            turns.publish(0)

    def close(self) -> None:
        """Let go of the files."""
        self._turns.close()


class _Turns:
    """The lease of one process: taken before writing, given back after the publication; others get it in between.

    `session`s may be nested: only the outermost gives the lease back. A turn that lasts for ten seconds, or four times
    as long as a publication takes, is interrupted between two transactions, so that others can write.
    """

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

    @property
    def is_taken(self) -> bool:
        """Whether this process holds the lease."""
        return self._turn is not None

    @contextmanager
    def session(self) -> Iterator[_Turns]:
        """Return a context manager; the end of the outermost one publishes what was written, also after an exception.

        Each transaction is whole: those before a failure are to be published.
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
        """Wait for the lease, then bring the copy up to date; *or_direct*: also where the file was never published.

        Returns False, without the lease, as soon as *unless* says that there is nothing to do.

        Raises `StoreError` where the lease is not got in time, where the file cannot be written, and where somebody
        uses it directly. The lease is then given back.
        """
        turn = ExitStack()
        try:
            lock = self._wait(unless)
            if lock is None:
                return False
            turn.enter_context(kept_alive(lock, self._patience))
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
        """Replace the snapshot by the copy, if that has changed since, or if *publication* is its new number.

        The new file is copied beside the old one, synced, and renamed over it; its mode and group are those of the old
        one. Raises `StoreError` where the lease was lost or the file cannot be replaced: the old file is then as it
        was.
        """
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
            # Not by `replacing`: whoever takes the lease from us removes what we have written, by its name.
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

    @cached_property
    def engine(self) -> Engine:
        """What writes into the copy."""
        from hpcml.store.sqlite.engine import make_engine  # noqa: PLC0415 - who only reads does not load SQLAlchemy

        return make_engine(self.connect, prepare=prepare_copy, begin=self._begin)

    def close(self) -> None:
        """Let go of the copy."""
        if "engine" in vars(self):
            self.engine.dispose()

    def _begin(self, connection: Connection) -> None:
        from hpcml.store.sqlite.engine import begin_as_told  # noqa: PLC0415 - as above

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
        begin_as_told(connection)

    def connect(self) -> sqlite3.Connection:
        """Return a connection of the driver to the copy; without the lease there is nothing to be opened yet."""
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
        give_up_at = time.monotonic() + self._wait_s
        clear_dead(folder)
        for found in wait_for(folder, _WRITER, patience=self._patience):
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
        header = SqliteHeader.of(self._file)
        if header.publication:
            remove_sides(self._file)  # of a time when it was used directly: nothing is to be finished any more
        elif or_direct and not header.is_empty:
            _settle(self._file)
        elif not header.is_empty:
            raise StoreError(f"another process began to use the store {self._file} directly: run this command again")


def new_number() -> int:
    """Return a random number for a publication, never 0.

    It fits SQLite's user version, a signed number of 32 bits (sqlite.org/pragma.html, user_version).
    """
    return 1 + secrets.randbelow(2**31 - 1)


def _settle(file: Path) -> None:
    """Finish what direct users of *file* left unfinished, and make those that remain notice the change of mode.

    Raises `StoreError` where they hold the file for longer than `BUSY_TIMEOUT_S`.
    """
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
        sync(folder)


_ROOM = 8 << 20  # for what is read in, besides twice the size of the store
_SIDES = ("-journal", "-wal")  # what a direct user may have left to be finished beside a file


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """The writer's private copy of the store on its own machine.

    It lies in a folder that only this user can enter, so that the next writer on the same machine need not copy the
    store again.
    """

    file: Path
    is_local: bool  # else it lies beside the store, where no lock can be relied on, and is used once

    @classmethod
    def of(cls, file: Path, environ: Mapping[str, str]) -> WorkingCopy:
        """Return the copy for the store *file*, of this user on this host.

        The first of XDG_RUNTIME_DIR, TMPDIR, /tmp and /var/tmp that is local and has room for twice the store is taken;
        where none is, the copy lies beside the store and is used once. Nothing is copied yet.
        """
        size = file.stat().st_size if file.exists() else 0
        place = hashlib.sha256(os.fsencode(f"{socket.gethostname()}:{file}")).hexdigest()[:16]
        for base in (environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR"), "/tmp", "/var/tmp"):  # noqa: S108 - private
            folder = None if not base else _private_folder(Path(base), place, 2 * size + _ROOM)
            if folder is not None:
                return cls(folder / "copy.db", is_local=True)
        return cls(beside(file, "copy"), is_local=False)

    def connect(self) -> sqlite3.Connection:
        """Return a connection to the copy; only the holder of the lease does this.

        A copy beside the store is opened without locks (``nolock=1``, sqlite.org/uri.html), which its file system may
        lack.
        """
        unlocked = "" if self.is_local else "?nolock=1"
        place = f"file:{quote(str(self.file))}{unlocked}"
        return sqlite3.connect(place, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    @property
    def changes(self) -> int:
        """The number of changes ever made to the copy (SQLite's file change counter)."""
        return SqliteHeader.of(self.file).changes

    def refresh(self, published: Path) -> None:
        """Make the copy equal to *published*, which nobody replaces meanwhile; raises `OSError`.

        A copy that equals it already, as its note says, is kept. Where nothing is published, the copy is deleted. The
        note goes in any case, since the copy is about to be changed.
        """
        if not published.exists():
            self.discard()
        elif not self._equals(published):
            self.discard()
            shutil.copyfile(published, self.file)
            self.file.chmod(0o600)
            for side in _SIDES:  # of a store that was used directly
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{published}{side}", f"{self.file}{side}")
        self._note.unlink(missing_ok=True)

    def note(self, published: Path) -> None:
        """Record that the copy equals *published*.

        Equal is meant by file, size, time and number of publication, and only until the next start of the machine.
        """
        if self.is_local:
            write_text(self._note, json.dumps(_identity(published)))

    def number(self, publication: int) -> None:
        """Set the number of the next publication in the copy."""
        with closing(self.connect()) as connection:
            prepare_copy(connection)
            connection.execute(f"PRAGMA user_version = {publication}")
            connection.commit()

    def discard(self) -> None:
        """Delete the copy with SQLite's files beside it."""
        self._note.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)
        remove_sides(self.file)

    @property
    def _note(self) -> Path:
        return Path(f"{self.file}.equals")

    def _equals(self, published: Path) -> bool:
        try:
            noted = json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(noted == _identity(published)) and self.file.exists()


def prepare_copy(connection: sqlite3.Connection) -> None:
    """Set the connection to be fast, not durable: after a crash or a power cut the copy is not used again."""
    connection.execute("PRAGMA journal_mode = MEMORY")
    connection.execute("PRAGMA synchronous = OFF")


def remove_sides(file: Path) -> None:
    """Delete SQLite's files beside *file* (journal, WAL), which it does not need.

    Only to be called where no process uses *file* directly.
    """
    for side in (*_SIDES, "-shm"):
        Path(f"{file}{side}").unlink(missing_ok=True)


def beside(file: Path, what: str) -> Path:
    """Return a new name beside *file*; the next writer deletes such a file if this one cannot."""
    return file.parent / f"{_prefix(file)}{what}-{secrets.token_hex(8)}"


def leftovers(file: Path) -> list[Path]:
    """Return the files that killed writers left beside *file*; the holder of the lease may delete them."""
    return [path for path in file.parent.iterdir() if path.name.startswith(_prefix(file))]


def _prefix(file: Path) -> str:
    return f".{file.name}.new-"


def _identity(published: Path) -> dict[str, object]:
    seen = published.stat()
    return {
        "file": [seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns],
        "publication": SqliteHeader.of(published).publication,
        "boot": boot_id(),  # a power cut may have torn it
    }


def _private_folder(base: Path, place: str, room: int) -> Path | None:
    """Return a folder below *base* that only this user can enter, with *room* bytes free; else None."""
    ours = base / f"hpcml-{os.getuid()}"
    try:
        if not is_local(file_system_of(base)) or shutil.disk_usage(base).free < room:
            return None
        for folder in (ours, ours / place):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            seen = folder.lstat()
            if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or stat.S_IMODE(seen.st_mode) & 0o077:
                return None  # somebody else's, or open to others
        with tempfile.TemporaryFile(dir=ours / place):
            return ours / place
    except OSError:
        return None
