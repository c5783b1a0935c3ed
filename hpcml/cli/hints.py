"""Lines on stderr beside an answer: warnings, and what else the user should know."""

from __future__ import annotations

import click

from hpcml.places import Places


def warn(text: str) -> None:
    """Say that something is not as it should be, though the command goes on."""
    click.echo(f"hpcml: warning: {text}", err=True)


def say_interrupted(places: Places) -> None:
    """Say that a submission died half-way, if one did."""
    import time

    from hpcml.operations import intent  # and not recover, which would load Hydra

    count = len(intent.interrupted(places.open_submissions, now=time.time()))
    if count:
        what = "a submission was" if count == 1 else f"{count} submissions were"
        click.echo(f"hpcml: {what} interrupted: hpcml sync finishes what is missing", err=True)
