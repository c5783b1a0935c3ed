"""Budgets of GPU-hours or node-hours: of an experiment (``schedule.budget``), and of all runs of a home (hpcml.yaml).

What has ended counts with the time that it took, all attempts; what waits or runs, and what is to be submitted, with
its walltime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.analysis.hours import find_hours
from hpcml.commands.collect import opened
from hpcml.commands.submit.plan import Planned
from hpcml.config.user import PROJECT_FILE, home_budget
from hpcml.errors import ConfigError
from hpcml.model.hours import Budget
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.store.attempts import attempts_of
from hpcml.store.database import Database
from hpcml.store.missing import runs_below
from hpcml.store.query import find_runs

_ROUNDING_H = 1e-9  # hours are sums of fractions


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many of the planned runs, from the first on, fit into every budget; `lines` say what is left of each."""

    count: int
    lines: Sequence[str]


def fit(planned: Sequence[Planned], places: Places, *, environ: Mapping[str, str], project: Path) -> Fit:
    """Return how many of *planned* fit into the budgets of their experiments and of the home, as the store knows them.

    Raises `ConfigError` where a run has no walltime, by which it would be reckoned.
    """
    budgets = list(_budgets(planned, environ, project))
    count, lines = len(planned), list[str]()
    if not budgets:
        return Fit(count=count, lines=lines)
    with opened(places) as store:
        for budget, what, own, experiment in budgets:
            left_h, fitting = budget.hours - _taken_h(store, places, budget, experiment), 0
            for item in own:
                cost_h = _cost_h(item, budget, what)
                if cost_h > left_h + _ROUNDING_H:
                    count = min(count, next(at for at, each in enumerate(planned) if each is item))
                    break
                fitting, left_h = fitting + 1, left_h - cost_h
            behind = f" behind {fitting} more" if fitting else ""
            lines.append(f"{what}: {max(left_h, 0):.4g} of {budget.hours:g} {budget.unit}-hours are left{behind}")
    return Fit(count=count, lines=lines)


def refuse_beyond(planned: Sequence[Planned], places: Places, *, environ: Mapping[str, str], project: Path) -> None:
    """Raise `ConfigError` where not all of *planned* fit."""
    found = fit(planned, places, environ=environ, project=project)
    if found.count < len(planned):
        raise ConfigError(
            f"{'; '.join(found.lines)}, and {len(planned)} runs are asked for, by their walltimes: shorten "
            "resources.walltime, submit fewer, or raise the budget"
        )


def _budgets(
    planned: Sequence[Planned], environ: Mapping[str, str], project: Path
) -> Iterator[tuple[Budget, str, list[Planned], str | None]]:
    """Yield each budget with its name, the runs that it is about, and their experiment, None for the whole home."""
    for experiment in dict.fromkeys(item.run.experiment for item in planned):
        own = [item for item in planned if item.run.experiment == experiment]
        for text in dict.fromkeys(item.run.schedule.budget for item in own):
            if text is not None:
                what = f"schedule.budget={text} of experiment {experiment}"
                yield Budget.parse(text, field="schedule.budget"), what, own, experiment
    if (whole := home_budget(environ, project)) is not None:
        yield whole, f"the budget of this home ({PROJECT_FILE})", list(planned), None


def _cost_h(item: Planned, budget: Budget, what: str) -> float:
    wanted = item.run.resources
    if wanted.walltime_s is None:
        raise ConfigError(f"{what} is reckoned by walltimes: write resources.walltime=1h, or what a run takes at most")
    return budget.of(wall_s=wanted.walltime_s, nodes=wanted.nodes, gpus_per_node=item.plan.gpus_per_node)


def _taken_h(store: Database, places: Places, budget: Budget, experiment: str | None) -> float:
    ours = runs_below(store, places.runs)
    runs = [record for record in find_runs(store, experiment=experiment) if record.uid in ours]
    attempts = attempts_of(store, [record.uid for record in runs])
    taken_h = 0.0
    for record in runs:
        used = find_hours([record], attempts)
        taken_h += used.node_h if budget.unit == "node" else used.gpu_h or 0.0
        if not record.state.is_final:
            taken_h += _reserved_h(record, budget)
    return taken_h


def _reserved_h(record: RunRecord, budget: Budget) -> float:
    """Return what a run that waits or runs may still take."""
    manifest = read_manifest(RunDir(Path(record.path)).manifest)
    wanted = manifest.run.resources
    return budget.of(wall_s=wanted.walltime_s or 0, nodes=wanted.nodes, gpus_per_node=manifest.plan.gpus_per_node)
