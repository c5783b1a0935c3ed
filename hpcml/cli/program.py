"""The words behind ``--`` of `hpcml run` and `plan --time`: the user's own program, which no parser of ours sees."""

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


reading_metrics = click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Read the number that the program prints behind NAME: loss=0.2, loss: 0.2; may be repeated.",
)


def compose(
    settings: Sequence[str], program_words: Sequence[str] | None, metrics: Sequence[str], *, is_literal: bool, most: int
) -> tuple[list[Composed], list[str]]:
    """Do as `config.compose.compose_command`, in the current folder; what Hydra prints is said.

    *metrics* are read from what the program prints, and the first is what runs are judged by.
    """
    from hpcml.config.compose import compose_command
    from hpcml.config.from_python import with_metrics

    words = with_metrics(settings, metrics, is_printed=True) if metrics else settings
    with saying_what_is_printed():
        return compose_command(words, program_words, project=Path.cwd(), is_literal=is_literal, most=most)
