"""Turns the command line of `hpcml run` into `Run`s, by Hydra; the only module that starts Hydra.

Hydra only composes: its task function collects the configurations, so that submission, exit codes, directories and
error messages stay hpcml's. ``--cfg``, ``--info`` and ``--help`` never call it; they print, and give no runs.

The classes of hpcml/model/run are the schema. OmegaConf would make nodes of frozen dataclasses read-only, so
`mutable_twin` makes copies of them that are not frozen.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import hydra
import omegaconf
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcml.codec import decode_alike, encode, flatten
from hpcml.config.command_line import (
    MULTIRUN,
    OF_OWN_PROGRAMS,
    Words,
    arrange,
    in_one_line,
    in_quotes,
    instead_of_flag,
    kinds_by_key,
    project_conf,
    set_again,
)
from hpcml.config.once import composing_once, sharing_schemas
from hpcml.config.program import Program, common_program, read_program
from hpcml.config.quoting import groups_of_options, readable
from hpcml.config.sweep.points import (
    HYDRA_REFUSALS,
    HYDRA_STUMBLES,
    Composition,
    Sweep,
    SweepFoundError,
    typed,
)
from hpcml.config.sweep.size import MOST_RUNS, check_count
from hpcml.config.unreadable import why_no_options, why_unreadable
from hpcml.errors import ConfigError
from hpcml.model.placeholders import OF_THE_RUN
from hpcml.model.precision import RECIPES_OWN, PrecisionName
from hpcml.model.run import Run
from hpcml.model.secrets import masked
from hpcml.paths import resource_dir

_ROOT_CONFIG = "run"
_BRACES = re.compile(r"(?<![{$])\{([\w.]+)\}")
_FOREIGN_FLAG = re.compile(r"^unrecognized arguments: (--[\w-]+)=(\S+)")
_HELP_WIDTH = 120
_PRINTS = ("--cfg", "-c", "--resolve", "--help", "-h")  # Hydra prints the configuration then, and composes no run
_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_STOP_AT_SWEEP = "+hydra.callbacks.hpcml._target_=hpcml.config.sweep.points.StopAtSweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One composed configuration (one point of a sweep): the run, and the overrides that lead to it.

    `overrides` are words as they were typed, for one point: ``seed=0``, not ``seed=0,1``. `hpcml run --dry-run` shows
    them.
    """

    run: Run
    overrides: tuple[str, ...]
    user_config: tuple[str, ...]  # configuration directories besides the shipped one


def compose_from_cli(
    arguments: Sequence[str], *, project: Path, most: int = MOST_RUNS, program: Program | None = None
) -> list[Composed]:
    """Run Hydra on *arguments*, those of ``hpcml run``; return one entry per composed configuration.

    Each configuration is combined with each point of *program*, the user's own, of which Hydra is not told.

    *project* is the folder where ``./conf`` may add options. Raises `ConfigError` if any point is refused, or if there
    would be more than *most*: a sweep is submitted as a whole or not at all. An empty list means that Hydra only
    printed (``--cfg``, ``--info``, ``--help``). Entries are in the order of the sweep. Nothing is written but a folder
    for Hydra that disappears again. While it works, ``sys.argv`` and HYDRA_FULL_ERROR are Hydra's, and afterwards as
    before: so it must not be called from two threads at once.

        compose_from_cli(["--multirun", "seed=0,1"], project=Path.cwd())  # two entries
    """
    outcomes: list[Composed | Exception] = []
    known: dict[tuple[str, str], Any] = {}

    shipped = resource_dir("conf")

    @functools.cache
    def besides_shipped(directories: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(folder for folder in directories if Path(folder) != shipped)

    def settle(composition: Composition, overrides: tuple[str, ...]) -> Composed:
        run = decide(composition, program, known)
        return Composed(run=run, overrides=overrides, user_config=besides_shipped(composition.directories))

    def collect(cfg: DictConfig) -> None:
        settings: Any = HydraConfig.get()  # declared as what it holds, and is a DictConfig
        try:
            _refuse_other_sweepers(settings)
            outcomes.append(settle(Composition(cfg, settings, project), tuple(typed(settings.overrides.task))))
        except Exception as error:  # noqa: BLE001 - raised below, once Hydra has returned: it would make it its own
            outcomes.append(error)

    with tempfile.TemporaryDirectory(prefix="hpcml-hydra-") as scratch:
        words = arrange(arguments, shipped=shipped, project=project, is_own=program is not None)
        is_own = program is not None or any(word.startswith("workload.command=") for word in arguments)
        with _complaints_in_one_line(lambda: _own_folders(words, shipped=shipped, project=project), is_own=is_own):
            words = readable(words)
            _check_overrides(words, filled_in=program.sweeps if program is not None else ())
            _check_files(words, project_conf(project, shipped))
            if any(flag in _PRINTS or flag.startswith("--cfg=") for flag in words.flags):
                words = _as_decided(words, program, scratch)
            with sharing_schemas():
                try:
                    _run_hydra(words, collect, scratch)
                except SweepFoundError as found:
                    _refuse_other_sweepers(found.config.hydra)
                    outcomes = Sweep(found, project, settle, most=most).settled()
    composed = _all_or_nothing(outcomes)
    if program is None:
        return composed
    check_count(len(composed) * program.count, most, what="the words behind --")
    return [_at(one, args, program.sweeps) for one in composed for args in program.points()]


def compose_command(
    settings: Sequence[str],
    program_words: Sequence[str] | None,
    *,
    arguments: Mapping[str, Sequence[str]] | None = None,
    project: Path,
    is_literal: bool,
    most: int,
) -> tuple[list[Composed], list[str]]:
    """Compose the runs of ``hpcml run *settings* -- *program_words*``, None without the ``--``.

    *arguments* fill placeholders of the program, as for `read_program`.

    Their overrides have no secrets, and nothing that was added for programs of the user's own.
    With them come lines for the user: what is set twice, what the program sweeps, and what looks like a mistake. They
    are to be said once the runs were found sound, so that a refusal is one line. *is_literal*: no word of the program
    is a sweep. *project* and *most* are as for `compose_from_cli`. There are no runs where Hydra only printed.
    """
    program, words = None, list(settings)
    if program_words is not None:
        program, words = read_program(program_words, words, arguments=arguments, is_literal=is_literal, most=most)
    points = compose_from_cli(words, project=project, most=most, program=program)
    points = _without_secrets(points)
    said = program or common_program([point.run for point in points])
    again = set_again(masked(words)) if points else []
    if said is None or not points:
        return points, again
    seeds, precisions = ([point.run.seed for point in points], [point.run.precision.name for point in points])
    return points, [*again, *said.remarks(seeds, precisions, project=project)]


def _without_secrets(points: Sequence[Composed]) -> list[Composed]:
    """Return *points* with overrides that have no secrets, and nothing that nobody has typed.

    Raises `ConfigError` where two would be recorded alike: they would be taken for one arm.
    """
    told: dict[tuple[str, ...], Composed] = {}
    shown = []
    for point in points:
        is_own = point.run.workload.command is not None
        words = tuple(masked([word for word in point.overrides if not (is_own and word in OF_OWN_PROGRAMS)]))
        other = told.setdefault(words, point)
        if other.overrides != point.overrides:
            pairs = zip(point.overrides, other.overrides, strict=True)
            name = next(word.partition("=")[0] for word, before in pairs if word != before)
            raise _not_told_apart(name)
        shown.append(replace(point, overrides=words))
    return shown


def check_told_apart(runs: Sequence[Run]) -> None:
    """Raise `ConfigError` where two of *runs*, which were composed apart, differ in a secret alone."""
    told: dict[str, Run] = {}
    for run in runs:
        other = told.setdefault(json.dumps(run.settings, sort_keys=True), run)
        if other != run:
            one, another = flatten(encode(run)), flatten(encode(other))
            raise _not_told_apart(next(name for name in one if one[name] != another[name]))


def _not_told_apart(name: str) -> ConfigError:
    return ConfigError(
        f"{name} sounds like a secret: its values would be recorded as ***, and their runs not told apart; "
        "call them otherwise: args.kind=FIRST,SECOND in front of the --, and {kind} where the program takes it"
    )


def _at(composed: Composed, args: dict[str, str], swept: Iterable[str]) -> Composed:
    run = replace(composed.run, workload=replace(composed.run.workload, args=args))
    return replace(composed, run=run, overrides=composed.overrides + tuple(f"args.{x}={args[x]}" for x in swept))


def _all_or_nothing(outcomes: Sequence[Composed | Exception]) -> list[Composed]:
    for outcome in outcomes:
        if isinstance(outcome, Exception) and not isinstance(outcome, ConfigError):
            raise outcome
    refusals = [outcome for outcome in outcomes if isinstance(outcome, ConfigError)]
    if refusals:
        more = f" (and {len(refusals) - 1} more of {len(outcomes)} points)" if len(refusals) > 1 else ""
        raise ConfigError(f"{refusals[0]}{more}")
    return [outcome for outcome in outcomes if isinstance(outcome, Composed)]


def _run_hydra(words: Words, collect: Callable[[DictConfig], None], scratch: str) -> None:
    """Let Hydra read *words*; a sweep ends it with `SweepFoundError`."""
    _register_schema()
    decorate = hydra.main(version_base="1.3", config_path=str(resource_dir("conf")), config_name=_ROOT_CONFIG)
    arguments = [*words.flags, "--", *words.overrides]
    _check_flags(arguments)
    try:
        with (
            _process_state(["hpcml run", *arguments, *_leave_alone(scratch), *_stop_at_sweep(words)]),
            composing_once(is_sweep=_asks_for_sweep(words)),
            _choices_wrapped() if {"--help", "-h"} & {*words.flags} else nullcontext(),
        ):
            decorate(collect)()
    except SystemExit as ended:  # after --version
        if ended.code not in (None, 0):
            raise


@contextmanager
def _choices_wrapped() -> Iterator[None]:
    """Break the long lines of Hydra's help, which lists the choices of a group in one."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    except SystemExit as ended:  # with which Hydra's help ends
        if ended.code not in (None, 0):
            raise
    for line in printed.getvalue().splitlines():
        group = line.partition(": ")[0]
        wrapped = textwrap.wrap(line, _HELP_WIDTH, subsequent_indent=" " * 4, break_on_hyphens=False)
        print("\n".join(wrapped) if len(line) > _HELP_WIDTH and group.isidentifier() else line)  # noqa: T201 - as Hydra


def _check_flags(arguments: list[str]) -> None:
    """Raise `ConfigError` with argparse's complaint of *arguments*, which it prints."""
    complaints = io.StringIO()
    try:
        with redirect_stderr(complaints), redirect_stdout(io.StringIO()):
            get_args_parser().parse_args(arguments)
    except SystemExit as ended:
        if ended.code != 0:  # that of --version
            told = in_one_line(complaints.getvalue().rpartition("error: ")[2])
            foreign = _FOREIGN_FLAG.search(told)
            hint = f": {instead_of_flag(*foreign.groups())}" if foreign else ""
            raise ConfigError(f"{told}{hint}") from ended


def _own_folders(words: Words, *, shipped: Path, project: Path) -> list[Path]:
    """Return the folders of options that are not hpcml's."""
    named = get_args_parser().parse_args(list(words.flags)).config_dir
    own = project_conf(project, shipped)
    return [Path(folder) for folder in (named, own) if folder]


def _is_in_utf8(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def _complaints_in_one_line(own_folders: Callable[[], list[Path]] = list, *, is_own: bool = False) -> Iterator[None]:
    """Turn every complaint of Hydra's into one `ConfigError`.

    *own_folders* are where a user's files of options lie; *is_own*: a program of the user's own is to be started.
    """
    try:
        yield
    except UnicodeDecodeError as error:  # which does not say of which file
        odd = [str(path) for folder in own_folders() for path in folder.rglob("*.yaml") if not _is_in_utf8(path)]
        raise ConfigError(f"{', '.join(odd) or 'a file of options'}: {error}: save it in UTF-8") from error
    except OverrideParseException as error:
        raise ConfigError(f"{error.override!r} is no override: {in_one_line(str(error))}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(why_unreadable("a file of options" if mark is None else mark.name, error)) from error
    except HYDRA_REFUSALS as error:
        told = in_one_line(str(error), str(error.__cause__ or ""), schema=Run, is_own=is_own)
        raise ConfigError(told) from error
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError("a word is nested too deeply to be read: fewer brackets") from error
    except HYDRA_STUMBLES as error:
        advice = "" if __debug__ else "; PYTHONOPTIMIZE takes out what its parser works by: unset it"
        said = f"Hydra cannot make a configuration of these words: {in_one_line(str(error))}"
        raise ConfigError(f"{said}{advice}") from error


def _check_overrides(words: Words, *, filled_in: Collection[str]) -> None:
    """Raise `ConfigError` for what Hydra stumbles on, or takes in silence though nobody can mean it.

    It stumbles on a list of options that holds anything but names, and on arguments without a program. It takes a sweep
    whose values a later word replaces, a word to the scheduler that is empty, the deletion of a setting that each run
    has, and a name with a placeholder: *filled_in* are those of the program.
    """
    parser = OverridesParser.create()
    sweeps: dict[str, str] = {}
    for word in words.overrides:
        if found := re.match(r"\+{0,2}workload\.args\.(\w+)=", word):
            raise ConfigError(
                f"{word}: a value for {{{found[1]}}} is written in front of a program behind --: "
                f"hpcml run args.{word.partition('workload.args.')[2]} -- python train.py --{found[1]} {{{found[1]}}}"
            )
        try:
            (override,) = parser.parse_overrides([word])
        except HydraException:
            continue  # which Hydra says itself
        value = override.value()
        if isinstance(value, list) and override.key_or_group in groups_of_options():
            _check_options(word, override.key_or_group, value)
        key = override.get_key_element().lstrip("+~")
        if override.is_delete() and key in kinds_by_key(Run) and key not in groups_of_options():
            raise ConfigError(f"{word}: every run has {key}: write {key}=VALUE, or leave the word out for its default")
        if key.startswith("resources.") and value == "":
            raise ConfigError(
                f"{word} is empty: was a variable of the shell not set? Write its value, or {key}=null for none"
            )
        if key in sweeps:
            raise ConfigError(
                f"{sweeps[key]} and {word} both set {key}, and none of the first would be left: leave one out"
            )
        if override.is_sweep_override():
            sweeps[key] = word
        if key == "name":
            _check_name(word, filled_in)


def _check_options(word: str, group: str, names: Sequence[object]) -> None:
    """Raise `ConfigError` where *names*, options that *word* chooses together, are none, or several of ours.

    Each of ours is whole, and would replace the one before; a user's own may say little, and lie over it.
    """
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{word}: an option is chosen by its name, as in {group}=NAME")
    if sum((resource_dir("conf") / group / f"{name}.yaml").is_file() for name in names) > 1:
        raise ConfigError(
            f"{word} chooses all of these together, and the last alone would be left: "
            f"the values of a sweep stand without brackets: -m {group}={','.join(map(str, names))}"
        )


def _check_files(words: Words, conf: Path | None) -> None:
    """Raise `ConfigError` where what stands in *conf* for a chosen option, if anything, is no file of options."""
    for word in words.overrides:
        found = re.fullmatch(r"\+{0,2}([\w/]+)=([\w.-]+)", word)
        why = why_no_options(conf / found[1] / f"{found[2]}.yaml") if conf and found else None
        if why is not None:
            raise ConfigError(f"{word}: {why}")


def _check_name(word: str, filled_in: Collection[str]) -> None:
    for name in _BRACES.findall(word):
        if (key := name if name in (known := kinds_by_key(Run)) else f"{name}.name") in known:
            key = key if f"{key}.name" not in known else f"{key}.name"
            raise ConfigError(f"{word}: nothing fills in {{{name}}} in a name: write ${{{key}}}, in single quotes")
        if name in (*OF_THE_RUN, *filled_in):
            raise ConfigError(
                f"{word}: nothing fills in {{{name}}} in a name: leave it out, runs are shown with their settings"
            )


def _leave_alone(scratch: str) -> list[str]:
    """Keep Hydra from writing and from logging: it insists on output directories, and gets some that disappear.

    Logging is the process's. To set it up anew closes the handlers that are there, and absl's, which is there once
    TensorFlow was imported, closes its stream then.
    """
    output = [f"hydra.run.dir={scratch}", f"hydra.sweep.dir={scratch}", "hydra.output_subdir=null"]
    return [*output, "hydra/hydra_logging=none", "hydra/job_logging=none"]


def _stop_at_sweep(words: Words) -> list[str]:
    """Leave Hydra before it composes point by point; a sweep that another file asks for it does, at its own pace."""
    by_word = any(word.startswith(("hydra.mode=", "study=")) for word in words.overrides)
    return [_STOP_AT_SWEEP] if _asks_for_sweep(words) or by_word else []


def _asks_for_sweep(words: Words) -> bool:
    return any(flag.startswith(MULTIRUN) for flag in words.flags)


def _refuse_other_sweepers(settings: Any) -> None:  # noqa: ANN401 - Hydra's own configuration
    if settings.sweeper is None or settings.sweeper._target_ != _BASIC_SWEEPER:
        raise ConfigError(
            f"hydra/sweeper={settings.runtime.choices.get('hydra/sweeper')} waits for each result to choose "
            "the next point; hpcml submits a sweep whole: list the points (seed=0,1,2, range(), choice())"
        )


def decide(
    composition: Composition, program: Program | None = None, known: dict[tuple[str, str], Any] | None = None
) -> Run:
    """Return the `Run` for a composed configuration; raise `ConfigError` where it is not valid.

    *known* is what other points of the sweep had in common with it (`hpcml.codec.decode_alike`).

    A value that the classes of `hpcml.model.run` refuse is named with its key. The command is that of *program*, where
    there is one. ``precision=own``, the default, is fp32 for a recipe.
    """
    try:
        values = composition.values()
        if program is not None:
            values["workload"] = {**values["workload"], "command": program.command, "args": {}}
        if _computes_as_recipes(values):
            values["precision"] = {**values["precision"], "name": RECIPES_OWN.name}
        run = decode_alike(Run, values, {} if known is None else known)
    except OmegaConfBaseException as error:
        raise ConfigError(in_one_line(str(error), str(error.__cause__ or ""), schema=Run)) from error
    except ConfigError as error:
        if not str(error).startswith("unknown key "):
            raise
        is_own = values["workload"].get("command") is not None
        raise ConfigError(in_one_line(str(error), schema=Run, is_own=is_own)) from error
    assert isinstance(run, Run)
    return run


def _computes_as_recipes(values: object) -> bool:
    """Tell whether *values* are of a recipe for which no precision was chosen."""
    sections = values if isinstance(values, Mapping) else {}
    precision, workload = sections.get("precision"), sections.get("workload")
    if not (isinstance(precision, Mapping) and isinstance(workload, Mapping)):
        return False  # decoding says what is wrong
    return bool(precision.get("name") == PrecisionName.own.name and workload.get("command") is None)


def _as_decided(words: Words, program: Program | None, scratch: str) -> Words:
    """Return *words* with which Hydra prints what `decide` makes of its configuration, as words of their own."""
    flags = [*words.flags]
    for name in ("--cfg", "-c", "--package", "-p"):
        while name in flags:
            place = flags.index(name)
            del flags[place : place + 2]
    quiet = tuple(flag for flag in flags if flag not in _PRINTS and not flag.startswith(("--cfg=", "--package=")))
    found: list[DictConfig] = []
    more: list[str] = []
    if program is not None:  # in which nothing refers to a setting
        more = [f"workload.command={in_quotes(program.command.replace('${', chr(92) + '${'))}"]
    _run_hydra(Words(quiet, (*words.overrides, *more)), found.append, scratch)
    if any(_computes_as_recipes(OmegaConf.to_container(each, enum_to_str=True)) for each in found):
        more.append(f"precision.name={RECIPES_OWN.name}")
    return Words(words.flags, (*words.overrides, *more))


@functools.cache
def _register_schema() -> None:
    """Tell Hydra's store what a run is made of; it keeps that, as long as the process lives."""
    node = OmegaConf.structured(mutable_twin(Run))
    by_program = (node.workload.env, node.container.environment, node.container.labels)
    for names in (*by_program, node.resources.pbs.options, node.cluster.pbs.chunk):  # the user makes up the keys
        OmegaConf.set_struct(names, value=False)
    ConfigStore.instance().store(name="run_schema", node=node)


@contextmanager
def _process_state(argv: list[str]) -> Iterator[None]:
    """Hydra takes its words from sys.argv, and raises instead of printing only if HYDRA_FULL_ERROR is set.

    After ``--cfg``, ``--info`` and ``--help`` it leaves its configuration behind, for whatever asks for it next; and
    ``--info`` prints by a log of its own, of which it leaves the handler. A program that has begun a Hydra of its own,
    as a notebook does by ``hydra.initialize()``, has it again afterwards.
    """
    log = logging.getLogger()
    level_before, handlers_before = log.level, log.handlers[:]
    singleton, begun = HydraConfig.instance(), GlobalHydra.instance()
    config_before, hydra_before = singleton.cfg, begun.hydra
    begun.hydra = None
    argv_before, full_error_before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv, singleton.cfg, begun.hydra = argv_before, config_before, hydra_before
        log.handlers[:] = handlers_before
        log.setLevel(level_before)
        if full_error_before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error_before


@functools.cache
def mutable_twin(schema: type) -> type:
    """Return a dataclass with the fields and defaults of *schema* that is not frozen and checks nothing.

    A field without a default gets OmegaConf's ``MISSING`` (``???``). Nested dataclasses become twins as well, in lists
    and dicts too. For OmegaConf only: values are checked when `decode` makes a `Run` of them.
    """
    hints = get_type_hints(schema)
    twins = []
    for original in fields(schema):
        hint = _twin_hint(hints[original.name])
        if isinstance(hint, type) and is_dataclass(hint):
            default = field(default_factory=hint)  # there from the start, so that each of its keys can be set
        elif original.default_factory is not MISSING:
            default = field(default_factory=original.default_factory)
        elif original.default is not MISSING:
            default = field(default=original.default)
        else:
            default = field(default=omegaconf.MISSING)
        twins.append((original.name, hint, default))
    return make_dataclass(schema.__name__, twins, kw_only=True)


def _twin_hint(hint: Any) -> Any:  # noqa: ANN401 - a type hint is anything
    if isinstance(hint, type) and is_dataclass(hint):
        return mutable_twin(hint)
    if get_origin(hint) in (dict, list):
        return get_origin(hint)[tuple(_twin_hint(argument) for argument in get_args(hint))]
    return hint
