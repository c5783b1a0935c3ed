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

    words = with_metrics(settings, metrics, is_printed=True) if metrics else settings
    with saying_what_is_printed():
        return compose_command(words, program_words, project=Path.cwd(), is_literal=is_literal, most=most)


def with_metrics(settings: Sequence[str], metrics: Sequence[str], *, is_printed: bool) -> list[str]:
    """Return *settings* with the first of *metrics* as what runs are judged by; all are read as they are printed.

    A recipe reports its own: nothing is read of what it prints (*is_printed* is False).
    """
    from hpcml.config.from_python import setting_word

    begin = "workload.metrics=["
    judged = [] if any(word.startswith("objective.metric=") for word in settings) else [metrics[0]]
    words = [*settings, *(setting_word("objective.metric", name) for name in judged)]
    if not is_printed:
        return words
    rules = setting_word("workload.metrics", [{"name": name} for name in dict.fromkeys(metrics)])
    others = [word for word in settings if word.startswith(begin)]
    if others:
        rules = f"{rules[:-1]},{others[-1].removeprefix(begin)}"
    return [*(word for word in words if word not in others), rules]
