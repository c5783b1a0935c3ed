"""The words behind ``hpcml run ... --``: a command line of the user's own, and the sweeps that its flags ask for.

Hydra never sees these words. ``--lr 0.5`` becomes ``--lr {lr}`` in the command, which runs with other rates have in
common, and ``lr`` a setting, recorded as ``workload.args.lr``; the program gets the words that were typed. With
``-m`` a value that is a list is a sweep: ``--lr 0.5,1.0`` are two runs.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.config.command_line import MULTIRUN
from hpcml.config.sweep import MOST_RUNS, check_count
from hpcml.errors import ConfigError
from hpcml.model.identity import names_output
from hpcml.model.launcher import LAUNCHING_MODULES
from hpcml.model.placeholders import MIXED_PRECISION, OF_THE_RUN, fill_in, names_in
from hpcml.model.precision import PrecisionName, environment
from hpcml.model.record_keys import ARGUMENTS, setting_value
from hpcml.model.run import MOST_SEEDS, Run
from hpcml.model.secrets import masked
from hpcml.runs.files import read_whole
from hpcml.spelling import nearest

_SEED = "seed"
# What programs call their seed: LightningCLI's seed_everything, scikit-learn's random_state, DLRM's numpy-rand-seed,
# manualSeed; --system.seed is one, too.
_SEED_NAMES = re.compile(
    r"(?:(?:(?:py)?torch|np|numpy|jax|prng|rng|manual|global|base|master)_?)?(?:rand(?:om)?_?)?"
    r"seed(?:_?(?:num(?:ber)?|value))?|seed_everything|random_?state"
)
_IS_PLACE = re.compile(r"arg\d+")  # of what stands behind no flag
_ARGUMENT = "args."
_SPELLED_OUT = re.compile(r"\+{0,2}workload\.args\.")  # as the setting is called afterwards
SWEEP = "sweep of the program's own settings"  # how the one remark begins that is no warning
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "\"'"
_RANGE = re.compile(r"\{?(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?\}?")
# Of --gin_bindings=train.lr=0.1,0.2 the name is the last one; args.lr is what compare calls lr, too.
_JOINED = re.compile(
    r"(?s)(?P<prefix>(?:--?[A-Za-z][\w.-]*=(?=[A-Za-z_][\w./@-]*=))?(?:--?|[+~]{1,2})?(?:args\.)?(?P<name>[A-Za-z_][\w./@-]*)=)"
    r"(?P<value>.*)"
)
_PAIR = re.compile(r"[A-Za-z_][\w./@-]*=.*", re.DOTALL)
_SHORT_JOINED = re.compile(r"(?P<prefix>-(?P<name>[A-Za-z]))(?P<value>[^A-Za-z-].*)")  # -b8,16
_FLAG_AND_VALUE = re.compile(r"--?[A-Za-z][\w.-]*\s")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_SCRIPT_FILE = re.compile(r"\.(?:py|sh|R|jl|pl|lua|rb|js)$")
_KEY = re.compile(
    r"[A-Z][A-Z0-9_]+(?:\.[A-Z][A-Z0-9_]*)*"
)  # of yacs, whose settings are bare words: SOLVER.BASE_LR 0.1
_NAME_AND_VALUE = (  # programs some of whose flags are followed by a name and a value: of notebooks, and LAMMPS
    (re.compile("papermill"), frozenset({"-p", "--parameters", "-r", "--parameters_raw"})),
    (re.compile(r"lmp(?:_\w+)?|lammps"), frozenset({"-v", "-var"})),
)
_MAYBE_OUTPUT = ("o", "project", "storage")  # where they have a path
_PLACE_BEHIND = re.compile(r"(?:(?:sqlite|duckdb)(?:\+\w+)?:///)?(/(?!dev/).+)")
_DEVICES = re.compile(r"(?:CUDA|HIP|ROCR|NVIDIA)_VISIBLE_DEVICES=|ZE_AFFINITY_MASK=|GOMP_CPU_AFFINITY=")
_PINNING = frozenset({"taskset", "numactl", "hwloc-bind", "likwid-pin"})
_OF_PINNING = re.compile(r"-.*|[\d,:.!+@SNMCEx-]+|all")  # their flags, and lists of CPUs and nodes
_MCA = frozenset({"mca", "gmca", "prtemca", "pmixmca"})  # a name and a value follow: btl self,tcp
_PAIRS = _MCA | {"env", "genv"}
_WITH_VALUE = re.compile(r"-.*=.*|-[A-Za-z]\d+", re.DOTALL)  # flags that take nothing from the word behind
_OF_MPI = frozenset({"host", "hosts", "H", "cpu-set", "cpu-list", "genvlist"})
_LISTS_OF = {  # flags whose values are lists
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), _OF_MPI),
    "srun": frozenset({"w", "nodelist", "x", "exclude", "cpu-bind", "mem-bind", "gpu-bind", "export"}),
    "deepspeed": frozenset({"include", "i", "exclude", "e"}),
    "accelerate": frozenset({"gpu_ids"}),
}
_PLACEHOLDER = re.compile(r"(?<![{$])\{([A-Za-z_][\w.]*)\}(?!\})")
_INTERPRETER = re.compile(r"(?:ba|z|da|k|fi)?sh|(?:python|pypy|perl|ruby|node|julia|Rscript|R|lua)[\d.]*")
_TAKES_CODE = re.compile(r"-[A-Za-z]*[ceE]|--eval")  # such as bash -lc, perl -ne: what follows is a program of its own
_SCRIPT = re.compile(r"-m|(?!-).*[/.].*", re.DOTALL)  # flags behind it are the program's, not the interpreter's
_OF_PRECISION = re.compile(
    r"precision|dtype|fp\d|bf\d|float|half|double|amp(?![a-z])|mixed|int8|quant|autocast", re.IGNORECASE
)
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

    def remarks(self, seeds: Sequence[int], precisions: Collection[PrecisionName], *, project: Path) -> list[str]:
        """Return lines for the user: what is swept, and what looks like a mistake.

        *seeds* and *precisions* are those of the runs. Files of *project* among the words are looked through for calls
        of ours.
        """
        seed = _SEED if self.seed_name == _SEED else f"{_SEED} ({self.seed_name})"
        swept = {**self.sweeps, **({seed: self.seeds} if self.seeds else {})}
        said = " x ".join(f"{name}: {_listed(values)}" for name, values in swept.items() if len(values) > 1)
        lines = [f"{SWEEP}: {said}"] if said else []
        words = [fill_in(word, self.settings) for word in self.words]
        is_ours = _asks_us(words, project)
        if len(set(seeds)) > 1 and _SEED not in names_in(words, OF_THE_RUN) and not is_ours:
            lines.append(
                f"{len(set(seeds))} seeds, and no word of the command tells the program its own: write --seed {{seed}} "
                "(a program that reads hpcml_client's run.config has it from there)"
            )
        if _are_told_apart_by_nothing(words, precisions) and not is_ours:
            lines.append(
                f"{len(set(precisions))} precisions, and no word of the command tells the program its own: write a "
                "flag with {precision} or {mixed_precision} (a program that calls hpcml_client's apply_precision() has "
                "it from there)"
            )
        elif len(set(precisions)) == 1 and not is_ours and _reaches_nobody(words, *set(precisions)):
            lines.append(
                f"precision={next(iter(precisions)).name}, and no word of the command tells the program: hpcml sets no "
                "switch of another program's for it; write a flag with {precision} or {mixed_precision}, or have the "
                "program call hpcml_client's apply_precision()"
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

    *settings* are the words in front: ``-m`` among them makes lists in *words* sweeps, unless *is_literal*;
    ``args.NAME=a,b`` gives the values of the placeholder ``{NAME}``, and is taken out; *arguments* has such values as
    they are, by the names. Raises `ConfigError` for a list with an empty part, for two sweeps of one name, where values
    are given for a placeholder that is nowhere, and for more than *most* values.
    """
    is_sweep = not MULTIRUN.isdisjoint(settings)
    if not words:
        raise ConfigError("nothing stands behind --: write the program and its arguments there, as in a shell")
    if any(word.startswith("workload.command=") for word in settings):
        raise ConfigError("workload.command=... and words behind -- both say what runs: leave one of them out")
    reading = _Reading(is_sweep=is_sweep, most=most)
    template = list(words)
    if is_sweep and not is_literal:
        reading, template = _swept(words, settings, most)
    rest = []
    for typed in settings:
        word = _SPELLED_OUT.sub(_ARGUMENT, typed, count=1) if _SPELLED_OUT.match(typed) else typed
        name, sign, value = word.removeprefix(_ARGUMENT).partition("=")
        if not (word.startswith(_ARGUMENT) and sign):
            rest.append(word)
        else:
            _check_named(name, word, template)
            reading.sweep(name, _values(value, word, most) if is_sweep else [value], word)
    for name, values in (arguments or {}).items():
        word = f"{_ARGUMENT}{name}={','.join(values)}"
        _check_named(name, word, template)
        reading.sweep(name, list(values), word)
    if reading.seeds and (given := [word for word in rest if word.startswith("seed=")]):
        raise ConfigError(f"{given[0]} and --seed {','.join(reading.seeds)}: write --seed {{seed}} behind the --")
    doubts = () if is_literal else _look_through(words, template, reading)
    recorded = _record(template, reading, has_seed=bool(reading.seeds) or _says_seed(words, rest))
    if reading.seeds:
        rest.append(f"seed={','.join(reading.seeds)}")
    program = Program(
        words=tuple(template),
        settings=recorded,
        sweeps={name: tuple(values) for name, values in reading.sweeps.items()},
        seeds=tuple(reading.seeds),
        seed_name=reading.seed_name,
        is_sweep=is_sweep,
        doubts=doubts,
    )
    return program, rest


def _says_seed(words: Sequence[str], settings: Sequence[str]) -> bool:
    """Whether the run's seed is given in front of the ``--``, or told the program by a placeholder."""
    return bool(names_in(words, (_SEED,))) or any(word.startswith("seed=") for word in settings)


def _swept(words: Sequence[str], settings: Sequence[str], most: int) -> tuple[_Reading, list[str]]:
    """Return *words* with placeholders for what they sweep, and its values."""
    reading = _Reading(is_sweep=True, most=most)
    template = reading.template_of(words)
    if (name := _seed_name(reading, words, settings)) != _SEED:
        reading = _Reading(is_sweep=True, most=most, seed_name=name)
        template = reading.template_of(words)
    return reading, template


def _seed_name(reading: _Reading, words: Sequence[str], settings: Sequence[str]) -> str:
    """Return what the program calls the seed that is swept: the one name of a seed with whole numbers.

    It is `_SEED` where the run's seed is given otherwise, or two names might be meant.
    """
    if reading.seeds or _says_seed(words, settings):
        return _SEED
    alike = [name for name, values in reading.sweeps.items() if _is_seed(name) and _are_seeds(values)]
    return alike[0] if len(alike) == 1 else _SEED


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


def _reaches_nobody(words: Sequence[str], precision: PrecisionName) -> bool:
    """Whether a program would do the same for *precision* as for FP32, and no word is of a precision at all."""
    is_plain = precision in (PrecisionName.own, PrecisionName.fp32)
    told = any(map(_OF_PRECISION.search, words))
    return not is_plain and not told and _are_told_apart_by_nothing(words, [precision, PrecisionName.fp32])


def _asks_us(words: Sequence[str], project: Path) -> bool:
    """Whether a word, or a file that one names, has to do with hpcml, and so may ask for its precision."""
    for word in words:
        with suppress(OSError, ValueError):
            if "hpcml" in word or (word.endswith(".py") and b"hpcml" in read_whole(project / word)):
                return True
    return False


def _check_named(name: str, word: str, template: Sequence[str]) -> None:
    if not names_in(template, [name]):
        raise ConfigError(f"{word}: no word behind -- has {{{name}}}, which it would fill in")


def _look_through(words: Sequence[str], template: Sequence[str], reading: _Reading) -> tuple[str, ...]:
    """Return a line for each of *words* that looks like a mistake.

    Raises `ConfigError` where a word, or the value of a setting, is a placeholder for which there is no value.
    """
    for word in template[1:]:
        found = _PLACEHOLDER.fullmatch(word.rpartition("=")[2])
        if found is not None and (name := found[1]) not in (*OF_THE_RUN, *reading.sweeps):
            near = nearest(name, OF_THE_RUN)
            mend = f"did you mean {{{near[0]}}}?" if near else f"write args.{name}=VALUE in front of the --"
            raise ConfigError(f"nothing fills in {{{name}}} behind the --: {mend} (--as-is passes words as they are)")
    return tuple(
        f"{word} behind the -- is a word of the program: what fills in a placeholder stands in front of the --"
        for word in words[1:]
        if word.startswith(_ARGUMENT) and "=" in word
    )


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
    for each in _settings_in(words):
        place = _PLACE_BEHIND.fullmatch(each.value)
        if place and not _PLACEHOLDER.search(each.value) and (each.name in _MAYBE_OUTPUT or names_output(each.name)):
            flag = each.in_front.rstrip("=") or words[each.at - 1]
            yield f"all runs write to {place[1]}: a relative path behind {flag} is each run's own"


class _Reading:
    """Collects the sweeps while the words are read one after the other."""

    def __init__(self, *, is_sweep: bool, most: int, seed_name: str = _SEED) -> None:
        self.sweeps: dict[str, list[str]] = {}
        self.seeds: list[str] = []
        self.seed_name = seed_name
        self.is_sweep = is_sweep
        self._most = most

    def sweep(self, name: str, values: list[str], word: str) -> str:
        """Note the *values* of *name*; return the placeholder for them, or the only value of a list that is none."""
        if name in self.sweeps or (name == self.seed_name and self.seeds):
            raise ConfigError(
                f"{word}: {name} is swept twice: write args.{name}={','.join(values)} in front of the --, and "
                f"{{{name}}} wherever the value belongs"
            )
        numbers = Counter(setting_value(ARGUMENTS, value) for value in values)  # 1e-3 and 0.001 are one
        if again := next((value for value in values if numbers[setting_value(ARGUMENTS, value)] > 1), None):
            one = word.replace(",", "\\,")
            raise ConfigError(
                f"{word}: {name} has {again} twice, and would make the same run again: one list of the program's own "
                f"is written '{one}', in quotes; seeds repeat a run: --seed 0..4"
            )
        if name != self.seed_name or not self.is_sweep:
            self.sweeps[name] = values
            return f"{{{name}}}"
        if not _are_seeds(values):
            raise ConfigError(f"{word}: a seed is a whole number from 0 on, e.g. --seed 0..4")
        self.seeds = values
        return f"{{{_SEED}}}"

    def template_of(self, words: Sequence[str]) -> list[str]:
        template = [words[0]]
        left_alone = {_code_position(words), *_of_launcher(words)}
        flag: str | None = None
        for position, word in enumerate(words[1:], start=1):
            if position in left_alone or word == "--":
                template.append(word)
                flag = None
                continue
            if _FLAG_AND_VALUE.match(word) and len(_split(word)) > 1:
                raise ConfigError(
                    f"{word!r} is one word: leave out the quotes around a flag and its values, or --as-is in front of "
                    "the -- leaves all words as they are"
                )
            if (parts := _switch(word)) is not None:
                name = next(part for part in parts if part).lstrip("-")
                template.append(self.sweep(name, parts, word))
                flag = None
                continue
            joined = _JOINED.fullmatch(word) or _SHORT_JOINED.fullmatch(word)
            if joined is None and _FLAG.fullmatch(word):
                template.append(word)
                flag = word
                continue
            if joined is not None:
                prefix, name, value = joined["prefix"], joined["name"], joined["value"]
            else:
                prefix, value = "", word
                name = _own_name(word) or (_name(flag) if flag else _place_name(words, position))
            following = words[position + 1] if position + 1 < len(words) else "-"
            if value.endswith(",") and value[:-1] and not following.startswith("-"):
                raise ConfigError(
                    f"{word!r} ends with a comma: values stand without blanks between them: {word}{following}"
                )
            values = _values(value, word, self._most)
            if joined is not None and len(values) > 1 and all(map(_PAIR.fullmatch, values[1:])):
                raise ConfigError(
                    f"{word!r} may be one value or several: a comma that belongs to one is written \\, in quotes; "
                    f"several are args.NAME={values[0]},... in front of the --, and {{NAME}} where they belong"
                )
            template.append(prefix + (values[0] if len(values) == 1 else self.sweep(name, values, word)))
            flag = None
        return template


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting that one word has the value of; the flag is in front of it there, or is the word before."""

    at: int
    in_front: str
    name: str
    value: str


def _record(template: list[str], reading: _Reading, *, has_seed: bool) -> dict[str, str]:
    """Put a placeholder for each setting of the program into *template*; return the values by their names.

    Words stay where a setting is typed twice, is a secret, or has a placeholder. The seed becomes that of *reading*,
    unless it *has_seed*.
    """
    found = list(_settings_in(template))
    times = Counter(each.name for each in found)
    filled = dict.fromkeys((*OF_THE_RUN, *reading.sweeps), "")
    taken = {*reading.sweeps, *names_in(template, OF_THE_RUN)}
    once = [each for each in found if times[each.name] == 1 and each.name not in taken]
    once = [each for each in once if each.value and fill_in(each.value, filled) == each.value]
    seeds = [each for each in once if _is_seed(each.name) and _is_one_seed(each.value)]
    seeds = [each for each in seeds if each.name == _SEED] or seeds
    settings, places = {}, set()
    for each in once:
        name, typed = each.name, f"--{each.name}={each.value}"
        if [each] == seeds and not has_seed:
            reading.seeds, reading.seed_name, name = [each.value], name, _SEED
        elif name != _SEED and masked([typed]) == [typed]:
            settings[name] = each.value
        else:
            continue
        template[each.at] = f"{each.in_front}{{{name}}}"
        places.add(each.at)
    for at in {*range(len(template))} - places:  # what looks like one of these placeholders is text
        for name in settings:
            template[at] = template[at].replace(f"{{{name}}}", f"{{{{{name}}}}}")
    return settings


def _settings_in(words: Sequence[str]) -> Iterator[_Setting]:
    """Yield what is typed of the program's settings: ``--lr 0.1``, ``--lr=0.1``, ``lr=0.1``, ``-b 8`` and ``--amp``.

    Of several numbers behind a flag none is the setting (``--milestones 30 60``).
    """
    left_alone, flag = {*_of_launcher(words)}, ""
    for at in range(_own_from(words), len(words)):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else "--"
        if at in left_alone or word == "--":
            flag = ""
        elif joined := _JOINED.fullmatch(word) or _SHORT_JOINED.fullmatch(word):
            yield _Setting(at, joined["prefix"], joined["name"], joined["value"])
            flag = ""
        elif _FLAG.fullmatch(word):
            flag = word
            if re.match("--|-[A-Za-z]", following):  # it has no value: it is its own
                yield _Setting(at, "", _flag_name(word), word)
        else:
            name = _name(flag) or _place_name(words, at)
            if not (_IS_PLACE.fullmatch(name) or (_is_number(word) and _is_number(following))):
                yield _Setting(at, "", name, word)
            flag = ""


def _own_from(words: Sequence[str]) -> int:
    """Return where the program's own settings begin: behind its script, its module, or code that is to be run.

    >>> [_own_from(line.split()) for line in ("python -u t.py --lr 1", "srun -n 4 ./t --lr 1", "train --lr 1")]
    [3, 4, 1]
    """
    if (code := _code_position(words)) is not None:
        return code + 1
    starts = words[0].rpartition("/")[2] in (*_LISTS_OF, *_PINNING)  # another program, which is still to come
    begin = len(words) if starts else 1
    for at, (before, word) in enumerate(itertools.pairwise(["", *words])):
        if starts and before == "-m" and word not in LAUNCHING_MODULES:
            return at + 1
        if _INTERPRETER.fullmatch(word.rpartition("/")[2]) and (not at or _is_bare(words, at)):
            starts, begin = True, len(words)
        elif at and (_SCRIPT_FILE.search(word) or (starts and "/" in word)) and (starts or _is_bare(words, at)):
            return at + 1
    return begin


def _of_launcher(words: Sequence[str]) -> Iterator[int]:
    """Yield where words have lists that say where a program runs: of CPUs, GPUs, hosts and parts of MPI.

    >>> words = "mpirun --mca btl self,tcp -H a,b python t.py -H 1,2".split()
    >>> [words[at] for at in _of_launcher(words)]
    ['self,tcp', 'a,b']
    """
    yield from (at for at, word in enumerate(words) if _DEVICES.match(word))
    launcher = words[0].rpartition("/")[2]
    if launcher in _PINNING:
        yield from itertools.takewhile(lambda at: _OF_PINNING.fullmatch(words[at]) is not None, range(1, len(words)))
    elif launcher in _LISTS_OF:
        pair_end = 1  # the program is not the word at 1, which may be the launcher's (accelerate launch)
        for at in range(1, len(words)):
            key = words[at].lstrip("-") if words[at].startswith("-") else ""
            if key in _PAIRS and at + 2 < len(words):
                pair_end = at + 2
                yield from [at + 2] if key in _MCA else []
            elif key in _LISTS_OF[launcher]:
                yield at + 1
            elif key.partition("=")[0] in _LISTS_OF[launcher]:
                yield at
            elif _begins_program(words, at) or (at > pair_end and _is_bare(words, at)):
                return


def _is_bare(words: Sequence[str], at: int) -> bool:
    """Whether the word at this place is no flag, and no value of one."""
    before = words[at - 1]
    return not words[at].startswith("-") and (not before.startswith("-") or _WITH_VALUE.fullmatch(before) is not None)


def _begins_program(words: Sequence[str], at: int) -> bool:
    """Whether the word at this place is what a launcher starts, by its look."""
    word = words[at]
    is_name = _INTERPRETER.fullmatch(word.rpartition("/")[2]) is not None or "/" in word or word.endswith(".py")
    return is_name and not word.startswith("-")


def _name(flag: str) -> str:
    return flag.lstrip("-").removeprefix(_ARGUMENT)


def _flag_name(flag: str) -> str:
    return re.sub("^no[-_]", "", _name(flag))


def _is_number(word: str) -> bool:
    return not isinstance(setting_value(ARGUMENTS, word), str)


def _own_name(word: str) -> str | None:
    """Return the name of the flag that *word* has with and without "no"; None where it is anything else.

    >>> _own_name("--bn,--no-bn"), _own_name("--noamp,--amp"), _own_name("--fp16,--bf16"), _own_name("1,2")
    ('bn', 'amp', None, None)
    """
    flags = _split(word)
    names = set(map(_flag_name, flags))
    names -= {f"no{name}" for name in names}  # absl's
    return names.pop() if len(names) == 1 < len(flags) and all(map(_FLAG.fullmatch, flags)) else None


def _names(words: Sequence[str]) -> Iterator[str]:
    return (word.rpartition("/")[2] for word in words)


def _place_name(words: Sequence[str], position: int) -> str:
    """Return what the values of the word at *position* are called, which stands behind no flag: by a key before it."""
    before = words[position - 1]
    is_key = _KEY.fullmatch(before) or (
        position > 2
        and before.isidentifier()
        and any(
            words[position - 2] in flags and any(map(program.fullmatch, _names(words[: position - 2])))
            for program, flags in _NAME_AND_VALUE
        )
    )
    return before if is_key else f"arg{position}"


def _values(text: str, word: str, most: int) -> list[str]:
    if (switch := _switch(text)) is not None:
        return switch
    parts = _split(text)
    if len(parts) > 1 and "" in parts:
        raise ConfigError(
            f"{word!r} has an empty part: a comma that is meant is written \\, in quotes ('0.9\\,0.999'), or "
            "--as-is in front of the -- leaves all words as they are (of flags it is one that is left out: --amp,)"
        )
    values: list[str] = []
    for part in parts:
        numbers = _RANGE.fullmatch(part)
        if numbers is None or part.startswith("{") != part.endswith("}"):
            values.append(part)
            continue
        first, last, step = int(numbers[1]), int(numbers[2]), int(numbers[3] or 1) or 1
        way = step if last >= first else -step
        numbered = range(first, last + (1 if way > 0 else -1), way)
        check_count(abs(last - first) // step + 1, most, what=word)
        values += map(str, numbered)
    return values


def _switch(text: str) -> list[str] | None:
    """Return the parts of *text* where they are flags and one empty part, which is none of them; else None.

    >>> _switch("--amp,"), _switch(",--fp16,--bf16"), _switch("--lr,0.1"), _switch("--amp")
    (['--amp', ''], ['', '--fp16', '--bf16'], None, None)
    """
    parts = _split(text)
    are_flags = all(_FLAG.fullmatch(part) for part in parts if part)
    return parts if len(parts) > 1 and parts.count("") == 1 and are_flags else None


def _split(text: str) -> list[str]:
    """Return the parts between commas that stand outside of brackets and quotes; a backslash keeps its comma."""
    parts, current, depth, quote = [], "", 0, ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            current += following if following == "," else character + following
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth = max(0, depth - 1)
        elif character == "," and depth == 0:
            parts.append(current)
            current = ""
            continue
        current += character
    return [*parts, current]
