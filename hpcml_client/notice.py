"""The signals SIGUSR1 and SIGTERM, which ask a program to save a checkpoint and leave."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from typing import Any, Callable, Dict, Optional

_ASKING = (signal.SIGUSR1, signal.SIGTERM)  # its time is nearly over; it is being ended


class Notice:
    """Catches SIGUSR1 and SIGTERM from `listen` until `stop`, so that they no longer end the program."""

    def __init__(self, when_given: Optional[Callable[[], object]] = None) -> None:
        self.given = False
        self._when_given = when_given  # called in the signal handler
        self._before: Dict[int, Any] = {}  # by signal: the handler that was there

    def listen(self) -> None:
        """Install the handlers; raises `RuntimeError` outside of the main thread, where Python cannot."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("checkpoints must be asked for in the main thread: Python catches signals only there")
        for number in _ASKING:
            self._before[number] = signal.signal(number, self._note)
        os.register_at_fork(after_in_child=_weakly(self))

    def stop(self) -> None:
        """Restore the previous handlers, unless others were installed since."""
        if threading.current_thread() is not threading.main_thread():
            return  # a client closed by another thread: the program is about to end
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
        self._before = {}

    def ignore(self) -> None:
        """Ignore both signals from now on: while Python ends it restores the defaults, and a signal would kill it."""
        if threading.current_thread() is threading.main_thread():
            for number in self._before:
                signal.signal(number, signal.SIG_IGN)

    def let_go_in_child(self) -> None:
        """Restore SIGTERM and ignore SIGUSR1; runs by itself in every forked child.

        A data loader's worker that inherited the handlers could not be ended by its parent, and has nothing to save.
        """
        self.stop()
        if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _note(self, number: int, frame: object) -> None:
        self.given = True
        if self._when_given is not None:
            self._when_given()
        before = self._before.get(number)
        if callable(before):
            before(number, frame)


def _weakly(notice: Notice) -> Callable[[], None]:
    reference = weakref.ref(notice)

    def let_go() -> None:
        alive = reference()
        if alive is not None:
            alive.let_go_in_child()

    return let_go
