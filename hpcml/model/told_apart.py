"""What a setting is called, and written as, where runs are told apart by it: in lists of runs and in comparisons."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence

from hpcml.model.record_keys import AGE, ARGUMENTS, FIELDS, INCOMPLETE, NOTE_WORDS, TAG_WORDS, setting_value
from hpcml.model.records import RunRecord

GROUPS = ("model", "data", "precision", "strategy", "layout", "cluster", "container")  # hpcml's config groups
_TOLD_ANYHOW = ("model.name", "precision.name")  # by each list of runs
_MOST_NAMED = 3
# What a flag of the user's program is not called by alone: "layout=x" would ask for hpcml's own. A seed is the same.
_TAKEN = frozenset({*GROUPS, *FIELDS, *TAG_WORDS, *NOTE_WORDS, INCOMPLETE, AGE}) - {"seed"}


def swept_settings(keys: Collection[str]) -> list[str]:
    """Return those of *keys* by which `what_differs` tells runs apart."""
    return [key for key in swept(sorted(keys)) if key not in _TOLD_ANYHOW]


def what_differs(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return, by uid, the few swept settings in which the runs of one experiment differ, named as ``--by`` names them.

    For example ``lr=0.1 batch=8``. Seeds, precisions and models are left out, which lists have anyhow; a run of an
    experiment in which nothing else differs is absent.
    """
    told: dict[str, str] = {}
    of_experiment: dict[str, list[RunRecord]] = {}
    for run in runs:
        of_experiment.setdefault(run.experiment, []).append(run)
    for members in of_experiment.values():
        contents = {id(run.params): run.params for run in members}  # of runs that were loaded together few
        known = swept_settings({key for params in contents.values() for key in params})
        keys = [key for key in known if len({repr(run.params.get(key)) for run in members}) > 1]
        keys = [key for key in keys if len({show(setting_of(run, key)) for run in members}) > 1][:_MOST_NAMED]
        for run in members:
            words = [f"{factor_name(key)}={show(setting_of(run, key))}" for key in keys if key in run.params]
            if words:
                told[run.uid] = " ".join(words)
    return told


def factor_name(key: str) -> str:
    """Return by which name runs that differ in the setting *key* are compared, and selected.

    >>> factor_name("workload.args.lr"), factor_name("model.name"), factor_name("training.steps")
    ('lr', 'model', 'training.steps')
    >>> factor_name("workload.args.model")
    'args.model'
    """
    group, flag = key.removesuffix(".name"), key.removeprefix(ARGUMENTS)
    return group if group in GROUPS else f"args.{flag}" if flag != key and flag in _TAKEN else flag


def alike_words(where: Mapping[str, str]) -> list[str]:
    """Return what runs have in common as a heading tells it; a config group of which nothing was chosen says nothing.

    >>> alike_words({"cluster": "karolina", "container": "none", "workload.args.aug": "none"})
    ['cluster karolina', 'aug none']
    """
    chosen = {key: value for key, value in where.items() if key not in GROUPS or value not in ("not set", "none")}
    return [f"{factor_name(key)} {value}" for key, value in chosen.items()]


def swept(keys: Collection[str]) -> list[str]:
    """Return those of *keys* that are swept, arguments of a user's own program first: never seeds and commands."""
    own = [key for key in keys if key.startswith(ARGUMENTS)]
    groups = [f"{group}.name" for group in GROUPS if f"{group}.name" in keys]
    return [*own, *groups, *(key for key in keys if key.startswith(("training.", "resources.")))]


def setting_of(run: RunRecord, key: str) -> object:
    """Return the value of the setting *key* of *run*, None where it has none.

    Numbers among the arguments of a user's own program are recorded as they were typed, and given as numbers: 1e-3 and
    0.001 are one.
    """
    return setting_value(key, run.params.get(key))


_LONG = 1e16  # from here on, a number is written with an exponent: not all of its digits mean something


def show(value: object) -> str:
    """Return a setting or a fact as one would type it; equal numbers look alike, and None is "not set".

    >>> show(64.0), show(True), show([1, 2]), show(1e150), show("")
    ('64', 'true', '[1, 2]', '1e+150', '""')
    """
    if isinstance(value, str):
        return value or '""'
    if value is None:
        return "not set"
    if isinstance(value, int | float) and _LONG <= abs(value) <= sys.float_info.max and float(value) == value:
        return repr(float(value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)
