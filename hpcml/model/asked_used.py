"""What runs asked of the scheduler, against what they used of it: walltime, cores and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcml.errors import ConfigError
from hpcml.model.mig import gpus_of_run
from hpcml.model.records import RunRecord
from hpcml.units import parse_memory_mb
from hpcml.walltime import parse_walltime_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedUsed:
    """One resource: what was asked, and what the hungriest of `runs` recorded runs used.

    Walltime in seconds, cores over all nodes (used: busy on average), memory of a node in MiB. Neither is None: what is
    not known has no `AskedUsed`.
    """

    what: str  # walltime | cores | memory
    asked: float
    used: float
    runs: int = 1

    @property
    def share(self) -> float:
        """The used part of what was asked; more than 1 where the run used more."""
        return self.used / self.asked if self.asked else 0.0


def asked_and_used(params: Mapping[str, Any], runs: Sequence[RunRecord]) -> list[AskedUsed]:
    """Return what *params*, the flat settings of a run, ask for, and the most that one of *runs* used of each.

    What no run tells, and what was not asked for, is left out.
    """
    found = []
    for what, (asked, used) in _RESOURCES.items():
        wanted = asked(params)
        known = [value for run in runs if (value := used(run)) is not None]
        if wanted is not None and known:
            found.append(AskedUsed(what=what, asked=wanted, used=max(known), runs=len(known)))
    return found


def of_run(run: RunRecord) -> list[AskedUsed]:
    """Return what *run* asked for and used itself; nothing before it has ended.

    Of one that took several jobs its cores alone: it ran longer than each of them, and ``hpcml retry`` may have asked
    for more than its settings say.
    """
    found = asked_and_used(run.params, [run]) if run.state.is_final else []
    return [each for each in found if run.attempt == 0 or each.what == "cores"]


def _walltime_s(params: Mapping[str, Any]) -> float | None:
    return _read(params.get("resources.walltime"), parse_walltime_s)


def _memory_mb(params: Mapping[str, Any]) -> float | None:
    return _read(params.get("resources.mem"), parse_memory_mb)


def _read(text: object, parse: Callable[[str], int]) -> float | None:
    try:
        return None if text is None else float(parse(str(text)))
    except ConfigError:  # of a record that another version wrote
        return None


def _cores(params: Mapping[str, Any]) -> float | None:
    each = params.get("resources.cpus_per_task")
    if each is None:
        return None
    processes = params.get("strategy.processes_per_node") or gpus_of_run(params) or 1
    return float(each) * float(processes) * float(params.get("resources.nodes") or 1)


def _busy_cores(run: RunRecord) -> float | None:
    if run.usage is None or run.usage.cpu_s is None or not run.wall_s:
        return None
    return run.usage.cpu_s / run.wall_s


_RESOURCES: Mapping[str, tuple[Callable[[Mapping[str, Any]], float | None], Callable[[RunRecord], float | None]]] = {
    "walltime": (_walltime_s, lambda run: run.wall_s),
    "cores": (_cores, _busy_cores),
    "memory": (_memory_mb, lambda run: None if run.usage is None else run.usage.max_host_memory_mb),
}
