"""Writing one journal file: a line for each record, one system call for each line.

docs/journal.md describes the format (JSON lines with a sequence number and a CRC-32). `Client` and the agent use it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

FORMAT = 1
VERSION = "0.1.0"
_SYNC_EVERY_S = 20.0  # what a crashed node may lose; a killed process loses nothing
_SYNCED = frozenset(("checkpoint", "signal", "warned"))  # what follows may well be the end: on the disk at once
_HEADER_EVERY_BYTES = 1 << 20  # so that a file whose beginning was damaged still says whose it is
_RETRY_EVERY_S = 5.0  # between attempts to create a file that could not be created
_CLOSED = "closed"  # the last record of a journal whose header promises one
_MOST_KEPT = 1000  # events that wait for room on the disk
_PATIENCE_S = 2.0  # of closing, while there is no room
_TRY_EVERY_S = 0.1
_CACHED_NAMES = 4096  # a program that makes up names for ever must not fill the memory
_DEEPEST = 16  # of nested details; what lies deeper, or in a circle, is written as text
_LONGEST_INT_BITS = 4096  # Python refuses to print, and to read, integers of more than 4300 digits
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one for each record


class JournalWriter:
    """Appends records to a file of its own; no I/O error ever reaches the calling program.

    The file is synced every 20 seconds, at checkpoints and signals, and when it is closed. Any thread may write, and
    signal handlers too. A forked child gets a file of its own with its first record. Where the disk is full, events
    wait in memory for the next record that can be written; metrics are lost, counted, reported once on stderr, and
    journalled as ``journal_gap`` once writing works again. Closing tries for *patience_s* seconds to write the rest.

    *run* is the uid, *attempt* counts from 0, *writer* is "agent" or "rank0", "rank1" ...; *now* returns seconds. With
    *closes* the header promises that the last record is the event ``closed``: where it is missing, so may be others.
    """

    def __init__(
        self,
        journal_dir: str,
        *,
        run: str,
        attempt: int,
        writer: str,
        closes: bool = False,
        patience_s: float = _PATIENCE_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dir = journal_dir
        self._run = run
        self._attempt = attempt
        self._writer = writer
        self._closes = closes
        self._patience_s = patience_s
        self._now = now
        self._t0_unix = time.time()
        self._t0 = now()
        self._encoded: dict[str, str] = {}  # metric name -> '"name":'
        self._warned = False
        self._closed = False
        self._begin_file()
        _ours.add(self)

    @classmethod
    def open(
        cls,
        journal_dir: str,
        *,
        run: str,
        attempt: int = 0,
        writer: str = "agent",
        closes: bool = False,
        patience_s: float = _PATIENCE_S,
    ) -> JournalWriter:
        """Create the journal's file with its header; where that fails, print a warning and try again later."""
        journal = cls(
            os.fspath(journal_dir), run=run, attempt=attempt, writer=writer, closes=closes, patience_s=patience_s
        )
        with journal._lock:
            journal._ready()
        return journal

    @property
    def path(self) -> str | None:
        """The path of the file; None before it exists."""
        return self._path

    @property
    def dropped(self) -> int:
        """The number of lost records that no ``journal_gap`` has reported yet."""
        return self._dropped

    def metrics(
        self, step: int, values: Mapping[str, float], *, at: float | None = None, is_counted: bool = False
    ) -> None:
        """Append the *values* of one step as one line; nan and infinities become text, which JSON lacks numbers for.

        *at* is when they were measured (unix seconds), by default now. *is_counted*: nobody said the step; the values
        of a name are numbered from 0, in each attempt anew.
        """
        pairs = []
        for name, value in values.items():
            # x - x is 0 for finite numbers alone
            text = repr(value) if type(value) is float and value - value == 0.0 else _number(value)
            pairs.append((self._encoded.get(name) or self._encode_name(name)) + text)
        counted = ',"counted":true' if is_counted else ""
        self._append(f'"k":"m","i":{step:d},"v":{{{",".join(pairs)}}}{counted}', at=at)

    def event(self, name: str, details: Mapping[str, Any] | None = None) -> None:
        """Append an event; details that JSON cannot hold are written as text."""
        self._append(_event_body(name, details or {}), is_synced=name in _SYNCED, is_event=True)

    def sync(self) -> None:
        """Write everything to the disk now (fdatasync)."""
        with self._lock:
            self._sync()

    def close(self, *, sync: bool = True) -> None:
        """Close the file, synced unless *sync* is False; later records are dropped.

        Where there is no room for what is left to be written, it is tried again for some seconds (*patience_s*).
        """
        with self._lock:
            if not self._closed:
                until = time.monotonic() + self._patience_s
                while not self._finish() and time.monotonic() < until:
                    time.sleep(_TRY_EVERY_S)
            self._closed = True
            self._dropped += len(self._kept)
            self._kept.clear()
            if self._fd is not None:
                if sync:
                    self._sync()
                self._close_file()

    def start_over_in_child(self) -> None:
        """Close the parent's file and begin a new one; runs by itself in every forked child."""
        if self._fd is not None:
            self._close_file()  # the child's copy of the descriptor; the parent's stays open
        self._closes = False  # a child may end without closing anything, as those of multiprocessing do
        self._begin_file()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin_file(self) -> None:
        # Reentrant: a signal handler may journal while its own thread is in the middle of a record.
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._path: str | None = None
        self._numbers = itertools.count()  # atomic, unlike `+= 1`: a signal handler must not use a number twice
        self._dropped = 0
        self._kept: list[bytes] = []  # events that there was no room for
        self._torn = False
        self._header_line = b""
        self._since_header = 0  # bytes; so many more make it worth repeating
        self._header_due = 0
        self._retry_at = 0.0
        self._sync_at = self._now() + _SYNC_EVERY_S

    def _append(self, body: str, *, is_synced: bool = False, is_event: bool = False, at: float | None = None) -> None:
        with self._lock:
            now = self._now()
            # What is lost uses up its number: a reader sees a hole, and behind it how many records fell in.
            line = _line(next(self._numbers), now - self._t0 if at is None else at - self._t0_unix, body)
            can_write = (self._fd is not None or self._ready()) and (not self._kept or self._write_kept())
            if not (can_write and self._put(line)):
                if is_event and not self._closed and len(self._kept) < _MOST_KEPT:
                    self._kept.append(line)
                else:
                    self._dropped += 1
                return
            if self._dropped:
                self._report_gap()
            if self._since_header >= _HEADER_EVERY_BYTES:
                self._repeat_header()
            if is_synced or now >= self._sync_at:
                self._sync()

    def _write_kept(self) -> bool:
        """Write the events that had to wait, in their order; return whether none is left."""
        while self._kept and self._put(self._kept[0]):
            del self._kept[0]
        return not self._kept

    def _report_gap(self) -> bool:
        line = self._line_now(_event_body("journal_gap", {"dropped": self._dropped}))
        if not self._put(line):
            return False
        self._dropped = 0
        return True

    def _finish(self) -> bool:
        """Write what is left before the file is closed; return whether all is written that can be."""
        if self._fd is None and not self._kept:
            return True
        if not (self._ready() and self._write_kept() and (not self._dropped or self._report_gap())):
            return False
        return not self._closes or self._put(self._line_now(_event_body(_CLOSED, {})))

    def _repeat_header(self) -> None:
        self._since_header, self._header_due = 0, _HEADER_EVERY_BYTES
        self._put(self._header_line)

    def _line_now(self, body: str) -> bytes:
        return _line(next(self._numbers), self._now() - self._t0, body)

    def _put(self, line: bytes) -> bool:
        try:
            self._since_header += _write_whole(self._fd, b"\n" + line if self._torn else line)
        except OSError as error:
            self._torn = True
            self._warn(f"cannot write {self._path}: {error}; records are being lost")
            return False
        self._torn = False
        return True

    def _ready(self) -> bool:
        if self._closed:
            self._warn(f"a record came after {self._path or self._dir} was closed and is lost")
            return False
        if self._fd is not None:
            return True
        if self._now() < self._retry_at:
            return False
        try:
            self._create()
        except OSError as error:
            self._retry_at = self._now() + _RETRY_EVERY_S
            self._warn(f"cannot create a journal in {self._dir}: {error}; records are being lost")
            return False
        return True

    def _create(self) -> None:
        host, pid = _host(), os.getpid()
        stem = os.path.join(self._dir, file_name_of(f"{self._attempt}-{host}-{pid}-{self._writer}"))
        path, count, has_made = stem + ".jsonl", 0, False
        while True:
            try:
                fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY, 0o600)
                break
            except FileExistsError:
                count += 1
                path = f"{stem}-{count}.jsonl"
            except FileNotFoundError:
                if has_made:  # a folder that disappears again and again
                    raise
                has_made = True
                os.makedirs(self._dir, mode=0o700, exist_ok=True)
        self._header_line = self._header(host, pid)
        try:
            _write_whole(fd, self._header_line)
        except OSError:
            os.close(fd)
            os.unlink(path)  # without its header nobody knows whose it is
            raise
        self._fd, self._path = fd, path

    def _header(self, host: str, pid: int) -> bytes:
        header = {
            "hpcml": FORMAT,
            "journal": os.urandom(16).hex(),
            "run": self._run,
            "attempt": self._attempt,
            "writer": self._writer,
            "host": host,
            "pid": pid,
            "t0": self._t0_unix,
            **({"closes": True} if self._closes else {}),
            "versions": {"python": sys.version.split()[0], "hpcml_client": VERSION},
        }
        return _checked(_ENCODE(header)[:-1])

    def _encode_name(self, name: str) -> str:
        if len(self._encoded) >= _CACHED_NAMES:
            self._encoded.clear()
        text = self._encoded[name] = json.dumps(name) + ":"
        return text

    def _sync(self) -> None:
        self._sync_at = self._now() + _SYNC_EVERY_S
        if self._fd is None:
            return
        if self._since_header > self._header_due:
            self._repeat_header()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._warn(f"cannot sync {self._path}: {error}; a crash of this node may lose records")

    def _close_file(self) -> None:
        assert self._fd is not None  # noqa: S101 - our own logic
        fd, self._fd = self._fd, None
        try:
            os.close(fd)
        except OSError as error:
            self._warn(f"cannot close {self._path}: {error}; its last records may be lost")

    def _warn(self, message: str) -> None:
        if self._warned:
            return
        self._warned = True
        try:
            sys.stderr.write(f"hpcml: {message}\n")
        except (OSError, ValueError, AttributeError):  # full, closed or None: there is nobody left to tell
            return


def file_name_of(text: str) -> str:
    """Return *text* with ``_`` for what names of files should not have, as in the names of journals."""
    return _UNSAFE.sub("_", text)


def _host() -> str:
    """Return the name of this machine; `socket`, which asks for it everywhere, takes a millisecond to load."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket

    return socket.gethostname()


_ours: weakref.WeakSet[JournalWriter] = weakref.WeakSet()  # of this process


def _start_over_in_child() -> None:
    for journal in list(_ours):
        journal.start_over_in_child()


# A hook rather than a look at the process id in each call: it also runs before the child has threads. One for all
# journals: none is ever taken away, and who submits ten thousand runs opens as many.
os.register_at_fork(after_in_child=_start_over_in_child)


def _line(number: int, t_s: float, body: str) -> bytes:
    return _checked(f'{{"s":{number},"t":{t_s:.6f},{body}')


def _checked(line: str) -> bytes:
    """Return *line*, which lacks its closing brace, with a CRC-32 by which readers notice damage."""
    data = line.encode("ascii")
    return b'%b,"c":%d}\n' % (data, crc32(data))


def _write_whole(fd: int | None, data: bytes) -> int:
    assert fd is not None  # noqa: S101 - our own logic
    written = os.write(fd, data)
    if written != len(data):
        raise OSError(f"only {written} of {len(data)} bytes were taken")
    return written


def _event_body(name: str, details: Mapping[str, Any]) -> str:
    plain = {str(key): _plain(value, _DEEPEST) for key, value in details.items()}
    return f'"k":"e","n":{json.dumps(name)},"d":{_ENCODE(plain)}'


def _number(value: float) -> str:
    number = float(value)  # NumPy's float64 is a float whose repr is no number
    if number - number == 0.0:
        return repr(number)
    return f'"{number!r}"'  # JSON has no nan and no infinity: "nan", "inf", "-inf"


def _plain(value: object, depth: int) -> object:
    """Return *value* as types that JSON has; *depth* is how many levels of nesting are left."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _LONGEST_INT_BITS else hex(value)
    if isinstance(value, float):
        number = float(value)
        return number if number - number == 0.0 else repr(number)
    if depth and isinstance(value, Mapping):
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [_plain(item, depth - 1) for item in value]
    return str(value)
