"""``hpcml show``: show everything recorded of one run."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import form
from hpcml.cli.say import say
from hpcml.paths import Places


@click.command()
@click.argument("reference", metavar="RUN")
@click.option("--all", "is_all", is_flag=True, help="Also all settings with their defaults, facts and events.")
@form("json")
@pass_places
def show(places: Places, reference: str, *, is_all: bool, form: str | None) -> None:
    """Show what was asked of one run, its result and its end; --all shows everything recorded of it.

    RUN is an id, a unique end of one, a name, @1 for the newest run or @-1 for the last submission, if it is one run.
    """
    _show(places, reference, is_all=is_all, form=form)


@click.command()
@click.option("--all", "is_all", is_flag=True, help="Also all settings with their defaults, facts and events.")
@form("json")
@pass_places
def last(places: Places, *, is_all: bool, form: str | None) -> None:
    """Show the newest run, as `hpcml show @1` does."""
    _show(places, "@1", is_all=is_all, form=form)


def _show(places: Places, reference: str, *, is_all: bool, form: str | None) -> None:
    from hpcml.cli import terminal
    from hpcml.commands.show import show_run
    from hpcml.report import show as report
    from hpcml.report.show import Asked

    shown = show_run(places, reference)
    run, events, word, code, timelines = shown.record, shown.events, shown.word, shown.code, shown.timelines
    if form == "json":
        say(report.run_details_json(run, events, word=word, code=code, timelines=timelines), nl=False)
    else:
        console = terminal.console()
        details = report.run_details(
            run,
            events,
            console=console,
            word=word,
            timelines=timelines,
            asked=Asked(overrides=shown.overrides, argv=shown.argv, code=code, image=shown.image),
            is_all=is_all,
        )
        terminal.show(details)
