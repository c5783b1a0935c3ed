"""The entry point of ``hpcml``: imports the chosen sub-command alone, and prints expected errors in one line."""

from __future__ import annotations

import errno
import importlib
import keyword
import logging
import os
import sys
from pathlib import Path

import click

from hpcml import __version__
from hpcml.cli.options import CommandGroup
from hpcml.cli.say import SafeFormatter, complain, say
from hpcml.errors import USED_UP, ConfigError, HpcmlError
from hpcml.paths import begin_in_utf8, locate
from hpcml.spelling import nearest

# Commands that belong together stand in one file. Each has what it is for: a page of 80 columns has two in a line.
GROUPS = {
    "Run": {
        "run": "check it, then run it",
        "retry": "failed runs again",
        "cancel": "stop runs",
        "wait": "until runs have ended",
        "status": "where the runs stand",
        "top": "GPUs, metrics and pace, live",
        "logs": "what a run printed",
        "tune": "search its settings",
    },
    "Look": {
        "runs": "list them, or the best",
        "show": "a run, its files and curves",
        "diff": "in what two runs differ",
        "query": "a SELECT over the store",
    },
    "Compare": {
        "compare": "by one setting: verdicts",
        "report": "one page of tables, charts",
        "watch": "the report, in a browser",
        "scaling": "what more GPUs gain",
        "peak": "of what devices can do",
        "plan": "how many seeds; how long",
    },
    "Images": {"build": "of a configuration", "images": "list, remove, export"},
    "Set up": {
        "cluster": "profiles of sites",
        "doctor": "what a run needs here",
        "recipes": "and what GPUs can do",
        "new": "project, recipe or study",
    },
    "Keep": {
        "tag": "tags and notes",
        "rm": "remove runs",
        "read": "metrics of ended runs",
        "export": "for other tools",
        "import": "from MLflow",
        "sync": "the store, with the runs",
    },
}
_OF_THEIR_OWN = ("tune",)  # commands that have a file
COMMANDS = [name for commands in GROUPS.values() for name in commands]
_IS_FINISHED_LATER = "hpcml sync finishes what was begun, once that is put right"
_INTERRUPTED = 130


class LazyGroup(CommandGroup):
    """The group of all commands: it imports one only when it is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order of the table."""
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        title = next(title for title, commands in GROUPS.items() if cmd_name in commands)
        file = cmd_name if cmd_name in _OF_THEIR_OWN else title.lower().replace(" ", "_")
        module = importlib.import_module(f"hpcml.cli.{file}")
        command = getattr(module, f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Say in a line what hpcml does, and that its commands say more: all fits on a screen of 24 lines."""
        formatter.write("Describe, contain, submit, watch and compare ML runs on HPC clusters.\n")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands in their groups, two in a line, without importing them."""
        formatter.write("\n")
        for title, commands in GROUPS.items():
            cells = [f"{name:<8} {words}" for name, words in commands.items()]
            for at in range(0, len(cells), 2):
                left, right = cells[at], "".join(cells[at + 1 : at + 2])
                formatter.write(f"{'' if at else title:<8} {left:<36} {right}".rstrip() + "\n")


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option("--home", metavar="DIR", help="Where runs are kept (HPCML_HOME; ~/.local/share/hpcml).")
@click.option("--store", metavar="FILE", help="The experiment store (HPCML_STORE; store.db in the home).")
@click.pass_context
def cli(context: click.Context, home: str | None, store: str | None) -> None:
    """Describe, contain, submit, watch and compare ML runs on HPC clusters."""
    context.obj = locate(os.environ, home=home, store=store)
    if context.invoked_subcommand is None:
        say(context.get_help())


class _Once(logging.Filter):
    """Drops what was said already: a command that looks again and again meets the same troubles each time."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether *record* is new."""
        message = record.getMessage()
        is_new = message not in self._said
        self._said.add(message)
        return is_new


def _takes_no_more() -> bool:
    """Tell whether standard output refuses one more byte; what is still to be written is dropped then."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"\n")  # without a buffer (PYTHONUNBUFFERED) there is nothing left to flush
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False


def main() -> None:
    """Run the command line; an error that a user can cause is one line on stderr and its own exit code."""
    begin_in_utf8()
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("hpcml: %(levelname)s: %(message)s"))
    handler.addFilter(_Once())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.addLevelName(logging.WARNING, "warning")
    if sys.stdout is None:  # Python's word for an output that was closed: >&-
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    try:
        code = cli.main(prog_name="hpcml", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort) as error:
        what_is_left = str(error.__cause__ or error)  # click raises Abort from the other
        complain(f"interrupted: {what_is_left}" if what_is_left else "interrupted")
        sys.exit(_INTERRUPTED)
    except OSError as error:
        sys.exit(_say(error))
    except RuntimeError as error:
        if str(error) != "can't start new thread":  # all that Python says of it
            raise
        sys.exit(_say(OSError(errno.EAGAIN, "")))
    except HpcmlError as error:
        complain(*error.lines)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.ctx.get_help() if error.ctx else error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        complain(_answer(error))
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _say(error: OSError) -> int:
    """Say *error* in one line and return the exit code."""
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of getcwd
        complain("the folder that you are in was removed meanwhile: cd to one that is there")
        return ConfigError.exit_code
    if error.filename is None and error.errno not in USED_UP and _takes_no_more():  # an output has no name
        complain(f"standard output takes no more: {error.strerror}")
        return HpcmlError.exit_code
    place = "" if error.filename is None else f"{error.filename}: "
    # in the home of somebody else nothing was begun
    remedy = "" if isinstance(error, PermissionError) else f" ({_IS_FINISHED_LATER})"
    complain(f"{place}{USED_UP.get(error.errno or 0) or error.strerror or error}{remedy}")
    return HpcmlError.exit_code


def _answer(error: click.ClickException) -> str:
    """Return what click says of a mistake, with what to write or where that is told."""
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or context.parent is None:
        return message
    if isinstance(error, click.NoSuchOption):
        known = {name.lstrip("-"): name for option in context.command.params for name in option.opts}
        meant = nearest(error.option_name.lstrip("-"), known)  # click's own guess counts the dashes
        message = f"No such option '{error.option_name}'"
        if meant:
            return f"{message}. Did you mean '{known[meant[0]]}'?"
    if isinstance(error, click.MissingParameter) and isinstance(option := error.param, click.Option):
        return f"Missing option: {context.command_path} {option.opts[0]} {option.metavar}: {option.help}"
    if message.startswith(("No such option", "Got unexpected extra", "Missing")):
        return f"{message.rstrip('.')}: {context.command_path} --help lists what it takes"
    return message
