"""Commands that compare runs, and plan for that: compare, report, watch, scaling, peak, plan."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from hpcml.cli.options import (
    Number,
    WholeNumber,
    comparing,
    form,
    narrowing,
    output_in,
    pass_places,
    selecting,
    words_of,
)
from hpcml.cli.program import BeforeProgram, complete_words
from hpcml.cli.say import say
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output
from hpcml.runs.private import user_name

if TYPE_CHECKING:
    from hpcml.analysis.compare.result import ComparisonRequest
    from hpcml.commands.selection import Selection


@click.command()
@comparing
@selecting
@output_in("json", "csv", "md", "latex")
@pass_places
def compare(places: Places, /, *, request: ComparisonRequest, selection: Selection) -> Output[Any]:
    """Compare runs that differ in one setting: metric, speed, cost, and whether the difference matters.

    Runs that differ in other settings too stand in tables of their own, one for each combination.
    """
    from hpcml.commands.compare import compare_runs
    from hpcml.report.comparison import comparison_document

    return document_output(comparison_document(compare_runs(places, selection, request)))


_DEFAULT = "report.html"


@click.command()
@click.option(
    "-o",
    "out",
    metavar="FILE",
    help=f"Default: {_DEFAULT}; .md and .tex are --md and --latex, whose default is standard output (-).",
)
@click.option("--title", metavar="TEXT", help="Of the report; default: the experiment.")
@comparing
@click.option(
    "--curve",
    "curves",
    multiple=True,
    metavar="METRIC",
    help="Draw this; default: metric, loss, step time, a loss scale that changed.",
)
@selecting
@form("md", "latex")
@pass_places
def report(
    places: Places,
    /,
    *,
    out: str | None,
    title: str | None,
    request: ComparisonRequest,
    curves: tuple[str, ...],
    form: str | None,
    selection: Selection,
) -> None:
    """Write a report of runs, all or the selected, as one HTML file that needs nothing else.

    Verdicts first, then tables and charts, then where all of it came from. An earlier report is replaced.
    """
    from hpcml.commands import report as publish
    from hpcml.report.publication import publication_document
    from hpcml.report.render.report_forms import REPORT_FORMS, form_of

    chosen = REPORT_FORMS[form or form_of(out or "")]
    wish = publish.Wish(title=title, comparison=request, curves=curves, command_line=_command_line(sys.argv))
    found = publish.publish(places, selection, wish)
    file = out or (_DEFAULT if form is None else publish.STDOUT)
    publish.write_report(chosen.render(publication_document(found)), file, sys.stdout, is_ours=chosen.is_ours)
    if file != publish.STDOUT:
        say(f"a report of {len(found.runs)} run{'s'[: len(found.runs) != 1]} is in {file}", err=True)


def _command_line(argv: list[str]) -> list[str]:
    """Return the words typed as a report may tell them: without secrets, also in ``--store=URL``."""
    from hpcml.model.secrets import masked

    return [Path(argv[0]).name, *masked(argv[1:])]


_SHORTEST_S = 0.5


@click.command()
@click.argument("experiment")
@click.option("--where", multiple=True, metavar="COND", help="Only these of its runs, as in hpcml runs.")
@click.option("--title", metavar="TEXT", help="Of the page; default: the experiment.")
@comparing
@click.option(
    "--curve",
    "curves",
    multiple=True,
    metavar="METRIC",
    help="Draw this; default: as in hpcml report; may be repeated.",
)
@click.option("--port", type=WholeNumber(0, 65535), help="Default: the first free one from 8010 on; 0: any.")
@click.option("--interval", default="30s", metavar="TIME", help="Until the page is made anew.")
@pass_places
def watch(
    places: Places,
    experiment: str,
    *,
    where: tuple[str, ...],
    title: str | None,
    request: ComparisonRequest,
    curves: tuple[str, ...],
    port: int | None,
    interval: str,
) -> None:
    """Follow the report of an experiment in a browser while its runs go: curves, GPUs, queue, the verdict so far.

    Prints a link that this machine's users alone can open who were told it, and how to open it from elsewhere. Ctrl-C
    ends it; the runs go on.
    """
    from hpcml.commands import watch as page
    from hpcml.commands.report import Wish
    from hpcml.commands.selection import Selection
    from hpcml.commands.status import poll_interval_s
    from hpcml.commands.submit.backends import Backends
    from hpcml.units import parse_interval_s

    interval_s = parse_interval_s(interval, field="--interval")
    if interval_s < _SHORTEST_S:
        raise click.UsageError(f"--interval {interval} is too short: 500ms at least")
    asked = page.Watch(
        places=places,
        selection=Selection(experiment=experiment, where=where),
        wish=Wish(title=title, comparison=request, curves=curves, command_line=_as_report(experiment, where, request)),
        backends=Backends.here(places, os.environ),
        interval_s=interval_s,
        poll_s=poll_interval_s(os.environ),
    )
    page.watch(asked, port=port, ready=_tell)
    say("ended; the runs go on", err=True)


def _as_report(experiment: str, where: Sequence[str], request: ComparisonRequest) -> list[str]:
    """Return the command that writes the same page as a file."""
    words = ["hpcml", "report", "--experiment", experiment, *(word for each in where for word in ("--where", each))]
    for each in fields(request):
        given, option = getattr(request, each.name), f"--{each.name.replace('_', '-')}"
        if given is True:
            words.append(option)
        elif given:
            words += [option, ",".join(given) if isinstance(given, tuple) else str(given)]
    return words


def _tell(link: str) -> None:
    port = urlsplit(link).port
    tunnel = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", f"{user_name(os.geteuid())}@{gethostname()}"]
    say(f"from another machine, there: {shlex.join(tunnel)}", err=True)
    say("who has the link can read the page; Ctrl-C ends it, and the runs go on", err=True)
    say(link)  # last, for whoever waits for it


_OVER = ("gpus", "nodes", "processes", "threads")


@click.command()
@click.option("--over", type=click.Choice(_OVER), help="What is counted; default: the first of these that differs.")
@click.option(
    "--kind",
    type=click.Choice(["strong", "weak", "auto"]),
    default="auto",
    help="One batch for all, or one that grows; auto finds both.",
)
@click.option(
    "--reference", type=WholeNumber(min=1), metavar="N", help="What speed-ups are against; default: the fewest."
)
@click.option(
    "--least-gain", type=Number(0, 1, max_open=True), default=0.05, help="More devices that gain less do not help."
)
@click.option(
    "--least-efficiency", type=Number(0, 1, min_open=True), default=0.5, help="Devices that are used worse do not pay."
)
@click.option("--allow", multiple=True, metavar="WORD[,WORD]", help="Settings and facts that may differ, too.")
@click.option("--allow-mixed", is_flag=True, help="Look although other facts differ; they are listed.")
@selecting
@output_in("json", "csv", "md")
@pass_places
def scaling(
    places: Places,
    /,
    over: str | None,
    allow: tuple[str, ...],
    selection: Selection,
    **wish: Any,  # noqa: ANN401 - what a `ScalingRequest` has
) -> Output[Any]:
    """Show what more GPUs, nodes, processes or CPU threads gain: speed-up, efficiency, cost, and when they pay."""
    from hpcml.analysis.scaling.cells import Over
    from hpcml.analysis.scaling.study import ScalingRequest
    from hpcml.commands import compare as operation
    from hpcml.report.scaling import scaling_document

    question = ScalingRequest(over=None if over is None else Over[over], allow=words_of(allow), **wish)
    return document_output(scaling_document(operation.scale_runs(places, selection, question)))


@click.command()
@click.option("--published", "is_published", is_flag=True, help="List what others published, and no runs.")
@click.option(
    "--cpu-peak",
    "cpu_peaks",
    multiple=True,
    metavar="PRECISION=TFLOPS[,...]",
    help="The CPU's; default: the fastest model=gemm of these runs.",
)
@selecting
@output_in("json", "csv", "md")
@pass_places
def peak(places: Places, /, *, is_published: bool, cpu_peaks: tuple[str, ...], selection: Selection) -> Output[Any]:
    """Show what runs attained of what their devices can do at most, and what may have kept them from more."""
    from hpcml.commands import compare as attainment
    from hpcml.report.utilization import utilization_document

    if is_published and not selection.is_empty:
        raise click.UsageError("--published lists no runs: leave out which runs are meant")
    result = (
        attainment.published_alone() if is_published else attainment.attained_by(places, selection, words_of(cpu_peaks))
    )
    return document_output(utilization_document(result))


_POWER = 0.8


class PlanCommand(BeforeProgram):
    """A command that takes the words of `hpcml run` with ``--time``; without it, words with a dash are mistakes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let pass options that are not known where they are those of `hpcml run`."""
        before = args[: args.index("--")] if "--" in args else args
        ctx.ignore_unknown_options = "--time" in before
        return super().parse_args(ctx, args)


@click.command(cls=PlanCommand)
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    shell_complete=complete_words,
    metavar="[RUN]... | --time [WORDS OF HPCML RUN]...",
)
@click.option(
    "--time",
    "is_time",
    is_flag=True,
    help="How long a sweep will take and what it will use: type what hpcml run would be given. Nothing is submitted.",
)
@click.option("--as-is", is_flag=True, help="--time: sweep nothing of the words behind --.")
@click.option(
    "--power",
    type=Number(min=0.01, max=0.999),
    default=_POWER,
    metavar="SHARE",
    help="How often the verdict is to be reached, if the arms are truly equal.",
)
@click.option(
    "--margin", type=Number(min=0, min_open=True), help="A difference below it does not matter; default: as configured."
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Default: the objective that the runs were configured with; --time: as in hpcml run.",
)
@click.option("--by", default="precision", metavar="KEY", help="What will be compared.")
@click.option("--reference", metavar="LEVEL", help="What the others are compared with; default for precision: fp32.")
@click.option(
    "--verdict", type=click.Choice(["equivalent", "non-inferior"]), default="equivalent", help="What is to be shown."
)
@click.option(
    "--comparisons",
    type=WholeNumber(min=1),
    default=1,
    help="How many share the risk of 5 %: rows that will be judged together.",
)
@narrowing
@output_in("json", "csv", "md")
@pass_places
def plan(
    places: Places,
    /,
    *,
    words: tuple[str, ...],
    program_words: tuple[str, ...] | None,
    is_time: bool,
    as_is: bool,
    metrics: tuple[str, ...],
    selection: Selection,
    **wish: Any,  # noqa: ANN401 - what `seeds_for` takes
) -> Output[Any]:
    """Say how many seeds a verdict needs, by the spread of recorded runs; with --time, how long a sweep will take.

    hpcml plan --time -m precision=fp32,tf32 'seed=range(5)'
    """
    from dataclasses import replace

    from hpcml.commands.plan import seeds_for
    from hpcml.report import plan as report

    if is_time:
        if not selection.is_empty:
            raise click.UsageError("--time is about runs to come: leave out which recorded ones are meant")
        return _time(places, words, program_words, metrics, is_literal=as_is)
    if as_is:
        raise click.UsageError("--as-is is about --time: add it")
    if len(metrics) > 1:
        raise click.UsageError("--metric was given twice, and one is planned for: give one")
    recorded = replace(selection, references=[*words, *(program_words or ())])
    found = seeds_for(places, recorded, metric=metrics[0] if metrics else None, **wish)
    return document_output(report.power_document(found))


def _time(
    places: Places,
    words: Sequence[str],
    program_words: Sequence[str] | None,
    metrics: Sequence[str],
    *,
    is_literal: bool,
) -> Output[Any]:
    from hpcml.cli.program import compose
    from hpcml.cli.terminal import ask, say_remarks
    from hpcml.commands.estimate import estimate_runs
    from hpcml.commands.submit.check import plan_points
    from hpcml.config.sweep import most_runs
    from hpcml.report import estimate as report

    most = most_runs(os.environ)
    points, remarks = compose(words, program_words, metrics, is_literal=is_literal, most=most)
    if not points:
        return Output(None, json=lambda _: "", csv=lambda _: "", md=lambda _: "")  # Hydra has printed what was asked
    planned, machine = plan_points(points, os.environ, Path.cwd(), ask=ask, is_dry=True, most=most)
    say_remarks(remarks)
    return document_output(report.estimate_document(estimate_runs(planned, places, machine)))
