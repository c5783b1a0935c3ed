"""``hpcml show``: show everything recorded of one run."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("reference", metavar="RUN")
@form("json")
@pass_places
def show(places: Places, reference: str, form: str | None) -> None:
    """Show everything recorded of one run, given by its id, a unique end of it, or its name."""
    from hpcml.cli import terminal
    from hpcml.commands.show import show_run
    from hpcml.report import show as report

    shown = show_run(places, reference)
    run, events, word, code, timelines = shown.record, shown.events, shown.word, shown.code, shown.timelines
    if form == "json":
        say(report.run_details_json(run, events, word=word, code=code, timelines=timelines), nl=False)
    else:
        console = terminal.console()
        details = report.run_details(run, events, console=console, word=word, code=code, timelines=timelines)
        terminal.show(details)
