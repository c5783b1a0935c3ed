"""What every backend is asked to do by the conformance tests: a `Site` for each, and what it says that it cannot.

The next scheduler gets a `Site` in `sites.py`; the tests are there already. A site has two nodes, and its programs, or
a double of them, are on PATH.
"""

from __future__ import annotations

import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from hpcml.runs.state import read_fold
from hpcml.schedulers.contract import Answers, Known, Ticket

PATIENCE_S = 300.0
T = TypeVar("T")


@dataclass(frozen=True)
class Given:
    """A run that was submitted: its ticket, and its directory."""

    ticket: Ticket
    path: Path


@dataclass
class Site(ABC):
    """One scheduler, real or a double, as the tests use it."""

    name: str
    folder: Path  # the user's own, which the nodes see
    python: str
    refuses: Mapping[str, str] = field(default_factory=dict)  # what it has no word for, and how it says so
    refuses_when_asked: Mapping[str, str] = field(default_factory=dict)  # what the scheduler itself turns down
    for_two_nodes: Sequence[str] = ()  # what a job on two nodes needs besides
    remembers: bool = True  # it knows jobs that have ended

    @abstractmethod
    def submit(self, commands: Sequence[str], *overrides: str) -> list[Given]:
        """Submit a run for each command, together."""

    @abstractmethod
    def submit_again(self, given: Given) -> Ticket:
        """Submit the script of a run once more, as by hand."""

    @abstractmethod
    def find_before_and_after(self, command: str) -> tuple[list[Ticket] | None, list[Ticket], list[Ticket] | None]:
        """Look for a submission before and after it is made."""

    @abstractmethod
    def query(self, tickets: Collection[Ticket], *, patience_s: float = 60.0) -> Answers:
        """Ask for the jobs."""

    @abstractmethod
    def cancel(self, givens: Sequence[Given], *, patience_s: float = 60.0) -> None:
        """Take the jobs out of the queue, or end them."""

    @abstractmethod
    def preview(self, *overrides: str) -> str:
        """Return the script of a run with *overrides*, which is not submitted."""

    def tell(self, given: Given, signal: str) -> None:
        """Have the scheduler send a signal to the job."""
        raise NotImplementedError

    def change_walltime(self, given: Given, minutes: int) -> None:
        """Have the scheduler change how long the job may run."""
        raise NotImplementedError

    def closed(self) -> AbstractContextManager[None]:
        """Nothing starts in here."""
        raise NotImplementedError

    def troubled(self, what: str) -> AbstractContextManager[None]:
        """In here the server is down, or hung, or loses answers, or its site prints banners."""
        raise NotImplementedError

    def submissions_made(self) -> int | None:
        """Return how many jobs were queued so far; None where that is not counted."""
        return None

    def program(self, text: str) -> str:
        """Return the command that runs *text*, lines of bash, in the job."""
        place = self.folder / f"program-{len(list(self.folder.glob('program-*')))}.sh"
        place.write_text(f"{text}\n", encoding="utf-8")
        place.chmod(0o755)
        return f"bash {shlex.quote(str(place))}"

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def until_gate(self, then: str = "") -> str:
        """Return a program that waits for the gate, for however slow this machine is."""
        return self.program(f"until [ -e {shlex.quote(str(self.gate))} ]; do sleep 0.1; done\n{then}")

    def open_gate(self) -> None:
        self.gate.touch()

    # what is waited for

    def until_known(self, given: Given, holds: Callable[[Known], bool]) -> Known:
        """Ask until *holds* of what the scheduler says."""

        def look() -> Known | None:
            known = self.query([given.ticket]).known.get(given.ticket)
            return known if known is not None and holds(known) else None

        return until(look, lambda: f"{self.name}: {self.query([given.ticket])}")

    def until_over(self, given: Given) -> State:
        """Wait until the scheduler is through with the job; return how the run ended, by its journals or its word."""
        if self.remembers:
            known = self.until_known(given, lambda known: known.state.is_final)
            return state_of(given.path) or known.state
        return until(lambda: state_of(given.path), lambda: str(read_fold(RunDir(given.path))))


def until(look: Callable[[], T | None], what: Callable[[], str]) -> T:
    """Return what *look* returns once it is something."""
    end = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < end, what()
        time.sleep(0.2)
    return found


def state_of(path: Path) -> State | None:
    """Return how the last attempt of the run ended by its journals; None where it goes on or never began."""
    attempts = [one for one in read_fold(RunDir(path)) if one.starts]
    return attempts[-1].state if attempts and attempts[-1].has_ended else None


def n_attempts(path: Path) -> int:
    return sum(bool(attempt.starts) for attempt in read_fold(RunDir(path)))


def printed(given: Given, attempt: int = 0, rank: int = 0) -> str:
    place = RunDir(given.path).stdout(attempt, rank)
    return place.read_text() if place.exists() else ""


def until_printed(given: Given, word: str, attempt: int = 0, rank: int = 0) -> str:
    return until(
        lambda: text if word in (text := printed(given, attempt, rank)) else None,
        lambda: f"no {word!r} in {sorted(given.path.rglob('*'))}",
    )
