"""Whether the walltimes asked for are long enough, judged by recorded runs: warnings of `hpcml run`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpcml.commands.machine import Machine
from hpcml.commands.submit.planned import Planned
from hpcml.model.cluster import SchedulerName
from hpcml.model.planning import Forecast
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.store.opening import looked_into
from hpcml.store.query import find_runs
from hpcml.units import spell_walltime


def warnings(planned: Sequence[Planned], places: Places, machine: Machine) -> Iterator[str]:
    """Yield a line for each walltime that is too short for a run, by the one of its runs that takes longest.

    Only runs with a walltime are judged, by recorded runs that are like them; without any, nothing is said. Raises
    `StoreError` where the store cannot be read.
    """
    asking = [item for item in planned if item.plan.stop_after_s is not None]
    if not asking or not _has_completed(places):
        return
    from hpcml.commands.estimate import estimate_as_recorded  # noqa: PLC0415 - loads the statistics

    found = estimate_as_recorded(asking, places, machine)
    if found is None:
        return
    by_walltime: dict[str, list[tuple[Planned, Forecast]]] = {}
    for item, forecast in zip(asking, found.forecasts, strict=True):
        if is_too_short(forecast):
            by_walltime.setdefault(str(item.run.resources.walltime), []).append((item, forecast))
    for walltime, short in by_walltime.items():
        item, forecast = max(short, key=lambda each: each[1].high_s or 0.0)
        yield f"resources.walltime={walltime} {_words(item, forecast, len(short), len(planned))}"


def _has_completed(places: Places) -> bool:
    """Tell whether any run is recorded to have completed: without one there is nothing to judge by."""
    with looked_into(places.store_url) as store:
        return store is not None and bool(find_runs(store, states=[State.COMPLETED], limit=1))


def is_too_short(forecast: Forecast) -> bool:
    """Tell whether the run may need more than its walltime allows.

    Judged by the upper end of the expected time; where no recorded run is alike and only similar ones are known
    (`basis` near), by the lower end. False where nothing is known, or no walltime was asked for.
    """
    expected_s = forecast.low_s if forecast.basis == "near" else forecast.high_s
    has = forecast.wanted.stop_after_s
    return expected_s is not None and has is not None and expected_s > has


def requeues(forecast: Forecast) -> int | None:
    """Return how often a run that leaves checkpoints is queued again until it has ended.

    Each attempt computes from its start-up (`start_s`) until it is warned (`warn_after_s`). None where that is not
    known, or where the start-up takes half of it or more: such a run would hardly get ahead.
    """
    start_s, warn_after_s = forecast.start_s or 0.0, forecast.wanted.warn_after_s
    if warn_after_s is None or forecast.high_s is None or warn_after_s <= 2 * start_s:
        return None
    return math.ceil((forecast.high_s - start_s) / (warn_after_s - start_s)) - 1


def _words(item: Planned, forecast: Forecast, count: int, total: int) -> str:
    assert forecast.wall_s is not None
    assert forecast.wanted.stop_after_s is not None
    will = "will not do" if (forecast.low_s or 0.0) > forecast.wanted.stop_after_s else "may not do"
    runs = f"{len(forecast.uids)} recorded run{'s'[: len(forecast.uids) != 1]}"
    which = f" for {count} of {total} runs" if total > 1 else ""
    if forecast.range_s is not None:
        needs = f"{spell_walltime(forecast.range_s[0])} to {spell_walltime(forecast.range_s[1])}"
        like = f"{runs} with other {', '.join(each.partition('=')[0] for each in forecast.differing)}"
    else:
        needs, like = f"about {spell_walltime(forecast.wall_s)}", f"{runs} like it"
        if forecast.interval is not None:
            needs += f", at most {spell_walltime(forecast.interval.high)}"
    longest = f", the longest with {forecast.wanted.name}" if total > 1 else ""
    advice = f"resources.walltime={spell_walltime(forecast.suggested_s or 0)} would"
    return f"{will}{which}: by {like}, it needs {needs}{longest}; {advice}{_going_on(item, forecast)}"


def _going_on(item: Planned, forecast: Forecast) -> str:
    run = item.run
    if run.cluster.scheduler is SchedulerName.local:
        return ""
    who = "it leaves a checkpoint" if run.model.recipe and not run.workload.command else "if it leaves checkpoints, it"
    times, most = requeues(forecast), run.schedule.max_requeues
    if times is None:
        return ""
    and_ = " and" if who.endswith("a checkpoint") else ""
    enough = "" if times <= most else f", and schedule.max_requeues={most} is too few"
    return f"; {who}{and_} is queued again {times} time{'s'[: times != 1]}{enough}"
