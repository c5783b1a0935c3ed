"""``hpcml store``: say where the store is; check it, back it up, make it small."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from hpcml.cli.options import CommandGroup, form
from hpcml.cli.say import say
from hpcml.paths import Places


@click.group(cls=CommandGroup, invoke_without_command=True)
@form("json")
@click.pass_context
def store(context: click.Context, form: str | None) -> None:
    """Say where the experiment store is, how it is used there and how much is in it."""
    places = context.find_object(Places)
    assert places is not None
    context.obj = places
    if context.invoked_subcommand is None:
        from hpcml.commands import store as upkeep
        from hpcml.report import store as report

        kept = upkeep.look(places)
        if form == "json":
            say(report.kept_json(kept), nl=False)
        else:
            _tell(report.kept_lines(kept))


@store.command()
@click.pass_obj
def check(places: Places) -> int:
    """Look for damage, also of runs, and for contradictions in it or with a journal; exit code 1 if there is any."""
    from hpcml.commands import store as upkeep
    from hpcml.report import store as report

    found = upkeep.check(places)
    _tell(report.check_lines(found))
    return 1 if found.faults or found.unreadable else 0


@store.command()
@click.pass_obj
def vacuum(places: Places) -> None:
    """Give back what is free in the file."""
    from hpcml.commands import store as upkeep
    from hpcml.report import store as report

    _tell(report.rewritten_lines(upkeep.vacuum(places)))


@store.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.pass_obj
def backup(places: Places, file: Path | None) -> None:
    """Copy the store, while it is in use, into FILE or a file beside it."""
    from hpcml.commands import store as upkeep
    from hpcml.report.text import size

    written, count = upkeep.back_up(places, file)
    say(f"wrote {written}: {size(count)}")


@store.command()
@click.pass_obj
def compact(places: Places) -> None:
    """Make the store as small as it can be; no value is lost, and all backups but the newest go."""
    from hpcml.commands import store as upkeep
    from hpcml.report import store as report

    _tell(report.rewritten_lines(upkeep.compact(places)))


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)
