"""What a run waits for: the clauses of `resources.dependency`, and whether the runs that they name have come so far.

A clause is a word of the schedulers and what it is about, as in ``afterok:20261121-083015-222abcde``: runs of hpcml, by
their whole ids once they have been submitted, or jobs of a scheduler, which alone knows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from hpcml.runs.state import read_fold

WORDS = ("after", "afterany", "afterok", "afternotok")  # that runs of hpcml can be named with


class Outlook(Enum):
    """Whether what is waited for has happened."""

    MET = "met"
    OPEN = "open"
    NEVER = "never"  # as things stand: a retry of the run that was waited for may change that


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One clause: *names* are runs or jobs, empty for a word that stands alone (Slurm's singleton)."""

    word: str
    names: Sequence[str]

    def __str__(self) -> str:
        return ":".join([self.word, *self.names])


def clauses_of(text: str) -> list[Clause]:
    """Return the clauses of *text*, all of which have to come true.

    >>> [str(clause) for clause in clauses_of("afterok:a:b,singleton")]
    ['afterok:a:b', 'singleton']
    """
    parts = [part.strip().split(":") for part in text.split(",")]
    return [Clause(word=word, names=names) for word, *names in parts]


def outlook(word: str, state: State, *, is_over: bool) -> Outlook:
    """Return what *word* makes of a run that is in *state*; *is_over*: it has ended, and is not being queued again."""
    if word == "after":
        return Outlook.OPEN if state is State.PENDING else Outlook.MET
    if not is_over:
        return Outlook.OPEN
    wanted = {"afterok": state is State.COMPLETED, "afternotok": state is not State.COMPLETED}.get(word, True)
    return Outlook.MET if wanted else Outlook.NEVER


def waited_for(text: str | None, runs: Path) -> Iterator[tuple[str, RunDir]]:
    """Yield the runs below *runs* that the dependency *text* names, each with its word; jobs are left out."""
    for clause in clauses_of(text or ""):
        for name in clause.names if clause.word in WORDS else ():
            found = next(runs.glob(f"*/{name}/"), None)
            if found is not None:
                yield clause.word, RunDir(found)


def look(text: str | None, runs: Path) -> tuple[Outlook, str | None]:
    """Return how the dependency *text* stands by the journals below *runs*, and for NEVER why, in words.

    A run that is not there any more is not waited for.
    """
    outlooks = [Outlook.MET]
    for word, run_dir in waited_for(text, runs):
        told = read_fold(run_dir)
        is_over = told.state.is_final and told.is_settled and not told.may_go_on
        found = outlook(word, told.state, is_over=is_over)
        if found is Outlook.NEVER:
            return found, never(word, run_dir.uid, told.state)
        outlooks.append(found)
    return (Outlook.OPEN if Outlook.OPEN in outlooks else Outlook.MET), None


def never(word: str, uid: str, state: State) -> str:
    """Say why a dependency cannot come true."""
    return f"it waits for run {uid} ({word}), which is {state.value}"
