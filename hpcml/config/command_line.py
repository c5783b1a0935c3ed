"""Prepares the arguments of ``hpcml run``: its flags, and the words that are Hydra's overrides."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.config.schema import groups, kinds_by_key
from hpcml.errors import ConfigError, require
from hpcml.model.metric_goal import goal_by_name
from hpcml.paths import is_source_of_hpcml, resource_dir
from hpcml.spelling import nearest

MULTIRUN = frozenset({"-m", "--multirun"})
_HELP = frozenset({"-h", "--help"})
_FOLDERS = frozenset({"-cd", "--config-dir"})
_WITH_VALUE = {"--cfg": "--cfg", "-p": "-p", "--package": "-p"}
_WITH_DEFAULT = ("cluster", "container", "profile", "study", "devices")
_OVERRIDE = re.compile(r"(?:[+~]{1,2}[^\s=]|[^-=\s][^=]*=)")
_OF_HYDRA = (
    "hydra/sweeper=basic",
    "hydra.mode=",
    "hydra.sweeper.params",
    "+hydra.sweeper.params",
)  # what a sweep may be asked for by
_OF_JOBS = ("resources.", "strategy.", "schedule.")  # settings that other programs have as flags of theirs
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # what a PDF or a word processor makes of "-"
OF_OWN_PROGRAMS = ("model=custom", "data=custom")  # said for the user, where nothing else is


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The arguments of ``hpcml run`` in front of the ``--``; `overrides` keep the order in which they were typed.

    `folders` have the user's own options, besides hpcml's. `shows` is what is to be printed in place of a run: the
    composed configuration ("job"), of that the section `package`, with its references followed (`is_resolved`); or
    "help".
    """

    overrides: tuple[str, ...]
    is_sweep: bool = False
    folders: tuple[Path, ...] = ()
    shows: str | None = None
    package: str | None = None
    is_resolved: bool = False


def read_command_line(arguments: Sequence[str], *, project: Path, is_own: bool = False) -> CommandLine:
    """Separate flags and overrides, and write what people type as Hydra wants it.

    ``+cluster=x`` becomes ``cluster=x``, ``+experiment=x`` a study, a command line is quoted. A metric that is chosen
    without its goal gets that of its name, or none. A command line of the user's own (*is_own*,
    ``workload.command=...``) also chooses ``model=custom`` and ``data=custom`` where nothing else was chosen.
    *project*'s ./conf is one of the folders. Raises `ConfigError` for a word that is neither flag nor override, and for
    settings of Hydra's own jobs.

    >>> read_command_line(["--multirun", "seed=0,1"], project=Path.cwd())  # doctest: +SKIP
    CommandLine(overrides=('seed=0,1',), is_sweep=True, folders=(), shows=None, package=None, is_resolved=False)
    """
    flags, folders, words = _sort(arguments, project)
    is_sweep = not MULTIRUN.isdisjoint(flags)
    if is_sweep:
        _refuse_expanded(words)
    own = project_conf(project)
    overrides = [_verbatim(_plain_group(_study(word, own)), "workload.command") for word in words]
    _refuse_settings_of_hydra(overrides)
    keys = {word.lstrip("+~").partition("=")[0] for word in overrides}
    if is_own or "workload.command" in keys:  # a run of somebody's program is not recorded as our CNN on our digits
        overrides[:0] = [word for word in OF_OWN_PROGRAMS if word.partition("=")[0] not in keys]
    if "objective.goal" not in keys and (way := _goal(overrides)) is not None:
        overrides.append(f"objective.goal={way}")
    for folder in folders:
        require(Path(folder).is_dir(), f"--config-dir {folder}: there is no such folder")
    require(flags.get("--cfg", "job") == "job", f"--cfg {flags.get('--cfg')}: only --cfg job can be shown")
    if "-p" in flags and "--cfg" not in flags:
        raise ConfigError(_no_option("-p", flags["-p"]))
    return CommandLine(
        overrides=tuple(overrides),
        is_sweep=is_sweep,
        folders=tuple(Path(folder).absolute() for folder in (*folders, own) if folder),
        shows="help" if not _HELP.isdisjoint(flags) else flags.get("--cfg"),
        package=flags.get("-p"),
        is_resolved="--resolve" in flags,
    )


def _refuse_settings_of_hydra(overrides: Sequence[str]) -> None:
    for word in overrides:
        if (
            word.lstrip("+~").startswith(("hydra/sweeper=", "hydra.sweeper._target_="))
            and word != "hydra/sweeper=basic"
        ):
            raise ConfigError(waits_for_results(word))
        if word.lstrip("+~").startswith(("hydra.", "hydra/")) and not word.startswith((*_OF_HYDRA, "hydra/sweeper=")):
            raise ConfigError(
                f"{word}: Hydra only composes here, and what it would do with its own jobs is not asked: leave it out "
                "(a folder of options is given by --config-dir)"
            )


def waits_for_results(sweeper: str) -> str:
    """Return the refusal of a *sweeper* other than Hydra's basic one."""
    return (
        f"{sweeper} waits for each result to choose the next point; hpcml submits a sweep whole: "
        "list the points (seed=0,1,2, range(), choice())"
    )


def set_again(words: Sequence[str]) -> list[str]:
    """Return a line for each setting that *words* set to one thing and then to another: the last one counts.

    What is added is another thing: ``+experiment=mine`` is a study, ``experiment=lr`` a name.

    >>> set_again(["precision=fp32", "seed=1", "precision=bf16", "seed=1", "+experiment=mine", "experiment=lr"])
    ['precision=fp32 has no effect: precision=bf16 stands behind it']
    """
    by_key = [(word.partition("=")[0], word) for word in dict.fromkeys(words) if "=" in word and word[:1] != "+"]
    last = {word.partition("=")[0]: word for word in words}
    return [f"{word} has no effect: {last[key]} stands behind it" for key, word in by_key if last[key] != word]


def _goal(overrides: Sequence[str]) -> str | None:
    """Return the goal of the name of the metric that *overrides* choose, "null" for none; None where none is chosen."""
    chosen = [value for key, _, value in (word.partition("=") for word in overrides) if key == "objective.metric"]
    if not chosen:
        return None
    goal = None if set(chosen[-1]) & set(",()[]{}") else goal_by_name(chosen[-1].strip("'\""))
    return "null" if goal is None else goal.name


def project_conf(project: Path) -> Path | None:
    """Return ``<project>/conf`` if it holds options of any of hpcml's groups and is not hpcml's own, else None.

    A folder of that name may well belong to another program.
    """
    conf = project / "conf"
    if not conf.is_dir() or conf.resolve() == resource_dir("conf").resolve() or is_source_of_hpcml(project):
        return None
    return conf if any((conf / group).is_dir() for group in groups()) else None


def _sort(arguments: Sequence[str], project: Path) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the flags with their values, "" for those that take none, the folders of options, and the overrides."""
    flags: dict[str, str] = {}
    folders: list[str] = []
    overrides: list[str] = []
    rest, word = list(arguments), ""
    while rest:
        before, word = word, rest.pop(0)
        flag, sign, value = word.partition("=")
        if flag in _FOLDERS and (sign or rest):
            folders.append(value if sign else rest.pop(0))
        elif flag in _WITH_VALUE and (sign or rest):
            flags[_WITH_VALUE[flag]] = value if sign else rest.pop(0)
        elif word in MULTIRUN | _HELP | {"--resolve"}:
            flags[word] = ""
        elif _OVERRIDE.match(word):
            overrides.append(word)
        elif word.startswith("-") and word != "--":
            value = value if sign else next((each for each in rest[:1] if each[:1] != "-" and "=" not in each), "")
            raise ConfigError(_no_option(flag, value))
        elif word != "--":
            raise ConfigError(f"{word!r} is no override: {_meant_instead(word, before, rest, project)}")
    return flags, folders, overrides


def _meant_instead(word: str, before: str, behind: Sequence[str], project: Path) -> str:
    """Return what to write instead of *word*, which no ``=`` makes a setting, between *before* and *behind*."""
    if before.endswith("="):
        return f"no blank stands behind a =: write {before}{word}"
    if word.startswith(tuple(_DASHES)):
        return "its first sign is no '-', though it looks like one"
    if shutil.which(word) or os.path.isfile(project / word):  # noqa: PTH113 - it may be any word
        starter = "python " if word.endswith(".py") else ""
        return f"a program stands behind two dashes: hpcml run -- {starter}{shlex.join([word, *behind])}"
    return "write key=value (hpcml run --help lists the keys)"


def _no_option(flag: str, value: str) -> str:
    """Return what to write instead of the *flag* of another program with its *value*."""
    name, keys = flag.lstrip("-").replace("-", "_"), kinds_by_key()
    near = [key for key in nearest(name, keys) if key.startswith(_OF_JOBS)]
    key = name if name in keys else next(iter(near), None)
    setting = "settings of a run have no dashes" + (f": write {key}={value or 'VALUE'}" if key else "")
    flag = f"{flag} {value}".rstrip()
    return f"{flag} is no option of hpcml run: {setting}; one of a program: hpcml run -- PROGRAM {flag}"


def _refuse_expanded(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` for words that a shell made of ``seed={0,1}``, of which the last alone would count."""
    for key, of in itertools.groupby(overrides, key=lambda word: word.partition("=")[0]):
        values = [word.partition("=")[2] for word in of]
        if len(values) > 1 and not any(sign in value for value in values for sign in ",("):  # no sweep
            words = " ".join(f"{key}={value}" for value in values)
            raise ConfigError(
                f"{words}: of these the last would count, and a shell makes them of {{...}}: the values of a sweep "
                f"stand without braces: {key}={','.join(values)}"
            )


def _plain_group(word: str) -> str:
    """These have a default, so Hydra wants ``cluster=x``; people write ``+cluster=x`` just as often."""
    return word[1:] if word.startswith(tuple(f"+{group}=" for group in _WITH_DEFAULT)) else word


def _study(word: str, own: Path | None) -> str:
    """Let ``+experiment=x`` choose a study, unless the user has a group of that name.

    hpcml cannot have one: Hydra would take every ``experiment=x`` for a choice in it, and that names a run's folder.
    """
    if own is not None and (own / "experiment").is_dir():
        return word
    return f"study={word.removeprefix('+experiment=')}" if word.startswith("+experiment=") else word


def _verbatim(word: str, key: str) -> str:
    """A command line is full of characters that Hydra's grammar reads as its own: quote what came unquoted."""
    value = word.removeprefix(f"{key}=")
    if value == word or value[:1] in ("'", '"') or value.startswith(("choice(", "null")):
        return word
    return f"{key}={in_quotes(value)}"


def for_shell(key: str, text: str) -> str:
    """Return the word that gives *key* one *text*, as it is typed in a shell.

    >>> print(for_shell("data.path", "/data/a,b"), for_shell("data.path", "/data/a"))
    'data.path="/data/a,b"' data.path=/data/a
    """
    return f"{key}={text}" if re.fullmatch(r"[\w./:@+-]+", text) else shlex.quote(f"{key}={in_quotes(text)}")


def in_quotes(text: str) -> str:
    r"""Quote for Hydra's override grammar, where a backslash is special only in front of a quote.

    >>> in_quotes('say "it"')
    '"say \\"it\\""'
    """
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    tail = escaped[len(escaped.rstrip("\\")) :]
    return f'"{escaped}{tail}"'
