"""``hpcml status``: ask the schedulers where the runs stand."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from hpcml.cli.options import form, pass_places, print_output, selecting
from hpcml.cli.say import say
from hpcml.cli.terminal import console, say_interrupted, warn
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.report import status as report
from hpcml.report.render.forms import document_output
from hpcml.report.render.terminal import as_renderable
from hpcml.report.text import safe

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection
    from hpcml.commands.status import Standing
    from hpcml.commands.submit.backends import Backends

_INTERRUPTED = 130


@click.command()
@selecting
@click.option("--watch", "is_watched", is_flag=True, help="Go on until all have ended; Ctrl-C leaves the runs alone.")
@form("json")
@pass_places
def status(places: Places, /, *, is_watched: bool, form: str | None, selection: Selection) -> int:
    """Say where runs stand: those named or selected, or all that have not ended. Schedulers are asked once a minute."""
    from hpcml.commands.status import poll_interval_s, standings
    from hpcml.commands.submit.backends import Backends

    if is_watched and form is not None:
        raise click.UsageError("--watch is for people: leave out --json, or ask again and again without --watch")
    interval_s = poll_interval_s(os.environ)
    backends = Backends.here(places, os.environ)
    if is_watched:
        return watch_to_the_end(places, selection, backends, interval_s)
    found, problems = standings(places, selection, backends, interval_s)
    for line in problems:
        warn(line)
    rows = [report.StandingRow(record=one.record, word=one.known, said_at=one.said_at) for one in found]
    none = "no run is waiting or running" if selection.is_empty else "no runs match"
    document = report.standing_document(rows, now=time.time())
    code = print_output(document_output(document, remark=None if rows else none), form)
    say_interrupted(places)
    return code


def watch_to_the_end(places: Places, selection: Selection, backends: Backends, interval_s: float) -> int:
    """Show where the runs stand until all have ended; return 0 if all completed, 1 if not, 130 after Ctrl-C."""
    from hpcml.commands.collect import opened
    from hpcml.commands.wait import Waiting, watch  # loads Hydra, which status alone does without

    screen = console()
    last: list[Standing] = []
    try:
        with opened(places) as store:
            waiting = Waiting(store=store, places=places, backends=backends, interval_s=interval_s)
            if screen.is_terminal:
                with Live(console=screen, auto_refresh=False, transient=False) as live:
                    for last, notes in watch(waiting, selection):
                        live.update(_drawing(last, notes, live), refresh=True)
            else:
                last = _tell_changes(watch(waiting, selection))
    except KeyboardInterrupt:
        say("\nhpcml: stopped watching; the runs go on: hpcml status --watch comes back to them", err=True)
        return _INTERRUPTED
    if not last:
        say("no run is waiting or running" if selection.is_empty else "no runs match", err=True)
    return int(any(one.record.state is not State.COMPLETED for one in last))


def _drawing(standings: Sequence[Standing], notes: Sequence[str], live: Live) -> RenderableType:
    # what does not fit would scroll away at every redrawing: those that run and those that ended last stay
    room = max(3, live.console.height - 4 - len(notes))
    ordered = sorted(standings, key=lambda one: one.record.state.is_final)
    shown, hidden = ordered[:room], len(ordered) - room
    table = as_renderable(report.standing_document(_rows(shown), now=time.time()), console=live.console)
    more = [Text(f"... and {hidden} more", style="dim")] if hidden > 0 else []
    return Group(table, *more, *(Text(safe(note), style="yellow") for note in notes))


def _tell_changes(looks: Iterable[tuple[list[Standing], Sequence[str]]]) -> list[Standing]:
    standings: list[Standing] = []
    told: dict[str, str] = {}
    told_notes: set[str] = set()
    for standings, notes in looks:
        for note in notes:
            kind = note.partition(";")[0]
            if kind not in told_notes:
                told_notes.add(kind)
                warn(note)
        for one in standings:
            line = report.standing_line(one.record, one.known)
            if told.get(one.record.uid) != line:
                told[one.record.uid] = line
                say(line)
    return standings


def _rows(standings: Sequence[Standing]) -> list[report.StandingRow]:
    return [report.StandingRow(record=one.record, word=one.known, said_at=one.said_at) for one in standings]
