"""``hpcml ingest``: read run directories that lie elsewhere, now and from now on."""

from __future__ import annotations

from pathlib import Path

import click

from hpcml.cli.main import pass_places
from hpcml.cli.say import complain, say
from hpcml.paths import Places


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--forget", "is_forgotten", is_flag=True, help="Read these folders no more, and drop their runs.")
@pass_places
def ingest(places: Places, paths: tuple[str, ...], is_forgotten: bool) -> None:  # noqa: FBT001 - click's way
    """Read run directories from elsewhere, now and from now on; they stay there. Without a PATH: list these folders."""
    from hpcml.commands import external_runs
    from hpcml.commands import ingest as adoption

    if not paths:
        if is_forgotten:
            raise click.UsageError("--forget which? hpcml ingest lists the folders that were given")
        folders = external_runs.folders(places)
        for folder in folders:
            say(folder)
        if not folders:
            complain("no folders were given yet: hpcml ingest PATH reads the runs in one")
        return
    if is_forgotten:
        for path in paths:
            say(f"{path}: read no more; {adoption.disown(places, Path(path))} runs taken out of the store")
        return
    found, report = adoption.adopt(places, [Path(path) for path in paths])
    for given in found:
        say(f"{given.folder}: {given.runs} runs{'' if given.is_new else ', read already'}")
    say(f"{report.new_points} new points")
    for problem in report.problems:
        complain(problem)
