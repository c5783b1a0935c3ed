"""The display of `hpcml status --watch`: one table, drawn anew on a terminal; elsewhere a line for each change."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from hpcml.cli.hints import warn
from hpcml.cli.terminal import console as terminal
from hpcml.operations.backends import Backends
from hpcml.operations.collect import opened
from hpcml.operations.standing import Standing
from hpcml.operations.wait import Waiting, watch
from hpcml.places import Places
from hpcml.report import standing_table as report
from hpcml.report.plain_text import safe
from hpcml.states import State

_INTERRUPTED = 130


def watch_to_the_end(places: Places, references: Sequence[str], backends: Backends, interval_s: float) -> int:
    """Show where the runs stand until all have ended; return 0 if all completed, 1 if not, 130 after Ctrl-C."""
    console = terminal()
    last: list[Standing] = []
    try:
        with opened(places) as store:
            waiting = Waiting(store=store, places=places, backends=backends, interval_s=interval_s)
            if console.is_terminal:
                with Live(console=console, auto_refresh=False, transient=False) as live:
                    for last, notes in watch(waiting, references):
                        live.update(_drawing(last, notes, live), refresh=True)
            else:
                last = _tell_changes(waiting, references)
    except KeyboardInterrupt:
        click.echo("\nhpcml: stopped watching; the runs go on: hpcml status --watch comes back to them", err=True)
        return _INTERRUPTED
    if not last:
        click.echo("no run is waiting or running", err=True)
    return int(any(one.record.state is not State.COMPLETED for one in last))


def _drawing(standings: Sequence[Standing], notes: Sequence[str], live: Live) -> RenderableType:
    # what does not fit would scroll away at every redrawing: those that run and those that ended last stay
    room = max(3, live.console.height - 4 - len(notes))
    ordered = sorted(standings, key=lambda one: one.record.state.is_final)
    shown, hidden = ordered[:room], len(ordered) - room
    table = report.standing_table(_rows(shown), console=live.console, now=time.time())
    more = [Text(f"... and {hidden} more", style="dim")] if hidden > 0 else []
    return Group(table, *more, *(Text(safe(note), style="yellow") for note in notes))


def _tell_changes(waiting: Waiting, references: Sequence[str]) -> list[Standing]:
    standings: list[Standing] = []
    told: dict[str, str] = {}
    told_notes: set[str] = set()
    for standings, notes in watch(waiting, references):
        for note in notes:
            kind = note.partition(";")[0]
            if kind not in told_notes:
                told_notes.add(kind)
                warn(note)
        for one in standings:
            line = report.standing_line(one.record, one.known)
            if told.get(one.record.uid) != line:
                told[one.record.uid] = line
                click.echo(line)
    return standings


def _rows(standings: Sequence[Standing]) -> list[report.Row]:
    return [report.Row(record=one.record, word=one.known, said_at=one.said_at) for one in standings]
