"""What a scaling study counts as devices: GPUs, nodes, processes or CPU threads, and what goes with each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpcml.analysis.factor import Factor, natural
from hpcml.errors import ComparisonError
from hpcml.records import RunRecord


class Over(Enum):
    """What is counted, as people call it."""

    gpus = "GPUs"
    nodes = "nodes"
    processes = "processes"  # where there is no GPU: DDP over gloo, or a framework's logical devices
    threads = "CPU threads"


_ACROSS = frozenset({"strategy.name", "strategy.processes_per_node", "strategy.devices"})
_COMPANIONS: Mapping[Over, frozenset[str]] = {
    Over.gpus: _ACROSS | {"resources.nodes", "resources.gpus_per_node", "n_gpus"},
    Over.nodes: frozenset({"strategy.name", "resources.nodes", "n_gpus"}),
    Over.processes: _ACROSS | {"resources.nodes"},
    Over.threads: frozenset({"resources.cpus_per_task", "threads"}),
}
# In weak scaling the batch grows with the devices, and people let these go with it; a step's time depends on neither.
_WITH_THE_BATCH = frozenset({"training.batch_size", "training.learning_rate", "training.steps", "training.eval_every"})
_MORE: Mapping[Over, str] = {
    Over.gpus: "strategy=ddp resources.gpus_per_node=2,4",
    Over.nodes: "strategy=ddp resources.nodes=2,4",
    Over.processes: "strategy=ddp strategy.processes_per_node=2 resources.cpus_per_task=1",
    Over.threads: "resources.cpus_per_task=1,2,4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Factor):
    """The number of devices as the one thing that may differ; in weak scaling with the batch that grows with it."""

    over: Over
    is_weak: bool

    def owns(self, key: str) -> bool:
        """Whether the setting or fact *key* may change along with the number of devices."""
        return key in _COMPANIONS[self.over] or (self.is_weak and key in _WITH_THE_BATCH)

    def level(self, run: RunRecord) -> str:
        """Return the number of devices of *run*."""
        return str(count(run, self.over))

    def sort_key(self, level: str) -> tuple[Any, ...]:
        """Order by number."""
        return (0, natural(level), level)


def counted(over: Over, *, is_weak: bool) -> Counted:
    """Return the factor of a study over *over*."""
    return Counted(name=f"the number of {over.value}", key="", group=None, over=over, is_weak=is_weak)


def count(run: RunRecord, over: Over) -> int | None:
    """Return how many devices *run* was given, so that a run that failed counts, too; None: that is not known."""
    nodes = _whole(run, "resources.nodes") or 1
    if over is Over.nodes:
        return nodes
    if over is Over.gpus:
        per_node = _gpus_per_node(run)
        return None if per_node is None else nodes * per_node
    if over is Over.processes:
        if _gpus_per_node(run) is not None:
            return None
        return nodes * (_whole(run, "strategy.processes_per_node") or 1) * (_whole(run, "strategy.devices") or 1)
    threads = run.facts.get("threads")
    return _whole(run, "resources.cpus_per_task") or (threads if isinstance(threads, int) and threads > 0 else None)


def choose_over(runs: Sequence[RunRecord], wanted: Over | None) -> Over:
    """Return what *runs* are counted by: as *wanted*, else the first in which they differ."""
    for over in [wanted] if wanted is not None else Over:
        counts = {count(run, over) for run in runs} - {None}
        if len(counts) > 1:
            return over
    over = wanted or _natural_choice(runs)
    known = sorted(number for number in {count(run, over) for run in runs} if number is not None)
    others = [each for each in Over if len({count(run, each) for run in runs} - {None}) > 1]
    if not known:
        what = f"none of the {len(runs)} runs says on how many {over.value} it ran"
    else:
        what = f"all {len(runs)} runs have {known[0]} {one_or_many(known[0], over.value)}: nothing scales"
    cure = f"--over {others[0].name}" if others else f"launch others, e.g. hpcml run -m {_MORE[over]}"
    raise ComparisonError(f"{what}; {cure}")


def one_or_many(number: int, words: str) -> str:
    """Return *words* ("GPUs", "processes") as they stand behind *number*."""
    if number != 1:
        return words
    return words.removesuffix("es") if words.endswith("sses") else words.removesuffix("s")


def _natural_choice(runs: Sequence[RunRecord]) -> Over:
    if any(_gpus_per_node(run) is not None for run in runs):
        return Over.gpus
    return Over.processes if any((count(run, Over.processes) or 1) > 1 for run in runs) else Over.threads


def _gpus_per_node(run: RunRecord) -> int | None:
    """Return the GPUs of each node: as asked for, else one where the run had or was promised a GPU."""
    if run.facts.get("device") == "cpu":
        return None
    asked = run.params.get("resources.gpus_per_node")
    if isinstance(asked, int | float):
        return int(asked) or None
    has_gpu = run.facts.get("device") is not None or bool(run.params.get("cluster.gpus_per_node"))
    return 1 if has_gpu else None


def _whole(run: RunRecord, key: str) -> int | None:
    value = run.params.get(key)
    return int(value) if isinstance(value, int | float) and value > 0 else None
