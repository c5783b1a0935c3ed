"""Options that several commands share: which runs, and in which form."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

Command = Callable[..., Any]
_FORMS = {"json": "JSON, with stable keys.", "csv": "CSV.", "md": "Markdown.", "latex": "Tables for LaTeX."}
_FLAG = "as_{}"  # a parameter for each: with a common one, click would silently keep the last of two flags


def selecting(command: Command) -> Command:
    """Add ``--experiment``, ``--state``, ``--where`` and ``--submission``."""
    for option in (
        click.option("--submission", metavar="ID", help="Only runs that were submitted together."),
        click.option(
            "--where",
            multiple=True,
            metavar="COND",
            help="'precision=tf32 and (val_accuracy>0.9 or tag=paper)'; of several all hold.",
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
        @wraps(command)
        def with_form(*words: object, **options: Any) -> object:  # noqa: ANN401 - click's own types
            wanted = [choice for choice in choices if options.pop(_FLAG.format(choice))]
            if len(wanted) > 1:
                raise click.UsageError(
                    f"{' and '.join(f'--{choice}' for choice in wanted)} exclude each other: give one"
                )
            return command(*words, form=next(iter(wanted), None), **options)

        chosen: Command = with_form
        for choice in reversed(choices):
            chosen = click.option(f"--{choice}", _FLAG.format(choice), is_flag=True, help=_FORMS[choice])(chosen)
        return chosen

    return decorate
