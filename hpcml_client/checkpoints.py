"""Checkpoints of a program: when one is due, written whole or not at all, and found again by the next attempt.

checkpoints = run.checkpoints(every_s=1800)
saved = checkpoints.latest()
start = restore(saved.path, saved.step) if saved else 0
for step in range(start + 1, steps + 1):
    train(step)
    checkpoints.after(step, save_to)  # save_to(path) writes a file, or a directory, there
checkpoints.clear()
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

from hpcml_client.checkpoint_files import CheckpointFiles

EX_TEMPFAIL = 75  # of sysexits.h: "I left at a checkpoint, start me again"
_ASKING = (signal.SIGUSR1, signal.SIGTERM)  # its time is nearly over; it is being ended
_AGAIN_AFTER_S = 10.0  # a disk that was full a moment ago is not tried at every step


class Saved(NamedTuple):
    """A complete checkpoint: its file or directory, and the last step that is in it."""

    path: str
    step: int

    def __fspath__(self) -> str:
        return self.path


class Reporting(Protocol):
    """What checkpoints tell of themselves, and to whom: `Client` does all of it."""

    def event(self, name: str, /, **details: object) -> None:
        """Report an event with details."""

    def relative(self, name: str) -> str:
        """Return the path *name* as the journal has it."""

    def sync(self) -> None:
        """Write everything that was reported to the disk now."""

    def close(self) -> None:
        """Write everything to the disk, and restore the signal handlers."""


class Checkpoints:
    """The checkpoints of one run; made by `Client.checkpoints`.

    While it is open, SIGUSR1 (the time is nearly over) and SIGTERM (the run is being ended) no longer end the program:
    they make `asked` true. Without a folder to write to it is off: no signal is caught, `asked` and `due` stay false,
    nothing is saved.
    """

    def __init__(
        self,
        client: Reporting,
        files: CheckpointFiles | None,
        *,
        every_steps: int | None = None,
        every_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("every_steps", every_steps), ("every_s", every_s)):
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value!r} must be greater than 0, or None for never")
        self._client = client
        self._files = files
        self._every_steps = every_steps
        self._every_s = every_s
        self._now = now
        self._tried_at = now()
        self._not_before = self._tried_at
        self._answered = False
        self._said = False
        self._notice = _Notice(client.sync)  # the program may not live much longer
        if files is not None:
            self._notice.listen()

    @property
    def directory(self) -> str | None:
        """The folder of the checkpoints; None where they are off."""
        return self._files.directory if self._files else None

    @property
    def asked(self) -> bool:
        """Whether a signal has asked this process to save and leave; it stays true."""
        return self._notice.given

    def due(self, step: int) -> bool:
        """Whether to save after *step*: a signal asked for it, or ``every_steps`` or ``every_s`` says so."""
        if self._files is None:
            return False
        if self.asked:
            return True
        if self._every_steps is not None and step > 0 and step % self._every_steps == 0:
            return True
        return self._every_s is not None and self._now() - self._tried_at >= self._every_s

    def save(self, step: int, write: Callable[[str], object]) -> bool:
        """Save the state after *step*: *write* is called with a path, at which it makes a file or a directory.

        Only what was written whole, and is on the disk, is ever seen as a checkpoint. Returns whether it is there; a
        process that keeps none (every rank but 0, unless sharded) returns True and does not call *write*. An `OSError`
        or `RuntimeError` (which torch raises for a full disk) is journalled as ``checkpoint_failed`` and printed once
        on stderr: the checkpoint before is kept and False is returned, for the next ten seconds without trying. Any
        other exception of *write* is raised.
        """
        if self._files is None:
            return False
        asked = self.asked  # before writing: what is asked for meanwhile has to be answered by the next one
        began = self._now()
        if began < self._not_before:
            return False
        self._tried_at = began
        if self._files.writes and not self._try_to_save(step, write, began):
            return False
        self._answered = self._answered or asked
        return True

    def latest(self) -> Saved | None:
        """Return the newest complete checkpoint of this run, of whichever attempt; None where there is none.

        Call it before the first step, and before ranks exchange messages, so that all find the same.
        """
        found = self._files.newest() if self._files else None
        return Saved(*found) if found else None

    def leave(self) -> NoReturn:
        """Close the journal and end the program with status 75 (EX_TEMPFAIL of sysexits.h): "start me again"."""
        self._notice.ignore()  # a second signal must not turn status 75 into a death by signal
        self._client.close()
        raise SystemExit(EX_TEMPFAIL)

    def leave_if_asked(self) -> None:
        """Leave if a signal asked for it and a checkpoint was saved since; without one, going on loses less."""
        if self.asked and self._answered:
            self.leave()

    def after(self, step: int, write: Callable[[str], object]) -> None:
        """Save if that is due after *step*, then leave if that was asked for. For programs of one process."""
        if self.due(step):
            self.save(step, write)
            self.leave_if_asked()

    def clear(self) -> None:
        """Delete all checkpoints when the work is done; a run that is started again then begins from step 0."""
        if self._files is not None and self._files.writes:
            self._files.clear()

    def close(self) -> None:
        """Restore the signal handlers; done by `Client.close`, after which signals end the program again."""
        self._notice.stop()

    def _try_to_save(self, step: int, write: Callable[[str], object], began: float) -> bool:
        assert self._files is not None  # noqa: S101 - our own logic
        try:
            path, size = self._files.write(step, write)
        except (OSError, RuntimeError) as error:
            self._failed(step, error)
            return False
        took_s = round(self._now() - began, 6)
        self._client.event("checkpoint", path=self._client.relative(path), step=step, bytes=size, wall_s=took_s)
        self._files.prune(step)
        return True

    def _failed(self, step: int, error: Exception) -> None:
        self._not_before = self._now() + _AGAIN_AFTER_S
        reason = f"{type(error).__name__}: {error}"
        self._client.event("checkpoint_failed", step=step, reason=reason)
        if not self._said:
            self._said = True
            _say(
                f"no checkpoint was saved after step {step}: {reason}; the one before is kept, and the program goes on"
            )


def _say(message: str) -> None:
    """Print *message* on stderr, if there is one."""
    try:
        sys.stderr.write(f"hpcml: {message}\n")
    except (OSError, ValueError, AttributeError):  # full, closed or None: there is nobody left to tell
        return


class _Notice:
    """Catches SIGUSR1 and SIGTERM from `listen` until `stop`, so that they no longer end the program."""

    def __init__(self, when_given: Callable[[], object] | None = None) -> None:
        self.given = False
        self._when_given = when_given  # called in the signal handler
        self._before: dict[int, Any] = {}  # by signal: the handler that was there

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


def _weakly(notice: _Notice) -> Callable[[], None]:
    reference = weakref.ref(notice)

    def let_go() -> None:
        alive = reference()
        if alive is not None:
            alive.let_go_in_child()

    return let_go
