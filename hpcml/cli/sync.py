"""``hpcml sync``: bring the run directories into the store, and look after it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hpcml.cli.options import form, pass_places, print_output
from hpcml.cli.say import complain, say
from hpcml.paths import Places
from hpcml.report.render.forms import Output


@click.command()
@click.argument("folders", metavar="[DIR]...", nargs=-1)
@click.option("--all", "is_anew", is_flag=True, help="Read every journal again, from its beginning.")
@click.option("--add", is_flag=True, help="Read the run directories in DIR too, now and from now on; they stay there.")
@click.option("--forget", is_flag=True, help="Read DIR no more, and drop its runs.")
@click.option(
    "--check",
    is_flag=True,
    help="Say where the store is and what is in it, and look for damage, also of runs; exit code 1 if there is any.",
)
@click.option("--backup", metavar="[FILE]", is_flag=False, flag_value="", help="Copy it to FILE, or beside itself.")
@form("json")
@pass_places
def sync(
    places: Places,
    *,
    folders: tuple[str, ...],
    is_anew: bool,
    add: bool,
    forget: bool,
    check: bool,
    backup: str | None,
    form: str | None,
) -> int:
    """Finish interrupted submissions, ask the schedulers, retry what schedule.retry allows, read all run folders.

    The exit code is 1 if a run or a journal cannot be read, and 3 if a submission waits for its scheduler's answer.
    """
    if sum([add, forget, check, backup is not None, is_anew]) > 1:
        raise click.UsageError("--add, --forget, --check and --backup are done by themselves: give one")
    if (add or forget) != bool(folders):
        raise click.UsageError("say which folders, and what to do: hpcml sync --add DIR..., or --forget DIR...")
    if form is not None and not check:
        raise click.UsageError("--json is about --check: add it")
    if check:
        return print_output(_checked(places), form)
    if backup is not None:
        return _back_up(places, backup)
    if folders:
        for line in _added(places, folders) if add else _forgotten(places, folders):
            say(line)
        return 0
    return _synchronise(places, is_anew=is_anew)


def _synchronise(places: Places, *, is_anew: bool) -> int:
    from hpcml.cli.terminal import warn
    from hpcml.commands.status import poll_interval_s
    from hpcml.commands.submit.backends import Backends
    from hpcml.commands.sync import synchronise

    backends = Backends.here(places, os.environ)
    done = synchronise(places, backends, poll_interval_s(os.environ), is_anew=is_anew)
    report = done.report
    for line in done.lines:
        say(line)
    missing = f"{report.bad_lines} unreadable lines, {report.lost_records} lost records"
    say(f"{report.runs} runs, {report.new_points} new points, {missing}")
    for problem in report.problems:
        complain(problem)
    for warning in done.warnings:
        warn(warning)
    return 3 if done.waiting else 1 if report.problems else 0


def _added(places: Places, folders: Sequence[str]) -> Iterator[str]:
    from hpcml.commands.added_folders import adopt

    found, report = adopt(places, [Path(folder) for folder in folders])
    for given in found:
        yield f"{given.folder}: {given.runs} runs{'' if given.is_new else ', read already'}"
    yield f"{report.new_points} new points"
    for problem in report.problems:
        complain(problem)


def _forgotten(places: Places, folders: Sequence[str]) -> Iterator[str]:
    from hpcml.commands.added_folders import disown

    for folder in folders:
        yield f"{folder}: read no more; {disown(places, Path(folder))} runs taken out of the store"


def _back_up(places: Places, file: str) -> int:
    from hpcml.commands.store import back_up
    from hpcml.report.text import size

    written, count = back_up(places, Path(file) if file else None)
    say(f"wrote {written}: {size(count)}")
    return 0


def _checked(places: Places) -> Output[Any]:
    from hpcml.commands.store import check
    from hpcml.report import store as report

    found = check(places)
    code = int(bool(found.faults or found.unreadable))
    return Output(found, lines=report.check_lines(found), json=report.check_json, code=code)
