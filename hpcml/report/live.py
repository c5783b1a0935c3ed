"""What a page that follows its runs shows besides their report: what is open, and runs, nodes and GPUs now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcml.model.live import GpuNow, NodeNow, RunNow
from hpcml.report.contents import LiveLook, Publication
from hpcml.report.document import Column, Listing, Paragraph, Part, Remarks, Section
from hpcml.report.runs import short_uid
from hpcml.report.top import GPU_COLUMNS, run_columns


def so_far(live: LiveLook, n_runs: int) -> Iterator[Part]:
    """Yield which of *n_runs* runs have not ended, and what may be made of a verdict before they have."""
    left = live.n_running + live.n_waiting
    have = "has" if left == 1 else "have"
    if left == 0:
        ended = "The run has" if n_runs == 1 else f"All {n_runs} runs have"
        yield Paragraph(text=f"{ended} ended: this page changes no more.")
    else:
        yield Paragraph(
            text=f"{left} of {n_runs} runs {have} not ended: every verdict here is one so far. Watching costs "
            "nothing as long as the study goes on as it was submitted. Who stops it, or adds seeds, for what stands "
            "here makes more false claims than 5 %.",
            tone="doubt",
        )
    if live.problems:
        yield Remarks(lines=live.problems, tones=["doubt"] * len(live.problems))


def live_section(publication: Publication) -> Section | None:
    """Return the runs that go and those that wait, as they are now, and the GPUs of those that go; None: all ended."""
    live = publication.live
    assert live is not None
    levels = {uid: level.name for group in publication.groups for level in group.levels for uid in level.uids}
    parts: list[Part] = []
    if live.running:
        parts.append(_runs(_caption("Running", live.running, live.n_running), live.running, levels))
        parts += _nodes(live.running)
    if live.waiting:
        parts.append(_runs(_caption("Waiting", live.waiting, live.n_waiting), live.waiting, levels))
    return Section(heading="Right now", parts=parts) if parts else None


def _caption(what: str, shown: Sequence[RunNow], of: int) -> str:
    return f"{what}: {of} runs, of which {len(shown)} are shown" if of > len(shown) else f"{what}: {of}"


def _runs(caption: str, runs: Sequence[RunNow], levels: Mapping[str, str]) -> Listing[RunNow]:
    level: Column[RunNow] = Column("", "level", lambda run: levels.get(run.uid, ""))
    name, *others = run_columns(now=None)
    return Listing(caption=caption, columns=[name, level, *others], rows=runs)


def _nodes(runs: Sequence[RunNow]) -> Iterator[Listing[Any]]:
    """Yield a table of the nodes of *runs*, and one of their GPUs; nothing of what was not sampled."""
    nodes = [(run, node) for run in runs for node in run.nodes if node.sampled_at is not None]
    columns: list[Column[tuple[RunNow, NodeNow]]] = [
        Column("", "run", lambda row: short_uid(row[0].uid)),
        Column("", "node", lambda row: row[1].host),
        Column("", "cores busy", lambda row: row[1].cores_busy),
        Column("", "memory", lambda row: None if row[1].memory_mb is None else row[1].memory_mb / 1024, unit="GiB"),
        Column("", "load", lambda row: row[1].load1),
        Column("", "what is missing", lambda row: "; ".join(filter(None, _doubts(row[1])))),
    ]
    if nodes:
        yield Listing(caption="Their nodes", columns=columns, rows=nodes)
    gpus = [(run, node, gpu) for run, node in nodes for gpu in node.gpus]
    if gpus:
        where: list[Column[tuple[RunNow, NodeNow, GpuNow]]] = [
            Column("", "run", lambda row: short_uid(row[0].uid)),
            Column("", "node", lambda row: row[1].host),
        ]
        yield Listing(caption="Their GPUs", columns=[*where, *map(_of_gpu, GPU_COLUMNS)], rows=gpus)


def _of_gpu(column: Column[GpuNow]) -> Column[tuple[RunNow, NodeNow, GpuNow]]:
    return Column("", column.heading, lambda row: column.value(row[2]), lambda row: column.written(row[2]))


def _doubts(node: NodeNow) -> list[str | None]:
    return [node.ended, node.doubt if node.gpus else None]
