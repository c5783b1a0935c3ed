"""The words behind ``hpcml run ... --``: a command line of the user's own, its settings, and the axes of a sweep.

Hydra never sees these words. ``--lr 0.5`` behind the script becomes ``--lr {lr}`` in the command, which runs with other
rates have in common, and ``lr`` a setting, recorded as ``workload.args.lr``; the program gets the words as typed. With
``-m`` a value that is a list is an axis: ``--lr 0.5,1.0`` are two runs. So are ``--lr=0.5,1.0`` and ``lr=0.5,1.0``; any
other word is swept by ``args.NAME=a,b`` in front of the ``--``, and ``{NAME}`` where it belongs.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpcml.config.command_line import MULTIRUN
from hpcml.config.quoting import split
from hpcml.config.sweep import MOST_RUNS, check_count
from hpcml.errors import ConfigError, require
from hpcml.model.identity import names_output
from hpcml.model.launcher import LAUNCHING_MODULES
from hpcml.model.placeholders import MIXED_PRECISION, OF_THE_RUN, fill_in, names_in
from hpcml.model.precision import PrecisionName, environment
from hpcml.model.record_keys import ARGUMENTS, setting_value
from hpcml.model.run import MOST_SEEDS, Run
from hpcml.model.secrets import masked
from hpcml.spelling import nearest

_SEED = "seed"
# What programs call their seed: LightningCLI's seed_everything, scikit-learn's random_state, DLRM's numpy-rand-seed,
# manualSeed; --system.seed is one, too.
_SEED_NAMES = re.compile(
    r"(?:(?:(?:py)?torch|np|numpy|jax|prng|rng|manual|global|base|master)_?)?(?:rand(?:om)?_?)?"
    r"seed(?:_?(?:num(?:ber)?|value))?|seed_everything|random_?state"
)
_ARGUMENT = "args."
_SPELLED_OUT = re.compile(r"\+{0,2}workload\.args\.")  # as the setting is called afterwards
SWEEP = "sweep of the program's own settings"  # how the one remark begins that is no warning
_RANGE = re.compile(r"\{?(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?\}?")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
# Of --gin_bindings=train.lr=0.1 the name is the last one; args.lr is what compare calls lr, too.
_JOINED = re.compile(
    r"(?s)(?P<prefix>(?:--?[A-Za-z][\w.-]*=(?=[A-Za-z_][\w./@-]*=))?(?:--?|[+~]{1,2})?(?:args\.)?"
    r"(?P<name>[A-Za-z_][\w./@-]*)=)(?P<value>.*)"
)
_PAIR = re.compile(r"[A-Za-z_][\w./@-]*=.*", re.DOTALL)
_SCRIPT_FILE = re.compile(r"\.(?:py|sh|R|jl|pl|lua|rb|js|ipynb)$")
_MAYBE_OUTPUT = ("o", "project", "storage")  # where they have a path
_PLACE_BEHIND = re.compile(r"(?:(?:sqlite|duckdb)(?:\+\w+)?:///)?(/(?!dev/).+)")
_STARTERS = frozenset(  # start another program, behind flags of their own
    {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "deepspeed", "accelerate", "taskset"}
    | {"numactl", "hwloc-bind", "likwid-pin"}
)
_SUBCOMMANDS = frozenset({"launch", "--"})  # of accelerate
_TAKE_PAIRS = frozenset({"mca", "gmca", "prtemca", "pmixmca", "env", "genv"})  # flags of MPI: --mca btl self,tcp
_WITH_VALUE = re.compile(r"-.*=.*|-[A-Za-z]\d+", re.DOTALL)  # flags that take nothing from the word behind
_PLACEHOLDER = re.compile(r"(?<![{$])\{([A-Za-z_][\w.]*)\}(?!\})")
_INTERPRETER = re.compile(r"(?:ba|z|da|k|fi)?sh|(?:python|pypy|perl|ruby|node|julia|Rscript|R|lua)[\d.]*")
_TAKES_CODE = re.compile(r"-[A-Za-z]*[ceE]|--eval")  # such as bash -lc, perl -ne: what follows is a program of its own
_SCRIPT = re.compile(r"-m|(?!-).*[/.].*", re.DOTALL)  # flags behind it are the program's, not the interpreter's
_NOTHING = '""'  # how a flag that is left out is shown
_LISTED = 20  # values in a line; more are a range, if they are one


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The command line of the user's own program, with placeholders, and the values of each that is swept.

    `seeds` are the values of a swept ``--seed``, which is hpcml's own setting ``seed``; `seed_name` is what the program
    calls it.
    """

    words: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)  # that all runs have, by the name of their flag
    sweeps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # values by name, in the order of the words
    seeds: tuple[str, ...] = ()
    seed_name: str = _SEED
    is_sweep: bool = False  # whether -m was said
    doubts: tuple[str, ...] = ()  # what looks like a mistake, a line each

    @property
    def command(self) -> str:
        """The words as one line; `shlex.split` gives the words again."""
        return shlex.join(self.words)

    @property
    def count(self) -> int:
        """How many combinations of the swept values there are; seeds do not count."""
        return math.prod(len(values) for values in self.sweeps.values())

    def points(self) -> Iterator[dict[str, str]]:
        """Yield the settings with each combination of the swept values, the last name changing fastest."""
        for values in itertools.product(*self.sweeps.values()):
            yield {**self.settings, **dict(zip(self.sweeps, values, strict=True))}

    def remarks(self, seeds: Sequence[int], precisions: Collection[PrecisionName]) -> list[str]:
        """Return lines for the user on runs with these *seeds* and *precisions*: what is swept, and what looks odd."""
        seed = _SEED if self.seed_name == _SEED else f"{_SEED} ({self.seed_name})"
        swept = {**self.sweeps, **({seed: self.seeds} if self.seeds else {})}
        axes = " x ".join(f"{name}: {_listed(values)}" for name, values in swept.items() if len(values) > 1)
        lines = [f"{SWEEP}: {axes}"] if axes else []
        words = [fill_in(word, self.settings) for word in self.words]
        if len(set(seeds)) > 1 and _SEED not in names_in(words, OF_THE_RUN):
            lines.append(
                f"{len(set(seeds))} seeds, and no word of the command tells the program its own: write --seed {{seed}} "
                "(a program that reads hpcml_client's run.config has it from there)"
            )
        if _are_told_apart_by_nothing(words, precisions):
            lines.append(
                f"{len(set(precisions))} precisions, and no word of the command tells the program its own: write a "
                "flag with {precision} or {mixed_precision} (a program that calls hpcml_client's apply_precision() has "
                "it from there)"
            )
        if self.is_sweep and len(seeds) == 1:
            lines.append("-m, and there is one run: a list with commas or a range is a sweep: --lr 0.1,0.5 --seed 0..4")
        if len(seeds) > 1:
            lines += _shared_outputs(words)
        return [*lines, *self.doubts]


def read_program(
    words: Sequence[str],
    settings: Sequence[str],
    *,
    arguments: Mapping[str, Sequence[str]] | None = None,
    is_literal: bool = False,
    most: int = MOST_RUNS,
) -> tuple[Program, list[str]]:
    """Return the program of *words*, those behind ``--``, and the words in front of it that are left for Hydra.

    *settings* are the words in front: ``-m`` among them makes lists in *words* axes, unless *is_literal*;
    ``args.NAME=a,b`` gives the values of the placeholder ``{NAME}``, and is taken out; *arguments* has such values as
    they are, by the names. Raises `ConfigError` for a list with an empty part, for two axes of one name, where values
    are given for a placeholder that is nowhere, and for more than *most* values.
    """
    require(bool(words), "nothing stands behind --: write the program and its arguments there, as in a shell")
    if any(word.startswith("workload.command=") for word in settings):
        raise ConfigError("workload.command=... and words behind -- both say what runs: leave one of them out")
    is_sweep = not MULTIRUN.isdisjoint(settings)
    front, rest = _in_front(settings, is_sweep=is_sweep, most=most)
    for name, values in (arguments or {}).items():
        front[name] = f"{_ARGUMENT}{name}={','.join(values)}", list(values)
    given = next((word for word in settings if word.startswith("seed=")), None)
    reading = _Reading(list(words), filled=(*OF_THE_RUN, *front), has_seed=bool(given or names_in(words, (_SEED,))))
    reading.read(most, is_sweep=is_sweep and not is_literal)
    if given and reading.typed_seed not in (None, given.removeprefix("seed=")):
        raise ConfigError(f"{given} and --seed {reading.typed_seed}: write --seed {{seed}} behind the --")
    for name, (word, values) in front.items():
        has_place = bool(names_in(reading.template, [name]))
        require(has_place, f"{word}: no word behind -- has {{{name}}}, which it would fill in")
        reading.add_axis(name, values, word)
    if reading.seeds:
        rest.append(f"seed={','.join(reading.seeds)}")
    program = Program(
        words=tuple(reading.template),
        settings=reading.settings,
        sweeps={name: tuple(values) for name, values in reading.sweeps.items()},
        seeds=tuple(reading.seeds),
        seed_name=reading.seed_name,
        is_sweep=is_sweep,
        doubts=() if is_literal else (*_placeholders(words, reading), *reading.doubts),
    )
    return program, rest


def _in_front(
    settings: Sequence[str], *, is_sweep: bool, most: int
) -> tuple[dict[str, tuple[str, list[str]]], list[str]]:
    """Return what ``args.NAME=a,b`` among *settings* gives, by the name the word and its values, and the others."""
    front: dict[str, tuple[str, list[str]]] = {}
    rest = []
    for typed in settings:
        word = _SPELLED_OUT.sub(_ARGUMENT, typed, count=1) if _SPELLED_OUT.match(typed) else typed
        name, sign, value = word.removeprefix(_ARGUMENT).partition("=")
        if not (word.startswith(_ARGUMENT) and sign):
            rest.append(word)
            continue
        require(name not in front, f"{word}: args.{name} is given twice: leave one out")
        front[name] = word, _values(value, word, most) if is_sweep else [value]
    return front, rest


def _placeholders(words: Sequence[str], reading: _Reading) -> Iterator[str]:
    """Yield a line for each word that gives a placeholder's value behind the ``--``; refuse one without a value."""
    for word in words[1:]:
        found = _PLACEHOLDER.fullmatch(word.rpartition("=")[2])
        if found is not None and (name := found[1]) not in (*OF_THE_RUN, *reading.sweeps):
            near = nearest(name, OF_THE_RUN)
            mend = f"did you mean {{{near[0]}}}?" if near else f"write args.{name}=VALUE in front of the --"
            raise ConfigError(f"nothing fills in {{{name}}} behind the --: {mend} (--as-is passes words as they are)")
    for word in words[1:]:
        if word.startswith(_ARGUMENT) and "=" in word:
            yield f"{word} behind the -- is the program's: what fills in a placeholder stands in front of the --"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that one word has the value of; the flag is in front of it there, or is the word before."""

    at: int
    in_front: str
    name: str
    value: str


class _Reading:
    """What is read of a program's words: those with placeholders, its settings, and the axes of a sweep."""

    def __init__(self, words: list[str], *, filled: Sequence[str], has_seed: bool) -> None:
        self.template = words
        self.settings: dict[str, str] = {}
        self.sweeps: dict[str, list[str]] = {}
        self.seeds: list[str] = []
        self.seed_name = _SEED
        self.typed_seed: str | None = None  # what stands behind --seed, be it the run's or not
        self.doubts: list[str] = []
        self._filled = filled  # names of placeholders that have a value
        self._has_seed = has_seed  # in front of the --, or by a placeholder

    def read(self, most: int, *, is_sweep: bool) -> None:
        """Put a placeholder for each setting into the template.

        Words stay where a setting is typed twice, is a secret, or has a placeholder of its own.
        """
        found = list(settings_in(self.template))
        values = {each: [each.value] for each in found}
        if is_sweep:
            values = {each: _values(each.value, self.template[each.at], most) for each in found}
            self._doubt_lists(found)
        seed = None if self._has_seed else _seed_among(values)
        times = Counter(each.name for each in found)
        taken = set(names_in(self.template, self._filled))
        filled = dict.fromkeys((*self._filled, *(each.name for each in found if len(values[each]) > 1)), "")
        places = set()
        for each, listed in values.items():
            name, word = each.name, self.template[each.at]
            if name == _SEED and all(map(_is_one_seed, listed)):
                self.typed_seed = each.value
            if each is seed:
                self.seeds, self.seed_name, name = listed, each.name, _SEED
                _check_values(word, name, listed)
            elif len(listed) > 1:
                _check_pairs(word, listed)
                self.add_axis(name, listed, word)
            elif times[name] == 1 and name not in taken and name != _SEED and _is_plain(name, listed[0], filled):
                self.settings[name] = listed[0]
            else:
                self.template[each.at] = f"{each.in_front}{listed[0]}"
                continue
            self.template[each.at] = f"{each.in_front}{{{name}}}"
            places.add(each.at)
        for at in {*range(len(self.template))} - places:  # what looks like one of these placeholders is text
            for name in self.settings:
                self.template[at] = self.template[at].replace(f"{{{name}}}", f"{{{{{name}}}}}")

    def add_axis(self, name: str, values: list[str], word: str) -> None:
        """Note the *values* of *name*, which *word* lists."""
        if name in self.sweeps:
            raise ConfigError(
                f"{word}: {name} is swept twice: write args.{name}={','.join(values)} in front of the --, and "
                f"{{{name}}} wherever the value belongs"
            )
        if name == _SEED and len(values) > 1 and not self._has_seed:
            raise ConfigError(f"{word}: a seed is a whole number from 0 on, e.g. --seed 0..4")
        _check_values(word, name, values)
        self.sweeps[name] = values

    def _doubt_lists(self, found: Sequence[Setting]) -> None:
        known = {each.at for each in found}
        for at in range(_own_from(self.template), len(self.template)):
            word = self.template[at]
            if at not in known and (_RANGE.fullmatch(word) or ("," in word and len(split(word)) > 1)):
                self.doubts.append(
                    f"{word} is passed as it is: lists are swept as --name {word}, --name={word} or name={word}, any "
                    f"other by args.NAME={word} in front of the --, with {{NAME}} in its place"
                )


def _seed_among(values: Mapping[Setting, list[str]]) -> Setting | None:
    """Return the setting that is the run's seed: called so, or else the only one that is called like a seed."""
    alike = [each for each, listed in values.items() if _is_seed(each.name) and all(map(_is_one_seed, listed))]
    named = [each for each in alike if each.name == _SEED] or alike
    return named[0] if len(named) == 1 else None


def _is_plain(name: str, value: str, filled: Mapping[str, str]) -> bool:
    """Whether a setting is no secret, and its value has no placeholder that something fills in."""
    typed = f"--{name}={value}"
    return bool(value) and fill_in(value, filled) == value and masked([typed]) == [typed]


def _check_values(word: str, name: str, values: Sequence[str]) -> None:
    numbers = Counter(setting_value(ARGUMENTS, value) for value in values)  # 1e-3 and 0.001 are one
    if again := next((value for value in values if numbers[setting_value(ARGUMENTS, value)] > 1), None):
        one = word.replace(",", "\\,")
        raise ConfigError(
            f"{word}: {name} has {again} twice, and would make the same run again: one list of the program's own "
            f"is written '{one}', in quotes; seeds repeat a run: --seed 0..4"
        )


def _check_pairs(word: str, values: Sequence[str]) -> None:
    if any(map(_PAIR.fullmatch, values)):
        raise ConfigError(
            f"{word!r} may be one value or several: a comma that belongs to one is written \\, in quotes; "
            f"several are args.NAME={values[0]},... in front of the --, and {{NAME}} where they belong"
        )


def settings_in(words: Sequence[str]) -> Iterator[Setting]:
    """Yield what is typed of the program's settings: ``--lr 0.1``, ``--lr=0.1``, ``lr=0.1``, ``-b 8`` and ``--amp``.

    Of several numbers behind a flag none is the setting (``--milestones 30 60``).
    """
    flag = ""
    for at in range(_own_from(words), len(words)):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else "--"
        if word == "--":
            flag = ""
        elif joined := _JOINED.fullmatch(word):
            yield Setting(at, joined["prefix"], joined["name"], joined["value"])
            flag = ""
        elif _FLAG.fullmatch(word):
            flag = word
            if re.match("--|-[A-Za-z]", following):  # it has no value: it is its own
                yield Setting(at, "", re.sub("^no[-_]", "", _name(flag)), word)
        else:
            if flag and not (_is_number(word) and _is_number(following)):
                yield Setting(at, "", _name(flag), word)
            flag = ""


def _are_seeds(values: Iterable[str]) -> bool:
    return all(value.isascii() and value.isdecimal() for value in values)


def _is_one_seed(value: str) -> bool:
    return _are_seeds([value]) and value == str(int(value)) and int(value) < MOST_SEEDS


def _is_seed(name: str) -> bool:
    return _SEED_NAMES.fullmatch(re.split(r"[./]", name.lower())[-1].replace("-", "_")) is not None


def _listed(values: Sequence[str]) -> str:
    """Return *values* in a line; of many whole numbers one after the other the first and the last."""
    if len(values) > _LISTED and _are_seeds(values):
        first, last = values[0], values[-1]
        if list(values) == [*map(str, range(int(first), int(last) + 1))]:
            return f"{first}..{last}"
    return " ".join(value or _NOTHING for value in values)


def common_program(runs: Sequence[Run]) -> Program | None:
    """Return the program that ``workload.command`` is for all of *runs*; None where it differs, or there is none."""
    commands = {run.workload.command for run in runs}
    command = commands.pop() if len(commands) == 1 else None
    try:
        return None if command is None else Program(words=tuple(shlex.split(command)))
    except ValueError:
        return None  # an open quote, which is refused when the run is planned


def _are_told_apart_by_nothing(words: Sequence[str], precisions: Collection[PrecisionName]) -> bool:
    """Whether programs of two of *precisions* would get the same words and the same switches in their environment."""
    asked = {name for name in precisions if name is not PrecisionName.own}
    switches = {frozenset(environment(name).items()) for name in asked}
    return len(switches) < len(asked) and not names_in(words, ("precision", MIXED_PRECISION))


def _code_position(words: Sequence[str]) -> int | None:
    """Return where code stands that an interpreter among *words* is to run, as in ``bash -c CODE``; None without any.

    ``./train -c 0.1,10`` and ``python train.py -e 5`` have none: these flags are the programs' own.
    """
    is_open = False  # whether the flags are an interpreter's
    for position, (before, word) in enumerate(itertools.pairwise(["", *words])):
        if is_open and _TAKES_CODE.fullmatch(before):
            return position
        if not word.startswith("-") and _INTERPRETER.fullmatch(word.rpartition("/")[2]):
            is_open = True
        elif _SCRIPT.fullmatch(word) or not (word.startswith("-") or before.startswith("-")):
            is_open = False
    return None


def _shared_outputs(words: Sequence[str]) -> Iterator[str]:
    """Yield a line for each absolute path among *words* that all runs would write to."""
    for each in settings_in(words):
        place = _PLACE_BEHIND.fullmatch(each.value)
        if place and not _PLACEHOLDER.search(each.value) and (each.name in _MAYBE_OUTPUT or names_output(each.name)):
            flag = each.in_front.rstrip("=") or words[each.at - 1]
            yield f"all runs write to {place[1]}: a relative path behind {flag} is each run's own"


def _own_from(words: Sequence[str]) -> int:
    """Return where the program's own settings begin: behind its script, its module, or code that is to be run.

    >>> [_own_from(line.split()) for line in ("python -u t.py --lr 1", "srun -n 4 ./t --lr 1", "train --lr 1")]
    [3, 4, 1]
    """
    if (code := _code_position(words)) is not None:
        return code + 1
    starts = words[0].rpartition("/")[2] in _STARTERS  # another program, which is still to come
    begin = len(words) if starts else 1
    for at, (before, word) in enumerate(itertools.pairwise(["", *words])):
        is_bare = at > 0 and _is_bare(words, at)
        if starts and before == "-m" and word not in LAUNCHING_MODULES:
            return at + 1
        is_script = _SCRIPT_FILE.search(word) or (starts and "/" in word)
        is_started = starts and is_bare and word not in _SUBCOMMANDS and words[at - 2].lstrip("-") not in _TAKE_PAIRS
        if _INTERPRETER.fullmatch(word.rpartition("/")[2]) and (not at or is_bare):
            starts, begin = True, len(words)
        elif at and (is_started or (is_script and (is_bare or starts))):
            return at + 1
    return begin


def _is_bare(words: Sequence[str], at: int) -> bool:
    """Whether the word at this place is no flag, and no value of one."""
    before = words[at - 1]
    return not words[at].startswith("-") and (not before.startswith("-") or _WITH_VALUE.fullmatch(before) is not None)


def _name(flag: str) -> str:
    return flag.lstrip("-").removeprefix(_ARGUMENT)


def _is_number(word: str) -> bool:
    return not isinstance(setting_value(ARGUMENTS, word), str)


def _values(text: str, word: str, most: int) -> list[str]:
    """Return the values that *text*, in *word*, lists; one without a list is itself."""
    parts = [part.replace("\\,", ",") for part in split(text)]
    is_switch = parts.count("") == 1 and all(map(_FLAG.fullmatch, filter(None, parts)))  # a flag that is there, or not
    if len(parts) > 1 and "" in parts and not is_switch:
        raise ConfigError(
            f"{word!r} has an empty part: values stand without blanks between them; a comma that is meant is written "
            "\\, in quotes ('0.9\\,0.999'), or --as-is in front of the -- leaves all words as they are"
        )
    values: list[str] = []
    for part in parts:
        numbers = _RANGE.fullmatch(part)
        if numbers is None or part.startswith("{") != part.endswith("}"):
            values.append(part)
            continue
        first, last, step = int(numbers[1]), int(numbers[2]), int(numbers[3] or 1) or 1
        way = step if last >= first else -step
        check_count(abs(last - first) // step + 1, most, what=word)
        values += map(str, range(first, last + (1 if way > 0 else -1), way))
    return values
