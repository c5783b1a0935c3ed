"""The compared setting (``--by``): what its name means, which levels it has, which settings and facts follow from it.

A factor is a config group (precision, model), a single setting (training.batch_size), or several that change together
(``a,b``). Each of its values among the runs is a level.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcml.errors import ComparisonError
from hpcml.model.choices import Numerics
from hpcml.model.precision import ALIASES, PrecisionName
from hpcml.model.record_keys import ARGUMENTS
from hpcml.model.records import RunRecord
from hpcml.model.told_apart import GROUPS, factor_name, setting_of, show, swept
from hpcml.spelling import did_you_mean

CELL_GROUPS = tuple(group for group in GROUPS if group != "precision")

SOFTWARE = ("framework", "torch", "tensorflow", "keras", "jax", "jaxlib", "cuda", "cudnn", "nccl")  # facts
_GPUS = ("gpu_model", "n_gpus", "gpu_driver", "gpu_power_limit_w", "gpu_max_sm_mhz", "gpu_ecc")
_DEVICES = ("resources.nodes", "resources.gpus_per_node")
PRECISION_EFFECTIVE = "precision_effective"  # a fact, of what the program was seen to multiply
# What cannot stay alike when the factor changes: it goes with the factor, and is listed where it differs.
_COMPANIONS: Mapping[str, tuple[str, ...]] = {
    "cluster": ("data.path", "workload.cwd", *_GPUS, "cpu_model"),
    "container": (*SOFTWARE, "packages", "image_sha256", "python"),
    "model": (*SOFTWARE, "code"),  # it may bring another recipe, with another framework
    "precision": (PRECISION_EFFECTIVE,),
    "strategy": (*_DEVICES, "n_gpus"),
    "resources.nodes": ("n_gpus",),
    "resources.gpus_per_node": ("strategy.processes_per_node", "n_gpus"),
    "resources.cpus_per_task": ("threads",),
}
_SHORT = {"devices": ",".join(_DEVICES), "profile": "profile.tool"}  # words for keys of other names
LAST_STEP = "last_step"  # a fact of a run and a metric: the step at which it was last reported
_PROGRAMS_OWN = "workload."
_COMMAND = "workload.command"
_SEED_WORD = re.compile(r"(?i)seed\w*[\s=]+\d+(?!\S)")  # typed by hand
_SAY_HOW_LONG = ("training.", _PROGRAMS_OWN)  # settings by which a run may be meant to take other steps
_UNITS_OF_STATISTICS = ("seed",)
_MOST_NAMED = 3
_SCALED = (PrecisionName.amp_fp16.name, PrecisionName.fp16.name)  # precisions with loss scaling
_ROUNDING = "rna"  # of emulated TF32, unless asked for another


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """The compared setting, as ``--by`` names it."""

    name: str  # precision, training.batch_size
    key: str  # precision.name, training.batch_size
    group: str | None
    parts: tuple[Factor, ...] = ()  # of several settings that change together; `key` and `group` are the first's

    @property
    def groups(self) -> frozenset[str]:
        """The config groups that are the factor, or a part of it."""
        return frozenset(part.group for part in (self, *self.parts) if part.group is not None)

    def is_about(self, key: str) -> bool:
        """Whether the setting *key* is the factor itself or lies in the config group that is."""
        if self.parts:
            return any(part.is_about(key) for part in self.parts)
        return key == self.key or (self.group is not None and key.startswith(f"{self.group}."))

    def owns(self, key: str) -> bool:
        """Whether the setting or fact *key* may change along with the factor: it is about it, or follows from it.

        With the strategy, for example, the number of nodes may change; with the cluster the model of the GPU; with a
        flag of the user's program the precision that it computes in.
        """
        if self.parts:
            return any(part.owns(key) for part in self.parts)
        section = "container" if self.key.startswith("container.") else self.name
        if key == LAST_STEP and self.key.startswith(_SAY_HOW_LONG):
            return True
        if key == PRECISION_EFFECTIVE and self.key.startswith(_PROGRAMS_OWN):
            return True  # --dtype: on one device, with one software, nothing else has chosen it
        return self.is_about(key) or key in _COMPANIONS.get(section, ())

    def level(self, run: RunRecord) -> str:
        """Return the level of *run*: the value of the setting as text; several values are joined by " x "."""
        if self.parts:
            return " x ".join(part.level(run) for part in self.parts)
        return _precision(run) if self.group == "precision" else show(setting_of(run, self.key))

    def levels(self, runs: Sequence[RunRecord]) -> list[str]:
        """Return the level of each of *runs*."""
        return [self.level(run) for run in runs]

    def sort_key(self, level: str) -> tuple[Any, ...]:
        """Return a sort key: precisions in hpcml's own order, numbers by size (2 before 10), words by letter."""
        name = level.partition(" ")[0]
        if self.group == "precision" and not self.parts and name in PrecisionName.__members__:
            return (0, list(PrecisionName.__members__).index(name), level)
        return (1, natural(level), level)


def _precision(run: RunRecord) -> str:
    """Return the requested precision, with each option that makes it another arithmetic than its name alone means."""
    options = {}
    if run.precision in _SCALED and run.params.get("precision.loss_scaling") is False:
        options["loss_scaling"] = "false"
    rounding = run.params.get("precision.rounding", _ROUNDING)
    if run.precision == PrecisionName.tf32.name and run.numerics == Numerics.emulated.name and rounding != _ROUNDING:
        options["rounding"] = show(rounding)
    return " ".join((run.precision, *(f"{key}={value}" for key, value in options.items())))


def find_factor(by: str, runs: Sequence[RunRecord]) -> Factor:
    """Return the factor that *by* names among these runs.

    Raises `ComparisonError`, with the nearest known names, where no run has such a setting, or where it is the seed.
    """
    words = [word.strip() for word in _SHORT.get(by, by).split(",")]
    if "" in words:
        raise ComparisonError(
            f"--by {shlex.quote(by)}: write the name of a setting, or several with a comma between each"
        )
    if len(words) > len(set(words)):
        raise ComparisonError(f"--by {by} names a setting twice: give each once")
    if len(words) > 1:
        parts = tuple(_find_one(word, runs, "--by") for word in words)
        return Factor(name=by, key=parts[0].key, group=parts[0].group, parts=parts)
    return _find_one(words[0], runs, "--by")


def find_seeds(word: str, runs: Sequence[RunRecord]) -> str:
    """Return the key of the setting that *word* means behind ``--seed``; raise `ComparisonError` as `find_factor`."""
    return _find_one(word, runs, "--seed").key


def _find_one(by: str, runs: Sequence[RunRecord], option: str) -> Factor:
    if by in _UNITS_OF_STATISTICS:
        raise ComparisonError(f"--by {by}: seeds are what everything else is averaged over; compare by another setting")
    argument = f"{ARGUMENTS}{by.removeprefix('args.')}"
    group = by.removesuffix(".name")
    is_flag = all(argument in run.params for run in runs)  # --name, --model: what was typed for the user's program
    if group in GROUPS and not is_flag:
        return Factor(name=group, key=f"{group}.name", group=group)
    keys = {key for run in runs for key in run.params}
    if by in keys and not is_flag:
        return Factor(name=by, key=by, group=None)
    if argument in keys:
        return Factor(name=by, key=argument, group=None)
    known = sorted(
        ({key.removeprefix(ARGUMENTS) for key in keys} | set(GROUPS) | set(_SHORT))
        - {f"{group}.name" for group in GROUPS}
        - set(_UNITS_OF_STATISTICS)
    )
    commands = {str(run.params.get(_COMMAND)) for run in runs}
    if len(commands) > 1 and any(re.search(rf"(?<!\S)-*{re.escape(by)}(?=[\s=]|$)", command) for command in commands):
        raise ComparisonError(
            f"{option} {by} is no setting of these runs, but a word of their commands, which differ: "
            f"{option} {_COMMAND}"
        )
    differ = _differing(runs)
    near = did_you_mean(by, known) or (f"what differs is {', '.join(differ)}" if differ else f"one is {known[0]}")
    raise ComparisonError(f"{option} {by} is no setting of these runs; {near}")


def find_levels(factor: Factor, runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the levels of *runs*, sorted; raises `ComparisonError` where there is only one."""
    levels = tuple(sorted(set(factor.levels(runs)), key=factor.sort_key))
    if len(levels) == 1:
        alike = f"{all_have(runs)} {factor.name}={levels[0]}: nothing to compare"
        if differ := _differing(runs):
            if levels[0] == PrecisionName.own.name:
                raise ComparisonError(f"by which setting? these runs differ in {', '.join(differ)}: --by {differ[0]}")
            raise ComparisonError(f"{alike}; what differs is {', '.join(differ)}: --by {differ[0]}")
        if levels[0] == PrecisionName.own.name:
            raise ComparisonError(
                f"{alike}; they compute as their program does, and nothing else of them differs: hpcml run -m -- "
                "PROGRAM --lr 0.1,0.5 launches runs that differ, and --by lr compares them"
            )
        other = "" if factor.parts else f", e.g. hpcml run -m {_typed(factor, f'{levels[0]},OTHER')}"
        raise ComparisonError(f"{alike}; select more runs or launch others{other}")
    return levels


def all_have(runs: Sequence[RunRecord]) -> str:
    """Return the beginning of a sentence that tells what *runs* have alike."""
    return "the only run has" if len(runs) == 1 else f"all {len(runs)} runs have"


def _differing(runs: Sequence[RunRecord]) -> list[str]:
    """Return a few of the settings but seeds in which *runs* differ, arguments of a user's own program first."""
    several = _several(runs)
    names = map(factor_name, swept(several))
    words = [key for key, values in several.items() if key == _COMMAND and _differ_beyond_seeds(values)]
    words += [key for key in several if key.startswith("workload.env.")]
    return [name for name in (*names, *words) if name not in _UNITS_OF_STATISTICS][:_MOST_NAMED]


def differing_settings(runs: Sequence[RunRecord]) -> list[str]:
    """Return the keys of a few settings in which *runs* differ, of those that are swept: never seeds and commands."""
    keys = swept(_several(runs))
    return [key for key in keys if factor_name(key) not in _UNITS_OF_STATISTICS][:_MOST_NAMED]


def _several(runs: Sequence[RunRecord]) -> dict[str, set[str]]:
    """Return the settings of which *runs* have several values, with these, sorted by name; a flag may be absent."""
    first = runs[0].params if runs else {}
    differing = {key for run in runs for key, value in run.params.items() if value != first.get(key)}
    differing |= {key for key in first if any(key not in run.params for run in runs)}
    values: dict[str, set[str]] = {}
    for key in sorted(differing):
        having = [run for run in runs if key in run.params]
        values[key] = {show(setting_of(run, key)) for run in having}
        if key.startswith(ARGUMENTS) and len(having) < len(runs):
            values[key].add(show(None))
    return {key: found for key, found in values.items() if len(found) > 1}


def _differ_beyond_seeds(commands: Iterable[str]) -> bool:
    return len({_SEED_WORD.sub("", text) for text in commands}) > 1


def _typed(factor: Factor, values: str) -> str:
    name = factor.key.removeprefix(ARGUMENTS)
    return f"{factor.name}={values}" if name == factor.key else f"args.{name}={values} -- PROGRAM ... {{{name}}}"


def find_reference(factor: Factor, levels: Sequence[str], wanted: str | None) -> str:
    """Return the level that the others are compared with: *wanted*, else fp32 where it is one, else the first.

    Raises `ComparisonError` where *wanted* is none of *levels*; for precisions aliases (float32) are understood.
    """
    if wanted is None:
        return "fp32" if "fp32" in levels else levels[0]
    if factor.group == "precision" and wanted in ALIASES:
        wanted = ALIASES[wanted].name
    if wanted not in levels:
        near = did_you_mean(wanted, levels)
        raise ComparisonError(f"reference {wanted} is none of {', '.join(levels)}{f'; {near}' if near else ''}")
    return wanted


def natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """Return a sort key that orders the numbers in *text* by size; a text that is one whole number sorts by its value.

    >>> sorted(["gpu10", "gpu9"], key=natural)
    ['gpu9', 'gpu10']
    """
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d{1,3})?", text, re.ASCII | re.IGNORECASE):
        return ((0, float(text), ""),)
    parts = re.split(r"(\d{1,18})", text)
    return tuple((0, float(part), "") if part.isdecimal() else (1, 0.0, part) for part in parts if part)
