"""Printing to the terminal, or to a pipe in its place: tables, questions, and lines on stderr."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console, RenderableType
from rich.live import Live

from hpcml.cli.say import complain
from hpcml.errors import ConfigError
from hpcml.paths import Places
from hpcml.report.text import safe_lines

_PIPE_WIDTH = 240  # a pipe has no width: wide enough that no table folds


def ask(question: str) -> str | None:
    """Return the answer typed to *question*; None where nobody is there to type one."""
    if not _is_somebody_here():
        return None
    answer = click.prompt(safe_lines(question), default="", show_default=False, err=True)
    return str(answer).strip() or None


def confirm(question: str, *, otherwise: str) -> bool:
    """Return whether the user says yes to *question*; where nobody can be asked, raise, with what to do *otherwise*."""
    if not _is_somebody_here():
        raise ConfigError(f"{question} There is nobody here to ask: {otherwise}")
    return click.confirm(safe_lines(question), default=False, err=True)


def _is_somebody_here() -> bool:
    return all(end is not None and end.isatty() for end in (sys.stdin, sys.stderr))  # None: closed, as by <&-


def console() -> Console:
    """Return where tables go: as wide as the terminal; colour and boxes only on one (NO_COLOR is honoured by rich)."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    if "COLUMNS" in os.environ and not os.environ["COLUMNS"].strip("0"):  # a terminal did not tell its width
        width = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns
    return Console(width=width, highlight=False)


def show(renderable: RenderableType) -> None:
    """Print *renderable*; what goes into a file or a pipe is not filled up with blanks to the right."""
    screen = console()
    if sys.stdout.isatty():
        screen.print(renderable)
        return
    with screen.capture() as capture:
        screen.print(renderable)
    text = "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())
    click.echo(text, nl=False, color=True)  # if there is colour in it, rich was asked for it (FORCE_COLOR)


@contextmanager
def redrawn(screen: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that draws in place of what it drew before; rich ends what does not fit with an ellipsis."""
    with Live(console=screen, auto_refresh=False, transient=False) as live:
        yield lambda drawn: live.update(drawn, refresh=True)


# Lines on stderr beside an answer.


def warn(text: str) -> None:
    """Say that something is not as it should be, though the command goes on."""
    complain(f"warning: {text}")


def say_remarks(remarks: Sequence[str]) -> None:
    """Warn of what looks like a mistake in the words of a command; what they sweep is no mistake."""
    from hpcml.config.program import SWEEP

    for remark in remarks:
        (complain if remark.startswith(SWEEP) else warn)(remark)


def say_interrupted(places: Places) -> None:
    """Say that a submission died half-way, if one did."""
    import time

    from hpcml.commands.submit import submission  # and not recover, which would load Hydra

    count = len(submission.interrupted(places.open_submissions, now=time.time()))
    if count:
        what = "a submission was" if count == 1 else f"{count} submissions were"
        complain(f"{what} interrupted: hpcml sync finishes what is missing")
