"""Whether time or place may stand behind a difference: arms that ran one after the other, or on nodes of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from hpcml.analysis.arms import Arm
from hpcml.records import RunRecord

_NAMED = 3  # nodes in a line that people read
_LEAST = 2  # runs of an arm on a node, below which an order says nothing


def order_remarks(arms: Iterable[Arm]) -> list[str]:
    """Return a line for each way in which the arms were not interleaved; runs without a start or a node say nothing.

    A node warms up, its load and its clocks drift: what drifts while one arm runs after the other is in their
    difference, and no test can tell it apart.
    """
    started = [
        (arm.level, run) for arm in arms for run in arm.ok if run.t_start is not None and "hostname" in run.facts
    ]
    by_node: defaultdict[str, list[tuple[str, RunRecord]]] = defaultdict(list)
    for level, run in started:
        by_node[str(run.facts["hostname"])].append((level, run))
    blocks: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for node, runs in sorted(by_node.items()):
        if order := _one_after_the_other(runs):
            blocks[order].append(node)
    remarks = [
        f"not interleaved on {_listed(nodes)}: {', then '.join(order)}; what drifted meanwhile is in the differences "
        "(launch with the seeds outermost)"
        for order, nodes in blocks.items()
    ]
    return remarks + _nodes_of_their_own(by_node)


def _one_after_the_other(runs: Sequence[tuple[str, RunRecord]]) -> tuple[str, ...]:
    """Return the levels in their order, where each was over before the next began; else nothing."""
    ordered = sorted(runs, key=lambda pair: (pair[1].t_start or 0.0, pair[1].uid))
    blocks = [(level, len(list(of))) for level, of in groupby(ordered, key=lambda pair: pair[0])]
    levels = tuple(level for level, _ in blocks)
    if len(blocks) < 2 or len(set(levels)) < len(blocks) or any(n < _LEAST for _, n in blocks):
        return ()
    starts = {run.t_start for _, run in runs}
    return levels if len(starts) > 1 else ()


def _nodes_of_their_own(by_node: Mapping[str, Sequence[tuple[str, RunRecord]]]) -> list[str]:
    """Return a line where every arm had its own nodes, so that node and arm are one."""
    nodes_of: defaultdict[str, set[str]] = defaultdict(set)
    for node, runs in by_node.items():
        for level, _ in runs:
            nodes_of[level].add(node)
    if len(nodes_of) < 2 or any(len({level for level, _ in runs}) > 1 for runs in by_node.values()):
        return []
    shown = "; ".join(f"{level} on {_listed(sorted(nodes))}" for level, nodes in sorted(nodes_of.items()))
    return [f"no node ran more than one arm ({shown}): a difference may be that of the nodes"]


def _listed(nodes: Sequence[str]) -> str:
    more = len(nodes) - _NAMED
    return ", ".join(nodes[:_NAMED]) + (f" and {more} more nodes" if more > 0 else "")
