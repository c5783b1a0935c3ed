"""Words for the terminal; the only place that prints text, so that nothing that others wrote is obeyed by it.

What rich draws goes through `cli.terminal`, and is made safe where it is made (`hpcml.report`); what programs printed
goes through `report.printed`.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import click

from hpcml.report.text import safe, safe_lines, shortened


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print *text*, of one line or more, with its control characters spelt out; *err* prints it to stderr."""
    click.echo(safe_lines(str(text)), err=err, nl=nl)


def complain(problem: object, *below: object) -> None:
    """Print *problem* to stderr as one line of hpcml's, and each of *below* as one; words too long to read are cut."""
    lines = (safe(shortened(str(line))) for line in (problem, *below))
    click.echo("hpcml: " + "\n".join(lines), err=True)


def say_written(files: Sequence[Path], *, then: str) -> None:
    """Say which files were written, and what to type next."""
    for path in files:
        say(f"wrote {os.path.relpath(path)}")
    say(f"then: {then}")


def pass_on(text: str) -> None:
    """Print a script or a definition: to a file or a program as it is, byte by byte, to a terminal as `say` does."""
    click.echo(safe_lines(text) if sys.stdout.isatty() else text, nl=False)


@contextmanager
def saying_what_is_printed() -> Iterator[None]:
    """Print what Hydra, or any other library, prints to stdout in the meantime as `say` does."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        say(printed.getvalue(), nl=False)


class SafeFormatter(logging.Formatter):
    """A log's line with its control characters spelt out."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and a traceback below it where there is one."""
        return safe_lines(super().format(record))
