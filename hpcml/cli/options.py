"""Options shared by commands: the selection of runs, the settings of a comparison, and the form of the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.say import say
from hpcml.paths import Places
from hpcml.spelling import OPTIONS_FOR_COMMANDS, did_you_mean

if TYPE_CHECKING:
    from hpcml.report.render.forms import Output

Command = Callable[..., Any]
_FORMS = {"json": "JSON, with stable keys.", "csv": "CSV.", "md": "Markdown.", "latex": "Tables for LaTeX."}
_FLAG = "as_{}"  # a parameter for each: with a common one, click would silently keep the last of two flags
_CONDITIONS = ("references", "experiment", "states", "where", "submission")

pass_places = click.make_pass_decorator(Places)


class WholeNumber(click.IntRange):
    """A whole number of an option, by which name an answer and the help call it; click's own is an integer range."""

    name = "whole number"


class Number(click.FloatRange):
    """A number of an option, between bounds."""

    name = "number"


class AnyNumber(click.types.FloatParamType):
    """A number of an option, of any size."""

    name = "number"


class MarginOption(Number):
    """A number above 0 of an option, or such a number of per cent."""

    name = "number or per cent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click
        """Return a number for "0.1", a `Percent` for "10%"."""
        from hpcml.analysis.compare.result import Percent

        is_share = isinstance(value, str) and value.endswith("%")
        number = super().convert(value[:-1] if is_share else value, param, ctx)
        return Percent(value=number) if is_share else number


def selecting(command: Command) -> Command:
    """Add ``[RUN]...`` and the options of `narrowing`; the command gets `selection`, a `Selection` of runs."""
    return click.argument("references", metavar="[RUN]...", nargs=-1)(narrowing(command))


def narrowing(command: Command) -> Command:
    """Add ``--experiment``, ``--state``, ``--where`` and ``--submission``; the command gets `selection`."""

    @wraps(command)
    def with_selection(*words: object, **options: Any) -> object:  # noqa: ANN401 - click's own types
        from hpcml.commands.selection import Selection

        conditions = {name: options.pop(name) for name in _CONDITIONS if name in options}
        return command(*words, selection=Selection(**conditions), **options)

    chosen: Command = with_selection
    for option in (
        click.option("--submission", metavar="ID", help="Only runs that were submitted together."),
        click.option(
            "--where",
            multiple=True,
            metavar="COND",
            help="'precision=tf32 and (val_accuracy>0.9 or tag=paper)'; of several all hold.",
        ),
        click.option(
            "--state", "states", multiple=True, metavar="STATE", help="COMPLETED, FAILED, ...; may be repeated."
        ),
        click.option("--experiment", metavar="NAME", help="Only runs of this experiment."),
    ):
        chosen = option(chosen)
    return chosen


def comparing(command: Command) -> Command:
    """Add the options of a comparison; the command gets `request`, a `ComparisonRequest` with what was asked for."""

    @wraps(command)
    def with_request(*words: object, **options: Any) -> object:  # noqa: ANN401 - click's own types
        from hpcml.analysis.compare.result import ComparisonRequest

        asked = {each.name: options.pop(each.name) for each in fields(ComparisonRequest)}
        asked["allow"] = words_of(asked["allow"])
        return command(*words, request=ComparisonRequest(**asked), **options)

    chosen: Command = with_request
    for option in (
        click.option("--allow-mixed", is_flag=True, help="Compare although anything else differs; it is listed."),
        click.option(
            "--seed", metavar="KEY", help="The setting that is the program's seed, where it was swept as a setting."
        ),
        click.option(
            "--allow", multiple=True, metavar="WORD[,WORD]", help="Settings and facts that may differ in a table."
        ),
        click.option("--target", type=AnyNumber(), help="A value of the metric: time and energy until it was reached."),
        click.option(
            "--margin",
            type=MarginOption(min=0, min_open=True),
            help="A difference below it, or below 10% of the reference, does not matter; fix it beforehand.",
        ),
        click.option(
            "--goal", type=click.Choice(["max", "min"]), help="Which way the metric should go; default: as configured."
        ),
        click.option("--metric", metavar="NAME", help="Default: the objective that the runs were configured with."),
        click.option(
            "--reference", metavar="LEVEL", help="What the others are compared with; default for precision: fp32."
        ),
        click.option(
            "--by",
            metavar="KEY[,KEY]",
            help="The setting whose effect is asked for; several change together. Default: precision.",
        ),
    ):
        chosen = option(chosen)
    return chosen


def words_of(lists: Sequence[str]) -> tuple[str, ...]:
    """Return the words of an option that may be repeated and takes several at once, joined by commas."""
    return tuple(word.strip() for words in lists for word in words.split(",") if word.strip())


def form(*choices: str) -> Callable[[Command], Command]:
    """Add a flag for each output form; the command gets `form`, None for the terminal's."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_form(*words: object, **options: Any) -> object:  # noqa: ANN401 - click's own types
            wanted = [choice for choice in choices if options.pop(_FLAG.format(choice))]
            if len(wanted) > 1:
                raise click.UsageError(
                    f"{' and '.join(f'--{choice}' for choice in wanted)} exclude each other: give one"
                )
            return command(*words, form=next(iter(wanted), None), **options)

        chosen: Command = with_form
        for choice in reversed(choices):
            chosen = click.option(f"--{choice}", _FLAG.format(choice), is_flag=True, help=_FORMS[choice])(chosen)
        return chosen

    return decorate


def output_in(*forms: str) -> Callable[[Command], Command]:
    """Add a flag for each of *forms*; the `Output` that the command returns is printed in the form asked for."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def printed(*words: object, form: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own types
            return print_output(command(*words, **options), form)

        return form(*forms)(printed)

    return decorate


def print_output(output: Output[Any], form: str | None) -> int:
    """Print *output* in *form*, None for people; return the exit code."""
    if form is not None:
        if (write := getattr(output, form)) is None:
            raise click.UsageError(f"this has no --{form}: --json has everything")
        say(write(output.value), nl=False)
        return output.code
    if output.table is not None:
        from hpcml.cli.terminal import console, show

        show(output.table(output.value, console=console()))
    for line in output.lines:
        say(line)
    if output.remark:
        say(output.remark, err=True)
    return output.code


class CommandGroup(click.Group):
    """Commands below another, of which a misspelt one is answered with what may be meant, or with where all are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that *args* begin with."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            whole = " ".join([*ctx.command_path.split()[1:], name])
            guess = did_you_mean(name, [*known, *OPTIONS_FOR_COMMANDS])
            guess = guess or f"{ctx.command_path} --help lists the commands"
            raise click.UsageError(f"there is no command {whole}: {guess}")
        found = super().resolve_command(ctx, args)
        if found[1] is not None:
            _refuse_repeated(found[1], found[2], ctx)
        return found


def _refuse_repeated(command: click.Command, args: Sequence[str], context: click.Context) -> None:
    """Raise `click.UsageError` for an option that is given several times, of which the last alone would count."""
    own = click.Context(command, parent=context, **command.context_settings)
    parser, given = command.make_parser(own), list[click.Parameter]()
    parser.ignore_unknown_options = parser.allow_interspersed_args = True
    with suppress(click.UsageError):  # which the command itself says
        given = parser.parse_args([*args])[2]
    for option, times in Counter(given).items():
        if times > 1 and isinstance(option, click.Option) and not (option.multiple or option.is_flag):
            raise click.UsageError(
                f"{option.opts[0]} was given {times} times, and the last alone would count: give one"
            )
