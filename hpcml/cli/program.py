"""The words behind ``--`` of `hpcml run` and `hpcml estimate`: the user's own program, which no parser of ours sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcml.cli.say import saying_what_is_printed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hpcml.config.compose import Composed

_END = "--"


class BeforeProgram(click.Command):
    """A command whose options end at the first ``--``; it gets the words behind as `program_words`, None without."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let click parse the words before the first ``--``, which it would swallow otherwise, and keep the others."""
        cut = args.index(_END) if _END in args else len(args)
        rest = super().parse_args(ctx, args[:cut])
        ctx.params["program_words"] = tuple(args[cut + 1 :]) if cut < len(args) else None
        return rest


def complete_words(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what the shell may make of a word that is being typed: a file behind the ``--``, else a choice."""
    from click.shell_completion import CompletionItem

    if context.params.get("program_words") is not None:
        return [CompletionItem(incomplete, type="file")]
    from hpcml.config.choices import completions

    found = completions(context.params.get("words") or (), incomplete, Path.cwd())
    return [CompletionItem(word) for word in found]


def compose(
    settings: Sequence[str], program_words: Sequence[str] | None, *, is_literal: bool, most: int
) -> tuple[list[Composed], list[str]]:
    """Compose the runs of *settings* and, where there are any, of the words of a program.

    With them come lines for the user: what the program sweeps, and what looks like a mistake. They are to be said once
    the runs were found sound, so that a refusal is one line. *is_literal*: no word of the program is a sweep. There are
    no runs where Hydra only printed something.
    """
    from hpcml.config.compose import compose_from_cli
    from hpcml.config.own_multirun import own_multirun
    from hpcml.config.program import common_program, read_program
    from hpcml.errors import ConfigError

    program, words = None, list(settings)
    if program_words is not None:
        program, words = read_program(program_words, words, is_literal=is_literal, most=most)
    with saying_what_is_printed():
        points = compose_from_cli(words, project=Path.cwd(), most=most, program=program)
    said = program or common_program([point.run for point in points])
    if said is None or not points:
        return points, []
    several = own_multirun(said.words, Path.cwd())
    if several is not None and several.is_certain and not is_literal:
        raise ConfigError(several.said)
    seeds, precisions = ([point.run.seed for point in points], [point.run.precision.name for point in points])
    remarks = said.remarks(seeds, precisions, project=Path.cwd())
    return points, remarks if several is None or is_literal else [*remarks, several.said]
