"""Options that several commands share: which runs, and in which form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


def selecting(command: Command) -> Command:
    """Add ``--experiment``, ``--state`` and ``--where``."""
    for option in (
        click.option(
            "--where", multiple=True, metavar="COND", help="precision=tf32, val_accuracy>0.9, model~cnn; repeat."
        ),
        click.option(
            "--state", "states", multiple=True, metavar="STATE", help="COMPLETED, FAILED, ...; may be repeated."
        ),
        click.option("--experiment", metavar="NAME", help="Only runs of this experiment."),
    ):
        command = option(command)
    return command


def form(*choices: str) -> Callable[[Command], Command]:
    """Add a flag for each output form; the command gets `form`, None for the terminal's."""

    def decorate(command: Command) -> Command:
        for choice in reversed(choices):
            text = {"json": "JSON, with stable keys.", "csv": "CSV.", "md": "Markdown."}[choice]
            command = click.option(f"--{choice}", "form", flag_value=choice, help=text)(command)
        return command

    return decorate
