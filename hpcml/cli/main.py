"""The entry point of ``hpcml``: imports the chosen sub-command alone, and prints expected errors in one line."""

from __future__ import annotations

import codecs
import errno
import importlib
import io
import locale
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from hpcml import __version__
from hpcml.cli.options import with_options_once
from hpcml.cli.say import SafeFormatter, complain, say
from hpcml.errors import OF_THE_DISK, USED_UP, ConfigError, HpcmlError
from hpcml.paths import Places, begin_in_utf8, locate

# Commands that belong together, with an example: name -> (where it lives, what it says). Listing costs no import.
GROUPS = {
    "Run": (
        "hpcml run -m precision=fp32,tf32 'seed=range(3)'",
        {
            "run": ("hpcml.cli.run:run", "Compose a configuration, check it and run it; -m for sweeps."),
            "init": ("hpcml.cli.init:init", "Set up this folder for runs of your own program; asks on a terminal."),
            "estimate": ("hpcml.cli.estimate:estimate", "Say how long a sweep will take, by recorded runs."),
            "plan": ("hpcml.cli.plan:plan", "Say how many seeds a verdict needs, by the spread of recorded runs."),
            "retry": ("hpcml.cli.retry:retry", "Try failed runs again, as their causes ask for."),
            "cancel": ("hpcml.cli.cancel:cancel", "Stop runs, whether they run or wait."),
        },
    ),
    "Watch": (
        "hpcml status",
        {
            "status": ("hpcml.cli.status:status", "Ask the schedulers where the runs stand."),
            "wait": ("hpcml.cli.wait:wait", "Wait until runs have ended."),
            "top": ("hpcml.cli.top:top", "Watch runs while they go, or this machine: GPUs, hosts, metrics, pace."),
            "watch": ("hpcml.cli.watch:watch", "Follow the report of an experiment in a browser while its runs go."),
            "logs": ("hpcml.cli.logs:logs", "Show what a run printed."),
        },
    ),
    "Look": (
        "hpcml runs --where 'val_accuracy>0.9'",
        {
            "runs": ("hpcml.cli.runs:runs", "List recorded runs."),
            "show": ("hpcml.cli.show:show", "Show everything recorded of one run."),
            "last": ("hpcml.cli.show:last", "Show the newest run."),
            "files": ("hpcml.cli.files:files", "List the files that a run's program wrote."),
            "best": ("hpcml.cli.best:best", "List the runs that did best by a metric."),
            "curves": ("hpcml.cli.curves:curves", "Show how a metric went in runs."),
            "diff": ("hpcml.cli.diff:diff", "Show in what two runs differ."),
            "query": ("hpcml.cli.query:query", "Answer a SELECT over the store's views."),
        },
    ),
    "Compare": (
        "hpcml compare --by precision",
        {
            "compare": (
                "hpcml.cli.compare:compare",
                "Compare runs that differ in one setting, with intervals and verdicts.",
            ),
            "report": ("hpcml.cli.report:report", "Write a report of runs: one HTML file, Markdown or LaTeX."),
            "scaling": ("hpcml.cli.scaling:scaling", "Show what more GPUs, nodes or threads gain, and when they pay."),
            "peak": ("hpcml.cli.peak:peak", "Show what runs attained of what their devices can do at most."),
        },
    ),
    "Images": (
        "hpcml build +container=ngc_pytorch",
        {
            "build": ("hpcml.cli.build:build", "Build the image of a configuration."),
            "images": ("hpcml.cli.images:images", "List, remove, verify, export and import images."),
        },
    ),
    "Clusters": (
        "hpcml doctor --cluster karolina",
        {
            "cluster": ("hpcml.cli.cluster:cluster", "List, show and make profiles of clusters."),
            "doctor": ("hpcml.cli.doctor:doctor", "Look at what a run needs, here and on a cluster."),
            "gpus": ("hpcml.cli.gpus:gpus", "Show what GPUs can do at most, in each precision."),
            "recipes": (
                "hpcml.cli.recipes:recipes",
                "List the recipes, their options, and which precision runs on which device.",
            ),
            "new": (
                "hpcml.cli.new:new",
                "Make a recipe, a cluster's profile or an experiment of your own, ready to run.",
            ),
        },
    ),
    "Keep": (
        "hpcml export --to csv -o results",
        {
            "read": ("hpcml.cli.read:read", "Read metrics of ended runs, from what they printed and wrote."),
            "tag": ("hpcml.cli.tag:tag", "Give runs tags, and take them away."),
            "note": ("hpcml.cli.note:note", "Note something of a run."),
            "rm": ("hpcml.cli.rm:rm", "Remove runs, and what nothing needs any more; asks before."),
            "export": ("hpcml.cli.export:export", "Export runs for other tools."),
            "import": ("hpcml.cli.import_:import_", "Import runs of MLflow's."),
            "ingest": ("hpcml.cli.ingest:ingest", "Read run directories that lie elsewhere, now and from now on."),
            "store": ("hpcml.cli.store:store", "Say where the store is; check it, back it up, make it small."),
            "sync": (
                "hpcml.cli.sync:sync",
                "Finish what was interrupted, and bring the run directories into the store.",
            ),
        },
    ),
}
COMMANDS = {name: told for _, commands in GROUPS.values() for name, told in commands.items()}
_IS_FINISHED_LATER = "hpcml sync finishes what was begun, once that is put right"
_NO_HOME = "Could not determine home directory."  # pathlib's words for ~
_NO_THREAD = "can't start new thread"  # all that Python says of it
_MOST_OF_A_NAME = 80  # characters of one that is too long
_OF_A_PLACE = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP})
_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A click group that imports a sub-command only when it is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that *args* begin with; a misspelt one is answered with what may be meant."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from hpcml.spelling import did_you_mean

            guess = did_you_mean(name, COMMANDS) or "hpcml --help lists the commands"
            raise click.UsageError(f"there is no command {name}: {guess}")
        return with_options_once(*super().resolve_command(ctx, args), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands in their groups, without importing them."""
        width = max(map(len, COMMANDS))
        for title, (example, commands) in GROUPS.items():
            with formatter.section(f"{title}, as in `{example}`"):
                formatter.write_dl([(name.ljust(width), says) for name, (_, says) in commands.items()])


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


pass_places = click.make_pass_decorator(Places)


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


def _speak_as_the_locale(environ: Mapping[str, str]) -> None:
    """Print in the encoding of the terminal's locale where `begin_in_utf8` chose another one for names of files."""
    is_chosen_by_us = sys.flags.utf8_mode and environ.get("PYTHONUTF8") != "1" and "PYTHONIOENCODING" not in environ
    if not is_chosen_by_us or codecs.lookup(locale.getencoding()).name in {"ascii", "utf-8"}:
        return
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where it was closed
            stream.reconfigure(encoding=locale.getencoding(), errors="backslashreplace")


def main() -> None:
    """Run the command line; an error that a user can cause is one line on stderr and its own exit code."""
    begin_in_utf8()
    _speak_as_the_locale(os.environ)
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("hpcml: %(levelname)s: %(message)s"))
    handler.addFilter(_Once())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.addLevelName(logging.WARNING, "warning")
    if sys.stdout is None:  # Python's word for an output that was closed: >&-
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    try:
        code = cli.main(prog_name="hpcml", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort) as error:  # before RuntimeError, which Abort is
        what_is_left = str(error.__cause__ or error)  # click raises Abort from the other
        complain(f"interrupted: {what_is_left}" if what_is_left else "interrupted")
        sys.exit(_INTERRUPTED)
    except (OSError, RuntimeError) as error:
        if (code := _say(error)) is None:
            raise
        sys.exit(code)
    except MemoryError:
        complain(f"{USED_UP[errno.ENOMEM]} (ulimit -v, or the limit of a session): {_IS_FINISHED_LATER}")
        sys.exit(HpcmlError.exit_code)
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


def _say(error: OSError | RuntimeError) -> int | None:
    """Say *error* in one line and return the exit code; None where it is our defect, which keeps its traceback."""
    if isinstance(error, RuntimeError):
        if str(error) == _NO_HOME:
            complain("a path begins with ~, and neither HOME nor this machine tells your home: write it out")
            return ConfigError.exit_code
        if str(error) != _NO_THREAD:
            return None
        error = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    if isinstance(error, FileNotFoundError) and _is_here_gone():
        complain("the folder that you are in was removed meanwhile: cd to one that is there")
        return ConfigError.exit_code
    if error.errno == errno.ENAMETOOLONG:
        complain(f"{str(error.filename)[:_MOST_OF_A_NAME]}...: {error.strerror}")
        return ConfigError.exit_code
    if error.filename is None and _takes_no_more():  # what cannot be written to has no name
        complain(f"standard output takes no more: {error.strerror}")
    elif error.errno in OF_THE_DISK or (error.filename is not None and error.errno in _OF_A_PLACE):
        place = "" if error.filename is None else f"{error.filename}: "
        is_others = error.errno in (errno.EACCES, errno.EPERM)  # somebody else's home, mostly: nothing was begun there
        remedy = "" if is_others else f" ({_IS_FINISHED_LATER})"
        complain(f"{place}{error.strerror}{remedy}")
    elif error.errno == errno.EAGAIN and error.strerror == os.strerror(errno.EAGAIN):  # else an output would block
        complain(f"{USED_UP[errno.EAGAIN]}: {error.strerror}")
    else:
        return None
    return HpcmlError.exit_code


def _answer(error: click.ClickException) -> str:
    """Return what click says of a mistake, with what to write or where that is told."""
    said = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or context.parent is None:
        return said
    if isinstance(error, click.NoSuchOption):
        from hpcml.spelling import nearest

        known = {name.lstrip("-"): name for each in context.command.params for name in each.opts}
        for meant in nearest(error.option_name.lstrip("-"), known)[:1]:  # dashes alone make two names alike
            return f"No such option '{error.option_name}'. Did you mean '{known[meant]}'?"
        said = f"No such option '{error.option_name}'"  # click's own guess counts the dashes
    if isinstance(error, click.MissingParameter) and isinstance(option := error.param, click.Option):
        return f"Missing option: {context.command_path} {option.opts[0]} {option.metavar}: {option.help}"
    is_helpful = "Did you mean" in said or not said.startswith(("No such option", "Got unexpected extra", "Missing"))
    return said if is_helpful else f"{said.rstrip('.')}: {context.command_path} --help lists what it takes"


def _is_here_gone() -> bool:
    """Whether the working directory is no more; commands that need none answer all the same."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
