"""Commands that keep the store and take runs in and out of it: tag, rm, read, export, import, sync."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import form, narrowing, pass_places, print_output, selecting
from hpcml.cli.program import reading_metrics
from hpcml.cli.say import complain, say
from hpcml.paths import Places
from hpcml.report.render.forms import Output

if TYPE_CHECKING:
    from hpcml.commands.read import WasRead
    from hpcml.commands.rm import Copy, Doomed
    from hpcml.commands.selection import Selection


# -draft is a word here, and not the options -d, -r, -a, -f and -t: all options are long.
@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("words", metavar="[RUN]... +TAG|-TAG...", nargs=-1)
@click.option("--note", metavar="TEXT", help="Note it of the runs, with your name and the time; hpcml show shows it.")
@narrowing
@pass_places
def tag(places: Places, /, *, words: tuple[str, ...], note: str | None, selection: Selection) -> None:
    """Give runs tags and take them away: hpcml tag 222k7wz9 +paper -draft."""
    from hpcml.commands.tag import tag as annotate
    from hpcml.report.runs import notes_line, tags_line

    if unknown := [word for word in words if word.startswith("--")]:
        raise click.NoSuchOption(unknown[0])
    changes = [word for word in words if word.startswith(("+", "-"))]
    wanted = replace(selection, references=[word for word in words if word not in changes])
    if wanted.is_empty or not (changes or note is not None):
        raise click.UsageError("say which runs, and what to change: hpcml tag RUN... +paper -draft --note TEXT")
    records = annotate(places, wanted, changes, note=note)
    for record in records:
        say(tags_line(record) if changes else notes_line(record))
    if not records:
        say("no run matches", err=True)


@click.command()
@selecting
@click.option("--gone", is_flag=True, help="Only runs whose directories are gone: the store forgets them.")
@click.option("--forget", is_flag=True, help="The store alone: leave the files of runs that lie elsewhere.")
@click.option("--unused-code", is_flag=True, help="Copies of code, too, that no run needs and nobody wanted for a day.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would go.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_places
def rm(
    places: Places, /, *, gone: bool, forget: bool, unused_code: bool, dry_run: bool, yes: bool, selection: Selection
) -> int:
    """Remove runs that have ended, with all their files; lists them and asks before."""
    from hpcml.cli.terminal import warn
    from hpcml.commands import rm as act
    from hpcml.commands.rm import find_unused, remove_unused

    if selection.is_empty and not gone and not unused_code:
        raise click.UsageError("say what goes: RUN..., --experiment, --state, --where, --submission or --gone")
    if gone and forget:
        raise click.UsageError("--gone and --forget exclude each other: what is gone is forgotten")
    chooses = gone or not selection.is_empty
    doomed = act.plan_removal(places, selection, gone=gone, forget=forget) if chooses else []
    copies = find_unused(places, without={item.record.uid for item in doomed}) if unused_code else []
    _list(doomed, copies)
    if dry_run or not (doomed or copies):
        return 0
    if not yes and not _confirmed(len(doomed), len(copies)):
        say("nothing was removed", err=True)
        return 1
    troubles: list[str] = []
    for removed in act.remove(places, doomed):
        if removed.trouble is None:
            say(f"{removed.uid}  {'removed' if removed.was_deleted else 'forgotten'}")
        troubles += [removed.trouble] if removed.trouble else []
    for copy, trouble in remove_unused(copies):
        if trouble is None:
            say(f"{copy.path}  removed")
        troubles += [trouble] if trouble else []
    for trouble in troubles:
        warn(trouble)
    return 1 if troubles else 0


def _list(doomed: Sequence[Doomed], copies: Sequence[Copy]) -> None:
    from hpcml.report.store import code_line, run_line

    for item in doomed:
        say(run_line(item.record, item.size_bytes, is_gone=item.is_gone), err=True)
    for copy in copies:
        say(code_line(str(copy.path), copy.size_bytes), err=True)
    if not doomed and not copies:
        say("nothing to remove", err=True)


def _confirmed(runs: int, copies: int) -> bool:
    from hpcml.cli.terminal import confirm

    counted = [f"{runs} run{'s' if runs != 1 else ''}"] if runs else []
    counted += [f"{copies} cop{'ies' if copies != 1 else 'y'} of code"] if copies else []
    return confirm(f"Remove {' and '.join(counted)}?", otherwise="-y removes without a question")


@click.command()
@click.argument("words", metavar="[RUN]... [workload.metrics=RULES] [workload.metrics_from=FILES]", nargs=-1)
@click.option("--forget", "is_forgotten", is_flag=True, help="Take back what was read afterwards of these runs.")
@reading_metrics
@narrowing
@pass_places
def read(
    places: Places, /, *, words: tuple[str, ...], metrics: tuple[str, ...], is_forgotten: bool, selection: Selection
) -> int:
    """Read metrics of ended runs, from what they printed and from files that they wrote.

    In the words that `hpcml run` takes, of which nobody had thought before:

    \b
    hpcml read --experiment lr --metric loss
    hpcml read 222k7wz9 workload.metrics='[{pattern: "loss (?P<loss>\\S+)"}]'
    hpcml read 222k7wz9 workload.metrics_from=results/history.csv

    A metric that a run has already stays as it is; when each value was printed is not known any more. The exit code is
    1 where nothing was read.
    """  # noqa: D301 - a real backspace, at which click wraps no lines
    from hpcml.commands import read as reading

    asked = [word for word in words if word.startswith((f"{reading.RULES}=", f"{reading.FILES}="))]
    wanted = replace(selection, references=[word for word in words if word not in asked])
    if wanted.is_empty or bool(asked or metrics) is is_forgotten:
        raise click.UsageError("say which runs, and either what is read or --forget: hpcml read RUN... --metric loss")
    if is_forgotten:
        uids = reading.forget(places, wanted)
        for uid in uids:
            say(f"{uid}  what was read afterwards is taken back")
        if not uids:
            complain("nothing was read afterwards of any run that matches")
        return 0 if uids else 1
    found = reading.read(places, wanted, reading.Sources.of(asked, metrics))
    return _tell(found)


def _tell(found: Sequence[WasRead]) -> int:
    from hpcml.report.runs import short_uid

    values = sum((one.values for one in found), Counter[str]())
    of_each = ", ".join(f"{count} values of {name}" for name, count in sorted(values.items()))
    say(f"{sum(bool(one.values) for one in found)} of {len(found)} runs{f': {of_each}' if values else ''}")
    problems: dict[str, list[str]] = {}
    for one in found:
        for problem in one.problems:
            problems.setdefault(problem, []).append(one.uid)
    for problem, uids in problems.items():
        complain(f"{len(uids)} of {len(found)} runs, as {short_uid(uids[0])}: {problem}")
    return 0 if values else 1


_FORMS = ("csv", "json", "parquet", "mlflow", "tensorboard", "rocrate")


@click.command()
@click.option("--to", "form", metavar="FORMAT", required=True, help=f"{', '.join(_FORMS)}, or one that a package adds.")
@click.option("-o", "out", metavar="WHERE", help="A folder, a file (json) or MLflow's address.")
@click.option("--artifacts", "with_artifacts", is_flag=True, help="mlflow, rocrate: logs and artifacts go along.")
@click.option("--license", "license_", metavar="TEXT", help="rocrate: a URL or words.")
@selecting
@pass_places
def export(
    places: Places, /, *, form: str, out: str | None, with_artifacts: bool, license_: str | None, selection: Selection
) -> None:
    """Export runs, all or the selected: as tables, for MLflow or TensorBoard, or as an RO-Crate."""
    from hpcml.cli.terminal import warn
    from hpcml.commands import export as exchange

    wish = exchange.ExportRequest(form=form, out=out, with_artifacts=with_artifacts, license=license_)
    done = exchange.export(places, selection, wish, os.environ, sys.stdout)
    for remark in done.remarks:
        warn(remark)
    say(done.line, err=True)


@click.command("import")
@click.argument("source", metavar="SOURCE")
@click.option("--experiment", metavar="NAME", help="Only this experiment of MLflow's.")
@click.option("--map", "names", multiple=True, metavar="THEIRS=OURS", help="lr=training.learning_rate; repeat.")
@click.option("--artifacts", "with_artifacts", is_flag=True, help="Copy their files, too.")
@click.option("-n", "--dry-run", "is_dry", is_flag=True, help="Say what would be imported.")
@pass_places
def import_(places: Places, /, **wish: object) -> int:
    """Import runs of MLflow's; again, to fetch what came since.

    SOURCE is MLflow's database (mlflow.db), its file store (the folder mlruns), or the address of a server.
    """
    from hpcml.cli.terminal import warn
    from hpcml.commands.import_ import ImportRequest, import_runs
    from hpcml.report.store import import_lines

    wanted = ImportRequest(**wish)  # type: ignore[arg-type] # click's own types
    report = import_runs(places, wanted)
    line, remarks = import_lines(
        created=report.created,
        updated=report.updated,
        unchanged=report.unchanged,
        own=report.own,
        points=report.points,
        remarks=report.remarks,
    )
    for remark in remarks:
        warn(remark)
    for problem in report.problems:
        complain(f"left out: {problem}")
    say(f"nothing was written; it would be: {line}" if wanted.is_dry else line)
    return 1 if report.problems else 0


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
    from hpcml.commands.sync import adopt

    found, report = adopt(places, [Path(folder) for folder in folders])
    for given in found:
        yield f"{given.folder}: {given.runs} runs{'' if given.is_new else ', read already'}"
    yield f"{report.new_points} new points"
    for problem in report.problems:
        complain(problem)


def _forgotten(places: Places, folders: Sequence[str]) -> Iterator[str]:
    from hpcml.commands.sync import disown

    for folder in folders:
        yield f"{folder}: read no more; {disown(places, Path(folder))} runs taken out of the store"


def _back_up(places: Places, file: str) -> int:
    from hpcml.commands.sync import back_up
    from hpcml.report.text import size

    written, count = back_up(places, Path(file) if file else None)
    say(f"wrote {written}: {size(count)}")
    return 0


def _checked(places: Places) -> Output[Any]:
    from hpcml.commands.sync import check
    from hpcml.report import store as report

    found = check(places)
    code = int(bool(found.faults or found.unreadable))
    return Output(found, lines=report.check_lines(found), json=report.check_json, code=code)
