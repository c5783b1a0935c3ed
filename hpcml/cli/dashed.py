"""Commands that take words which begin with a dash."""

from __future__ import annotations

import click


class DashedCommand(click.Command):
    """A command for which ``-draft`` is a word, and not the options -d, -r, -a, -f and -t: its own are all long.

    Such words, and those that begin with a plus, come after all others.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the dashed words behind the ``--`` after which there are no options."""
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        dashed = [word for word in before if word.startswith("+") or _is_dashed(word)]
        return super().parse_args(ctx, [*(word for word in before if word not in dashed), "--", *after, *dashed])


def _is_dashed(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and word != "-h"
