"""Which recorded runs say something about the duration of one that is wanted: those alike, else those nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcml.analysis.factor import show
from hpcml.planning import Wanted
from hpcml.records import RunRecord
from hpcml.spec import identifies
from hpcml.states import State

_MOST = 20  # of the runs found, the newest: software and machines change
_LISTED = 4  # values of one setting, in a line
# What must be the same, or the runs say nothing about each other.
_SAME_WORK = ("model.name", "model.recipe", "data.name", "cluster.name", "workload.command")
# What does not change how long a run takes, or is accounted for: steps and evaluations are counted.
_NEUTRAL = frozenset({"seed", "experiment", "data.path", "workload.cwd", "workload.metrics", "training.learning_rate"})
_NEUTRAL_PLACE = frozenset({"resources.partition", "resources.queue", "resources.constraint"})  # the GPU is a fact
_COUNTED = frozenset({"training.steps", "training.eval_every"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedents:
    """Recorded runs, the newest first; `differing` is empty where they are alike but for seed and number of steps."""

    runs: Sequence[RunRecord] = ()
    differing: Sequence[str] = ()


def find_precedents(wanted: Wanted, runs: Sequence[RunRecord]) -> Precedents:
    """Return the completed *runs* that are alike, else those that differ in the fewest settings, else none."""
    able = [run for run in runs if _is_same_work(wanted, run)]
    differences = {run.uid: differing_keys(wanted.params, run.params) for run in able}
    fewest = min(map(len, differences.values()), default=0)
    nearest = [run for run in able if len(differences[run.uid]) == fewest]
    keys = sorted({key for run in nearest for key in differences[run.uid]})
    newest = sorted(nearest, key=lambda run: (run.t_end or 0.0, run.uid), reverse=True)
    return Precedents(runs=newest[:_MOST], differing=[_difference(key, wanted, nearest) for key in keys])


def differing_keys(wanted: Mapping[str, Any], recorded: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings that may change a duration and are not the same; those of one side only came later."""
    neutral = _NEUTRAL | _NEUTRAL_PLACE
    if not is_own_program(wanted):
        neutral |= _COUNTED  # the user's own program is free to ignore them: there, only the same number says something
    return frozenset(
        key
        for key in wanted.keys() & recorded.keys()
        if identifies(key)
        and key not in neutral
        and not key.startswith("objective.")
        and show(wanted[key]) != show(recorded[key])
    )


def is_own_program(params: Mapping[str, Any]) -> bool:
    """Whether a run is the user's own program and not a recipe."""
    return params.get("workload.command") is not None or params.get("model.recipe") is None


def devices_of(params: Mapping[str, Any]) -> int:
    """Return how many devices, or processes without a GPU, share a run."""
    per_node = params.get("strategy.processes_per_node") or params.get("resources.gpus_per_node") or 1
    return int(params.get("resources.nodes") or 1) * int(per_node)


def _is_same_work(wanted: Wanted, run: RunRecord) -> bool:
    if run.state is not State.COMPLETED or run.wall_s is None or run.wall_s <= 0 or run.attempt > 1:
        return False  # between two attempts lies the queue
    if any(show(wanted.params.get(key)) != show(run.params.get(key)) for key in _SAME_WORK):
        return False
    if run.numerics not in (wanted.numerics, "unproven"):
        return False
    kind = run.facts.get("device") or ("cuda" if run.facts.get("gpu_model") else "cpu")
    model = run.facts.get("cpu_model" if kind == "cpu" else "gpu_model")
    return kind == wanted.device and (wanted.device_model is None or model in (None, wanted.device_model))


def _difference(key: str, wanted: Wanted, runs: Sequence[RunRecord]) -> str:
    values = list(dict.fromkeys(show(run.params[key]) for run in runs if key in run.params))
    more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
    return f"{key}={show(wanted.params[key])} (recorded: {', '.join(values[:_LISTED])}{more})"
