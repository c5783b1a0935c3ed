"""``hpcml ui``: look through the store in a browser, with Datasette."""

from __future__ import annotations

import click

from hpcml.cli.main import pass_places
from hpcml.cli.options import WholeNumber
from hpcml.paths import Places


@click.command()
@click.option("--port", type=WholeNumber(0, 65535), default=8001, show_default=True, help="0: any that is free.")
@click.option("--open", "is_opening", is_flag=True, help="Open it in this machine's browser.")
@pass_places
def ui(places: Places, /, port: int, is_opening: bool) -> int:  # noqa: FBT001 - click's flag
    """Look through the store in a browser, with Datasette: the runs as they are now, until Ctrl-C."""
    from hpcml.commands import ui as browse

    return browse.serve(places, port=port, is_opening=is_opening)
