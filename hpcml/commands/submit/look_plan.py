"""The plan of looks for ``schedule.until=verdict``: what of a sweep is compared, by how many seeds, at which levels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hpcml.analysis import sequential
from hpcml.analysis.compare.cells import find_cells
from hpcml.analysis.compare.factor import find_factor, find_levels, find_reference
from hpcml.codec import encode
from hpcml.commands.submit.planned import Planned
from hpcml.errors import ComparisonError, ConfigError
from hpcml.model.identity import identifies
from hpcml.model.looks import LookPlan, PlannedArm
from hpcml.model.record_keys import ARGUMENTS
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import GROUPS
from hpcml.moments import local_time

LEAST_SEEDS = 5  # below there is one look, which is what a plain sweep has
_OBJECTIVE = ("metric", "goal", "margin", "scale", "scale_at", "resolution", "worst")
_SHOWN = 3


def check(planned: Sequence[Planned], *, only_missing: bool) -> None:
    """Raise `ConfigError` for what cannot be planned, before an image is built for it."""
    if only_missing:
        raise ConfigError("--missing: schedule.until=verdict knows what is missing; leave the word out")
    draft_plan(planned)


def draft_plan(planned: Sequence[Planned]) -> tuple[LookPlan, list[list[Planned]]]:
    """Return the plan for *planned*, without the ids of its runs, and the runs of each of its arms by seed.

    Raises `ConfigError` where looks cannot be planned: too few seeds, no margin, one arm, seeds that differ.
    """
    first = planned[0].run
    _refuse(planned)
    records = [_as_record(item, str(at)) for at, item in enumerate(planned)]
    by = first.schedule.by or _what_differs(planned)
    try:
        factor = find_factor(by, records)
        levels = find_levels(factor, records)
        reference = find_reference(factor, levels, first.schedule.reference)
    except ComparisonError as error:
        raise ConfigError(f"schedule.until=verdict: {str(error).replace('--by ', 'schedule.by=')}") from error
    seeds = list(dict.fromkeys(item.run.seed for item in planned))
    arms: list[PlannedArm] = []
    members: list[list[Planned]] = []
    for number, cell in enumerate(find_cells(factor, records)):
        by_level: dict[str, list[Planned]] = {}
        for record in cell.runs:
            by_level.setdefault(factor.level(record), []).append(planned[int(record.uid)])
        name = f" of {cell.name}" if cell.name else ""
        if reference not in by_level or len(by_level) < 2:
            raise ConfigError(
                f"schedule.until=verdict: {', '.join(by_level)}{name} stands alone: each table needs {reference} and "
                "another arm"
            )
        for level in sorted(by_level, key=factor.sort_key):
            own = {item.run.seed: item for item in by_level[level]}
            if len(own) != len(by_level[level]) or set(own) != set(seeds):
                raise ConfigError(
                    f"seed: {level}{name} has {_listed([item.run.seed for item in by_level[level]])}, where the sweep "
                    f"has {_listed(seeds)}: schedule.until=verdict takes the same seeds for all arms, each once"
                )
            arms.append(PlannedArm(cell=number, level=level, is_reference=level == reference, uids=[]))
            members.append([own[seed] for seed in seeds])
    if len(seeds) < LEAST_SEEDS:
        raise ConfigError(
            f"seed: schedule.until=verdict has {len(seeds)} to add, and looks take {LEAST_SEEDS} or more: give the "
            "most that you would run, as in 'seed=range(16)'"
        )
    sizes = sequential.look_sizes(len(seeds))
    rows = sum(not arm.is_reference for arm in arms)
    plan = LookPlan(
        experiment=first.experiment,
        planned_at=local_time().isoformat(timespec="seconds"),
        by=by,
        reference=reference,
        claim=first.schedule.claim,
        metric=first.objective.metric,
        goal=first.objective.goal.name,
        margin=float(first.objective.margin or 0),
        seeds=seeds,
        sizes=list(sizes),
        levels=[list(levels) for levels in sequential.find_levels(sizes, rows)],
        arms=arms,
        question=_question(planned, by, reference, arms),
    )
    return plan, members


def in_words(plan: LookPlan) -> list[str]:
    """Return what is planned, in lines for the user, with how many seeds it may save."""
    rows, sizes = len(plan.rows), plan.sizes
    levels = ", ".join(f"{level:.2g}" for level in plan.levels[rows - 1])
    many = f" while all {rows} rows are open" if rows > 1 else ""
    planned = f"looks at {', '.join(map(str, sizes))} seeds, at levels {levels}{many}"
    saved = ", ".join(f"{percent} % at a power of {power:.0%}" for power, percent in sequential.SAVED.items())
    saving = (
        f"where arms are equal that takes fewer seeds on average than a fixed plan of 6 to 24: {saved}; hpcml plan "
        "tells by the spread of your runs how many that are"
    )
    about = f"'{plan.claim}' within {plan.margin:g} in {plan.metric}, by {plan.by} against {plan.reference}"
    return [f"{planned}: {about}", saving]


def of_first_look(planned: Sequence[Planned]) -> list[Planned]:
    """Return those of *planned* whose seeds are submitted first."""
    plan, _ = draft_plan(planned)
    return [item for item in planned if item.run.seed in plan.seeds_of(1)]


def _refuse(planned: Sequence[Planned]) -> None:
    """Raise `ConfigError` for what no sweep in rounds can have."""
    runs = [item.run for item in planned]
    for what, values in (
        ("schedule.until", {run.schedule.until.name for run in runs}),
        ("schedule.claim", {run.schedule.claim for run in runs}),
        ("experiment", {run.experiment for run in runs}),
        *((f"objective.{key}", {str(getattr(run.objective, key)) for run in runs}) for key in _OBJECTIVE),
    ):
        if len(values) > 1:
            raise ConfigError(
                f"schedule.until=verdict: {what} must be the same for all runs, not {', '.join(sorted(values))}"
            )
    if runs[0].objective.margin is None:
        raise ConfigError(
            "schedule.until=verdict needs objective.margin: the largest difference that does not matter, in "
            f"{runs[0].objective.metric}"
        )
    if any(run.schedule.repeats > 1 for run in runs):
        raise ConfigError(
            f"schedule.repeats={max(run.schedule.repeats for run in runs)}: schedule.until=verdict adds seeds, not "
            "repeats; give more seeds"
        )


def _what_differs(planned: Sequence[Planned]) -> str:
    """Return the setting that the sweep varies besides the seed; precision where it is one of several."""
    flat = [{key: str(value) for key, value in item.run.settings.items()} for item in planned]
    keys = {
        key
        for key in {key for each in flat for key in each}
        if identifies(key) and key != "seed" and len({each.get(key) for each in flat}) > 1
    }
    heads = [key.partition(".")[0] for key in sorted(keys)]
    found = list(
        dict.fromkeys(
            head if head in GROUPS else key.removeprefix(ARGUMENTS)
            for key, head in zip(sorted(keys), heads, strict=True)
        )
    )
    if "seed" in found:  # a flag of the user's own program, for the run's seed
        found.remove("seed")
    if not found:
        raise ConfigError(
            "schedule.until=verdict has one arm: it compares, so sweep a setting too, as in precision=fp32,tf32"
        )
    if "precision" in found:
        return "precision"
    if len(found) > 1:
        raise ConfigError(
            f"schedule.until=verdict: the sweep varies {', '.join(found)}: say which is compared, as in "
            f"schedule.by={found[0]}"
        )
    return found[0]


def _question(planned: Sequence[Planned], by: str, reference: str, arms: Sequence[PlannedArm]) -> dict[str, str]:
    first = planned[0].run
    hashes = sorted(item.run.spec_hash for item in planned)
    objective = {f"objective.{key}": str(encode(getattr(first.objective, key))) for key in _OBJECTIVE}
    return {
        "seed": _listed(sorted({item.run.seed for item in planned})),
        **objective,
        "schedule.claim": first.schedule.claim,
        "schedule.by": by,
        "schedule.reference": reference,
        by: ",".join(dict.fromkeys(arm.level for arm in arms)),
        "settings": hashlib.sha256("".join(hashes).encode()).hexdigest()[:12],
    }


def _as_record(item: Planned, uid: str) -> RunRecord:
    """Return a run that does not exist yet as the store would hand it out."""
    run = item.run
    return RunRecord(
        uid=uid,
        path="",
        experiment=run.experiment,
        name=run.name,
        spec_hash="",
        state=State.PENDING,
        reason=None,
        exit_code=None,
        attempt=0,
        scheduler=run.cluster.scheduler.name,
        job_id=None,
        array_index=None,
        job_name=None,
        is_shared=False,
        submission=None,
        is_settled=True,
        cause=None,
        submitted_at=None,
        t_start=None,
        t_end=None,
        wall_s=None,
        seed=run.seed,
        precision=run.precision.name.name,
        precision_effective=None,
        numerics=item.plan.numerics.name,
        git_commit=None,
        git_dirty=None,
        params=run.settings,
    )


def _listed(seeds: Sequence[int]) -> str:
    if len(seeds) > _SHOWN and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"range({seeds[0]},{seeds[-1] + 1})"
    return ",".join(map(str, seeds))


def refuse_another(before: LookPlan, now: LookPlan) -> None:
    """Raise `ConfigError` where the plan *now* is not the one that was written down *before*, naming what differs."""
    for key, value in before.question.items():
        if now.question.get(key) != value:
            raise ConfigError(
                f"experiment={before.experiment} was planned with {key}={value}, not {now.question.get(key)}: a plan "
                "does not change after its first run; take another experiment=NAME"
            )
