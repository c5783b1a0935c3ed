"""`hpcml tune`: searches settings, point by point, with as many runs under way as wanted."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import Command, WholeNumber, form, pass_places, print_output
from hpcml.cli.program import BeforeProgram, complete_words, reading_metrics
from hpcml.cli.say import complain, say
from hpcml.model.search import PrunerName, SamplerName, Search
from hpcml.paths import Places
from hpcml.report.render.forms import document_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcml.commands.submit.run import FoundRepeats
    from hpcml.commands.tune.look import Looked
    from hpcml.images.build import OnProgress

_INTERRUPTED = 130
_ASKED = ("runs", "in_flight", "sampler", "seed", "pruner", "takes_partial", "until", "chain")


def _searching(command: Command) -> Command:
    """Add the options of a search; the command gets those that `Search` knows as `asked`, as click reads them."""

    @wraps(command)
    def with_search(*words: object, **options: Any) -> object:  # noqa: ANN401 - click's own types
        return command(*words, asked={name: options.pop(name) for name in _ASKED}, **options)

    chosen: Command = with_search
    for option in (
        click.option(
            "--chain",
            metavar="SETTINGS",
            callback=lambda _, __, text: None if text is None else shlex.split(text),
            help="Looks are jobs with these settings, each behind the oldest run under way.",
        ),
        click.option("--until", metavar="TIME", help="Submit nothing from then on: 2026-12-24T08:00."),
        click.option("--partial", "takes_partial", is_flag=True, help="The last value of a run that timed out counts."),
        click.option(
            "--prune",
            "pruner",
            type=click.Choice([each.name for each in PrunerName]),
            default="none",
            help="Stop runs that fall behind.",
        ),
        click.option("--sampler-seed", "seed", type=WholeNumber(min=0), default=0, help="The same: the same points."),
        click.option(
            "--sampler",
            type=click.Choice([each.name for each in SamplerName]),
            default="tpe",
            help="What chooses.",
        ),
        click.option("--in-flight", type=WholeNumber(min=1), default=4, help="How many runs wait or run at once."),
        click.option("--runs", type=WholeNumber(min=1), default=20, help="How many points are tried."),
    ):
        chosen = option(chosen)
    return chosen


@click.command(cls=BeforeProgram, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_words)
@reading_metrics
@_searching
@click.option("--budget", metavar="HOURS", help="As schedule.budget: 200gpuh or 50nodeh, reckoned by walltimes.")
@click.option("--once", is_flag=True, help="Take one look, and go on later by --again.")
@form("json")
@click.option("--again", metavar="STUDY", help="Take one look at a study: for cron, and after Ctrl-C.")
@click.option("--stop", metavar="STUDY", help="Submit nothing more for a study; its runs go on.")
@click.option(
    "--confirm", metavar="N", type=WholeNumber(min=1), help="Run the best N of STUDY and the default with fresh seeds."
)
@click.option("--seeds", type=WholeNumber(min=3), default=5, help="Of --confirm: how many.")
@pass_places
def tune(
    places: Places,
    /,
    *,
    words: tuple[str, ...],
    program_words: tuple[str, ...] | None,
    again: str | None,
    stop: str | None,
    confirm: int | None,
    seeds: int,
    **options: Any,  # noqa: ANN401 - of a search that begins
) -> int:
    """Search settings: a space instead of a value, log(1e-4..1e-1), 1..8 or {64,128}, in a setting or behind the --.

    Each point is a run, submitted as hpcml run submits it; as one ends, the next begins. Ctrl-C leaves all going.
    """
    from hpcml.commands.tune import study

    if sum(each is not None for each in (again, stop, confirm)) > 1:
        raise click.UsageError("--again, --stop and --confirm are done by themselves: give one")
    if (again or stop) is not None and (words or program_words):
        raise click.UsageError("a study has its command line: hpcml tune --again STUDY, or --stop STUDY")
    if stop is not None:
        study.stop(places, stop)
        say(f"study {stop} was stopped; its runs go on: hpcml cancel --experiment {stop} ends them")
        return 0
    if again is not None:
        return _look(places, again, options["form"])
    if confirm is not None:
        return _confirm(places, words, count=confirm, seeds=seeds)
    return _begin(places, words, program_words, **options)


def _begin(
    places: Places,
    words: Sequence[str],
    program_words: Sequence[str] | None,
    *,
    asked: dict[str, Any],
    metrics: tuple[str, ...],
    budget: str | None,
    once: bool,
    form: str | None,
) -> int:
    from hpcml.commands.tune.study import define
    from hpcml.config.from_python import with_metrics

    settings = [*words, *([] if budget is None else [f"schedule.budget={budget}"])]
    if metrics:
        settings = with_metrics(settings, metrics, is_printed=program_words is not None)
    search, remarks = define(
        Search(
            project=str(Path.cwd()),
            settings=settings,
            program=None if program_words is None else list(program_words),
            command_line=[Path(sys.argv[0]).name, *sys.argv[1:]],
            **{**asked, "sampler": SamplerName[asked["sampler"]], "pruner": PrunerName[asked["pruner"]]},
        ),
        places,
        environ=os.environ,
    )
    for remark in remarks:
        complain(remark)
    return _look(places, search.study, form) if once or search.chain is not None else _follow(places, search, form)


class _Reporter:
    """Tells on stderr how submissions go, each line once however many looks say it."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")

    def note(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            complain(text)

    def found_repeats(self, repeats: FoundRepeats) -> None:
        self.note(repeats.in_words())

    def building(self, base: str) -> AbstractContextManager[OnProgress]:
        from hpcml.cli.images import display

        return display(base)


def _look(places: Places, name: str, form: str | None) -> int:
    """Take one look and say where the study stands."""
    from hpcml.commands.status import poll_interval_s
    from hpcml.commands.submit.backends import Backends
    from hpcml.commands.tune.look import look
    from hpcml.commands.tune.study import find_study

    backends, interval_s = Backends.here(places, os.environ), poll_interval_s(os.environ)
    search = find_study(places, name)
    return _print_end(look(places, backends, search, _Reporter(), environ=os.environ, interval_s=interval_s), form)


def _follow(places: Places, search: Search, form: str | None) -> int:
    """Look until nothing is under way and nothing more will be submitted; Ctrl-C leaves the runs going."""
    from hpcml.commands.status import poll_interval_s
    from hpcml.commands.submit.backends import Backends
    from hpcml.commands.tune.look import looks
    from hpcml.report.search import ended_line, standing_line

    backends, interval_s = Backends.here(places, os.environ), poll_interval_s(os.environ)
    reporter, ended = _Reporter(), set[str]()
    reporter.note(f"study {search.study}: hpcml tune --again {search.study} goes on with it")
    try:
        for looked in looks(places, backends, search, reporter, environ=os.environ, interval_s=interval_s):
            for line in looked.lines:
                reporter.note(line)
            for tried in looked.tried:
                if tried.ended_at is not None and tried.uid not in ended:
                    ended.add(tried.uid)
                    reporter.note(ended_line(looked.runs[tried.uid], tried, search, looked.words.axes))
            if looked.launched:
                submitted, under_way = looked.submitted, looked.under_way
                reporter.note(standing_line(search, looked.tried, submitted=submitted, under_way=under_way))
    except KeyboardInterrupt:
        complain(f"stopped looking; the runs go on: hpcml tune --again {search.study} submits what is missing")
        return _INTERRUPTED
    return _print_end(looked, form)


def _print_end(looked: Looked, form: str | None) -> int:
    from hpcml.report.search import search_document, standing_line

    search = looked.search
    document = search_document(search, looked.words.axes, looked.tried, looked.runs, under_way=looked.under_way)
    standing = standing_line(search, looked.tried, submitted=looked.submitted, under_way=looked.under_way)
    for line in [*looked.lines, *([] if looked.trouble is None else [looked.trouble])]:
        complain(line)
    if form is None:
        say(standing)
    print_output(document_output(document), form)
    return 0 if looked.trouble is None else 1


def _confirm(places: Places, words: Sequence[str], *, count: int, seeds: int) -> int:
    """Submit what confirms a study; where all of it has ended, print compare's verdict."""
    from hpcml.cli.progress import follow_to_the_end, list_submitted
    from hpcml.commands.compare import compare_runs
    from hpcml.commands.selection import Selection
    from hpcml.commands.submit.backends import Backends
    from hpcml.commands.tune.confirm import confirm
    from hpcml.commands.tune.study import find_study
    from hpcml.report.comparison import comparison_document

    if not words:
        raise click.UsageError("say which study: hpcml tune --confirm N STUDY [NAME=VALUE of the default]...")
    search, backends = find_study(places, words[0]), Backends.here(places, os.environ)
    found = confirm(
        places, backends, search, _Reporter(), count=count, seeds=seeds, default=words[1:], environ=os.environ
    )
    request = found.request
    compare = f"hpcml compare --experiment {found.experiment} --by {request.by} --reference '{request.reference}'"
    if any(item.ticket.scheduler != "local" for item in found.launched):
        list_submitted(found.launched)
        say(f"hpcml wait --experiment {found.experiment}, then: {compare}")
        return 0
    code = follow_to_the_end(found.launched, places) if found.launched else 0
    if code == 0:
        say(compare)
        selection = Selection(experiment=found.experiment)
        code = print_output(document_output(comparison_document(compare_runs(places, selection, request))), None)
    return code
