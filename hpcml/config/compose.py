"""Turns the command line of `hpcml run` into `Run`s, by Hydra's compose API; the only module that calls it.

Hydra only composes: submission, exit codes, directories and error messages are hpcml's. It composes once for each
combination of choices (files of options); swept values that are no choices are set on what it composed.
"""

from __future__ import annotations

import json
import re
import textwrap
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from hpcml.codec import decode, encode, flatten
from hpcml.config import check, quoting, schema
from hpcml.config.command_line import (
    OF_OWN_PROGRAMS,
    CommandLine,
    for_shell,
    in_quotes,
    read_command_line,
    set_again,
    waits_for_results,
)
from hpcml.config.program import Program, common_program, read_program
from hpcml.config.sweep import MOST_RUNS, check_count, check_size
from hpcml.config.sweep import points as sweep_points
from hpcml.config.unreadable import in_one_line, why_no_options, why_unreadable
from hpcml.errors import ConfigError, require
from hpcml.model.precision import RECIPES_OWN, PrecisionName
from hpcml.model.run import Run
from hpcml.model.secrets import masked
from hpcml.paths import resource_dir

_ROOT_CONFIG = "run"
_ONE_HYDRA = threading.Lock()  # what it composes of is one object for the whole process
_PATHS = ("data.path", "workload.cwd")  # meant from where they were typed; on the node that place is another one
_BASIC_SWEEPER = "BasicSweeper"
_MAY_SWEEP = ("study", "hydra.")
_HELP_WIDTH = 120
_CHOICES = "== Choices (override with group=option; several with -m: precision=fp32,tf32,amp) =="
_KEYS = "\n== Everything that can be set (override with key=value) =="


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One composed configuration (one point of a sweep): the run, and the overrides that lead to it.

    `overrides` are words as they were typed, for one point: ``seed=0``, not ``seed=0,1``. `hpcml run --dry-run` shows
    them.
    """

    run: Run
    overrides: tuple[str, ...]
    user_config: tuple[str, ...]  # configuration directories besides the shipped one
    call: bytes | None = None  # the pickled call of a function, which the run finds in its directory


def compose_from_cli(
    arguments: Sequence[str], *, project: Path, most: int = MOST_RUNS, program: Program | None = None
) -> list[Composed]:
    """Compose *arguments*, those of ``hpcml run``; return one entry per configuration, in the order of the sweep.

    Each configuration is combined with each point of *program*, the user's own, of which Hydra is not told.

    *project* is the folder where ``./conf`` may add options. Raises `ConfigError` if any point is refused, or if there
    would be more than *most*: a sweep is submitted as a whole or not at all. An empty list means that ``--cfg`` or
    ``--help`` printed what was asked for.

        compose_from_cli(["--multirun", "seed=0,1"], project=Path.cwd())  # two entries
    """
    line = read_command_line(arguments, project=project, is_own=program is not None)
    schema.register()
    with _ONE_HYDRA, _hydra(line.folders):
        composer = _Composer(line, program, project)
        if line.shows is not None:
            composer.show()
            return []
        composed = composer.composed(most)
    if program is None:
        return composed
    check_count(len(composed) * program.count, most, what="the words behind --")
    return [_at(one, args, program.sweeps) for one in composed for args in program.points()]


class _Composition(NamedTuple):
    config: DictConfig  # without Hydra's own part
    hydra: DictConfig


class _Composer:
    """Composes the points of one command line."""

    def __init__(self, line: CommandLine, program: Program | None, project: Path) -> None:
        self._line = line
        self._program = program
        self._project = project
        self._is_own = program is not None or any(word.startswith("workload.command=") for word in line.overrides)
        self._parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        self._words = [quoting.parse(word, self._parser) for word in line.overrides]
        self._check()

    def composed(self, most: int) -> list[Composed]:
        """Return all points; raise `ConfigError` with the first refusal, and how many there are."""
        check_size(self._words, most)
        first = self._compose([_first(word) for word in self._words])
        sweeper = first.hydra.sweeper
        if sweeper is None or not str(sweeper.get("_target_")).endswith(_BASIC_SWEEPER):
            raise ConfigError(waits_for_results(f"hydra/sweeper={first.hydra.runtime.choices.get('hydra/sweeper')}"))
        params = OmegaConf.to_container(sweeper, resolve=True).get("params") or {}  # type: ignore[union-attr]
        words = [*(self._parsed(f"{key}={value}") for key, value in params.items()), *self._words]
        if not (self._line.is_sweep or (first.hydra.mode is not None and first.hydra.mode.name == "MULTIRUN")):
            for word in self._words:
                _refuse_several(word)
            return [self._settled(first.config, {}, tuple(str(word.input_line) for word in self._words))]
        return self._settled_points(sweep_points(words, most))

    def _settled_points(self, points: Sequence[tuple[str, ...]]) -> list[Composed]:
        free = self._free(points)
        shared: dict[tuple[str, ...], _Composition] = {}
        found: list[Composed] = []
        refusals: list[ConfigError] = []
        for point in points:
            choices = tuple(word for place, word in enumerate(point) if place not in free)
            if choices not in shared:
                shared[choices] = self._compose(choices)
            values = dict(words[point[place]] for place, words in free.items())
            try:
                found.append(self._settled(shared[choices].config, values, point))
            except ConfigError as error:
                refusals.append(error)
        if refusals:
            more = f" (and {len(refusals) - 1} more of {len(points)} points)" if len(refusals) > 1 else ""
            raise ConfigError(f"{refusals[0]}{more}")
        return found

    def _free(self, points: Sequence[tuple[str, ...]]) -> dict[int, dict[str, tuple[str, Any]]]:
        """Return the places whose words only replace one value that is there: by each word its key and value.

        Such a value can be set again and again on one composition.
        """
        columns = [{word: self._parsed(word) for word in dict.fromkeys(column)} for column in zip(*points, strict=True)]
        keys = [next(iter(column.values())).key_or_group for column in columns]
        return {
            place: {word: (parsed.key_or_group, parsed.value()) for word, parsed in column.items()}
            for place, column in enumerate(columns)
            if len(column) > 1
            and all(map(self._is_plain, column.values()))
            and not any(_overlap(keys[place], other) for at, other in enumerate(keys) if at != place)
        }

    def _is_plain(self, word: Override) -> bool:
        is_value = (
            word.type is OverrideType.CHANGE and word.package is None and word.key_or_group in schema.kinds_by_key()
        )
        is_choice = bool(self._options(word.key_or_group))
        return (
            is_value and not is_choice and not isinstance(word.value(), list | dict) and "${" not in str(word.value())
        )

    def _compose(self, words: Sequence[str]) -> _Composition:
        search_path = ",".join(in_quotes(f"file://{folder}") for folder in self._line.folders)
        config = compose(_ROOT_CONFIG, [*words, f"hydra.searchpath=[{search_path}]"], return_hydra_config=True)
        for key in _PATHS:
            section, leaf = key.split(".")
            path = OmegaConf.to_container(config[section], resolve=False)[leaf]  # type: ignore[call-overload,index]
            config[section][leaf] = self._absolute(path)
        hydra = config.hydra
        with open_dict(config):
            del config["hydra"]
        return _Composition(config, hydra)

    def _absolute(self, path: str | None) -> str | None:
        """Return *path* as meant from the project; one that begins with a reference is left to it."""
        if path is None or path.startswith(("${", "???")):
            return path
        try:
            return str(self._project / Path(path).expanduser())
        except RuntimeError as error:
            raise ConfigError(f"{path}: there is no such user here, whose home ~ would be") from error

    def _settled(self, config: DictConfig, values: Mapping[str, Any], words: tuple[str, ...]) -> Composed:
        for key, value in values.items():
            OmegaConf.update(config, key, self._absolute(value) if key in _PATHS else value)
        return Composed(run=self._run(config), overrides=words, user_config=tuple(map(str, self._line.folders)))

    def _run(self, config: DictConfig) -> Run:
        """Return the run of a composed configuration; raise `ConfigError` where it is not valid.

        The command is that of the program, where there is one. ``precision=own``, the default, is fp32 for a recipe.
        """
        try:
            values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True, enum_to_str=True)
        except MissingMandatoryValue as error:
            key = error.full_key
            raise ConfigError(f"not decided: {key} (set {key}=...; hpcml run --help lists choices)") from error
        except (OmegaConfBaseException, ValueError, TypeError, LookupError, RecursionError) as error:
            raise ConfigError(in_one_line(error)) from error
        if self._program is not None:
            values["workload"] = {**values["workload"], "command": self._program.command, "args": {}}
        if _computes_as_recipes(values):
            values["precision"] = {**values["precision"], "name": RECIPES_OWN.name}
        for section, leaf in (key.split(".") for key in _PATHS):
            values[section] = {**values[section], leaf: self._absolute(values[section][leaf])}
        run = decode(Run, values)
        assert isinstance(run, Run)
        return run

    def show(self) -> None:
        """Print the composed configuration as YAML, or the help."""
        for word in self._words:
            _refuse_several(word)
        config, hydra = self._compose([str(word.input_line) for word in self._words])
        if self._program is not None:
            config.workload.command = self._program.command.replace("${", r"\${")
        if _computes_as_recipes(OmegaConf.to_container(config, enum_to_str=True)):
            config.precision.name = PrecisionName[RECIPES_OWN.name]
        if self._line.shows == "help":
            shown = [hydra.help.header, _CHOICES, *self._choices(), _KEYS, OmegaConf.to_yaml(config), hydra.help.footer]
            print("\n".join(shown))  # noqa: T201
            return
        package = self._line.package
        part = OmegaConf.select(config, package) if package else config
        require(OmegaConf.is_config(part), f"-p {package}: the configuration has no section of that name")
        print(OmegaConf.to_yaml(part, resolve=self._line.is_resolved), end="")  # noqa: T201

    def _choices(self) -> Iterator[str]:
        for group in sorted(schema.groups()):
            line = f"{group}: {', '.join(self._options(group))}"
            yield textwrap.fill(line, _HELP_WIDTH, subsequent_indent=" " * 4, break_on_hyphens=False)

    def _options(self, group: str) -> list[str]:
        return option_names(group, self._line.folders)

    def _parsed(self, word: str) -> Override:
        return self._parser.parse_overrides([word])[0]

    def _check(self) -> None:
        """Raise `ConfigError` for what Hydra would stumble on, or take in silence though nobody can mean it."""
        for word in self._words:
            _refuse_arguments(str(word.input_line))
        if not self._line.is_sweep and not any(word.key_or_group.startswith(_MAY_SWEEP) for word in self._words):
            for word in self._words:
                _refuse_several(word)
        sweeps: dict[str, str] = {}
        for word in self._words:
            self._check_word(word)
            text, key = str(word.input_line), word.key_or_group
            if key in sweeps:
                raise ConfigError(
                    f"{sweeps[key]} and {text} both set {key}, and none of the first would be left: leave one out"
                )
            if word.is_sweep_override():
                sweeps[key] = text

    def _check_word(self, word: Override) -> None:
        text, key, value = str(word.input_line), word.key_or_group, word.value()
        options = self._options(key)
        if options and isinstance(value, list):
            _check_together(text, key, value)
        for folder in self._line.folders if options and isinstance(value, str) else ():
            why = why_no_options(folder / key / f"{value}.yaml")
            require(why is None, f"{text}: {why}")
        check.check_override(word, options=options, is_own=self._is_own)
        require(
            not key.startswith("resources.") or value != "",
            f"{text} is empty: was a variable of the shell not set? Write its value, or {key}=null for none",
        )


def option_names(group: str, folders: Sequence[Path]) -> list[str]:
    """Return the names of the options of *group*, hpcml's and those in *folders*; none where it is no group."""
    found = {path.stem for folder in (resource_dir("conf"), *folders) for path in (folder / group).glob("*.yaml")}
    return sorted(found)


def _overlap(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _first(word: Override) -> str:
    """Return the word with the first of its values, which the first point of a sweep has."""
    if not word.is_sweep_override():
        return str(word.input_line)
    return f"{word.get_key_element()}={next(iter(word.sweep_string_iterator()))}"


def _refuse_arguments(word: str) -> None:
    if found := re.match(r"\+{0,2}workload\.args\.(\w+)=", word):
        name, setting = found[1], word.partition("workload.args.")[2]
        raise ConfigError(
            f"{word}: a value for {{{name}}} is written in front of a program behind --: "
            f"hpcml run args.{setting} -- python train.py --{name} {{{name}}}"
        )


def _refuse_several(word: Override) -> None:
    if not word.is_sweep_override():
        return
    key, value = word.get_key_element(), ",".join(_plain(each) for each in quoting.split(word.get_value_string()))
    one = for_shell(key, value)
    raise ConfigError(f"{key}={value} has several values: add -m (--multirun) for a sweep, or write {one} for one")


def _plain(value: str) -> str:
    return value[1:-1].replace('\\"', '"') if value[:1] == value[-1:] == '"' else value


def _check_together(word: str, group: str, names: Sequence[object]) -> None:
    """Raise `ConfigError` where *names*, options that *word* chooses together, are none, or several of ours.

    Each of ours is whole, and would replace the one before; a user's own may say little, and lie over it.
    """
    require(
        all(isinstance(name, str) for name in names), f"{word}: an option is chosen by its name, as in {group}=NAME"
    )
    if sum((resource_dir("conf") / group / f"{name}.yaml").is_file() for name in names) > 1:
        raise ConfigError(
            f"{word} chooses all of these together, and the last alone would be left: "
            f"the values of a sweep stand without brackets: -m {group}={','.join(map(str, names))}"
        )


@contextmanager
def _hydra(folders: Sequence[Path]) -> Iterator[None]:
    """Have Hydra compose of hpcml's options and those in *folders*; what it refuses is one line.

    What a notebook set up by hydra.initialize() is put back.
    """
    before, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(resource_dir("conf")), version_base="1.3", job_name="hpcml run"):
            yield
    except (ConfigError, MemoryError):
        raise
    except UnicodeDecodeError as error:  # which does not say of which file
        odd = [str(path) for folder in folders for path in folder.rglob("*.yaml") if not _is_in_utf8(path)]
        raise ConfigError(f"{', '.join(odd) or 'a file of options'}: {error}: save it in UTF-8") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(why_unreadable("a file of options" if mark is None else mark.name, error)) from error
    except RecursionError as error:
        raise ConfigError("a word is nested too deeply to be read: fewer brackets") from error
    except Exception as error:  # whatever a library of another's raises is about the words or files that it was given
        advice = "" if __debug__ else "; PYTHONOPTIMIZE takes out what its parser works by: unset it"
        raise ConfigError(f"{in_one_line(error)}{advice}") from error
    finally:
        GlobalHydra.instance().hydra = before


def _is_in_utf8(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


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
    is a sweep. *project* and *most* are as for `compose_from_cli`. There are no runs where ``--cfg`` or ``--help`` was
    printed.
    """
    program, words = None, list(settings)
    if program_words is not None:
        program, words = read_program(program_words, words, arguments=arguments, is_literal=is_literal, most=most)
    points = compose_from_cli(words, project=project, most=most, program=program)
    points = _without_secrets(points)
    started = program or common_program([point.run for point in points])
    again = set_again(masked(words)) if points else []
    if started is None or not points:
        return points, again
    seeds, precisions = ([point.run.seed for point in points], [point.run.precision.name for point in points])
    return points, [*again, *started.remarks(seeds, precisions)]


def _without_secrets(points: Sequence[Composed]) -> list[Composed]:
    """Return *points* with overrides that have no secrets, and nothing that nobody has typed.

    Raises `ConfigError` where two would be recorded alike: they would be taken for one arm.
    """
    by_words: dict[tuple[str, ...], Composed] = {}
    shown = []
    for point in points:
        is_own = point.run.workload.command is not None
        words = tuple(masked([word for word in point.overrides if not (is_own and word in OF_OWN_PROGRAMS)]))
        other = by_words.setdefault(words, point)
        if other.overrides != point.overrides:
            pairs = zip(point.overrides, other.overrides, strict=True)
            name = next(word.partition("=")[0] for word, before in pairs if word != before)
            raise _not_told_apart(name)
        shown.append(replace(point, overrides=words))
    return shown


def check_told_apart(runs: Sequence[Run]) -> None:
    """Raise `ConfigError` where two of *runs*, which were composed apart, differ in a secret alone."""
    by_settings: dict[str, Run] = {}
    for run in runs:
        other = by_settings.setdefault(json.dumps(run.settings, sort_keys=True), run)
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


def _computes_as_recipes(values: object) -> bool:
    """Tell whether *values* are of a recipe for which no precision was chosen."""
    sections = values if isinstance(values, Mapping) else {}
    precision, workload = sections.get("precision"), sections.get("workload")
    if not (isinstance(precision, Mapping) and isinstance(workload, Mapping)):
        return False  # decoding says what is wrong
    return bool(precision.get("name") == PrecisionName.own.name and workload.get("command") is None)
