"""The signals that the agent receives, kept in order until its loop takes them."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})  # each asks to end
_CAUGHT = (*sorted(ENDING), signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


class Inbox:
    """The signals sent to this process, in order of arrival; a pipe wakes up whoever waits for one."""

    def __init__(self) -> None:
        self._received: list[signal.Signals] = []
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals of schedulers and users within the block; also wake up when a child process ends.

        At the end the previous handlers are restored. To be used in the main thread (signal(7), Python's `signal`).
        """
        before = {number: signal.signal(number, self._note) for number in _CAUGHT}
        wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._reader)
            os.close(self._writer)

    def wait(self, timeout_s: float) -> list[signal.Signals]:
        """Wait for at most *timeout_s* seconds; return the signals that arrived since the last call, perhaps none."""
        if not self._received:
            select.select([self._reader], [], [], max(0.0, timeout_s))
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            pass
        arrived, self._received = self._received, []
        return arrived

    def asks_to_end(self) -> bool:
        """Tell whether SIGTERM, SIGINT or SIGHUP has arrived, without taking it out."""
        return any(number in ENDING for number in self._received)

    def _note(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._received.append(signal.Signals(number))
