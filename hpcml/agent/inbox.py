"""The signals that reach this process, kept in their order for whoever asks next."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})  # each asks to end
_CAUGHT = (*sorted(ENDING), signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


class Inbox:
    """Signals sent to this process, in the order they came; a socket wakes whoever waits."""

    def __init__(self) -> None:
        self._received: list[signal.Signals] = []
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.settimeout(0)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch what a scheduler or a user may send, and wake up when a child ends, until the block is left."""
        before = {number: signal.signal(number, self._note) for number in _CAUGHT}
        wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._reader.close()
            self._writer.close()

    def wait(self, timeout_s: float) -> list[signal.Signals]:
        """Return what arrived within *timeout_s*, as soon as something did."""
        if not self._received:
            select.select([self._reader], [], [], max(0.0, timeout_s))
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass
        arrived, self._received = self._received, []
        return arrived

    def asks_to_end(self) -> bool:
        """Tell whether a signal that asks to end has arrived, without taking it out."""
        return any(number in ENDING for number in self._received)

    def _note(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._received.append(signal.Signals(number))
