"""What a page that follows its runs shows besides their report: what is open, and runs, nodes and GPUs now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcml.model.live import RunNow
from hpcml.model.publication import LiveLook, Publication
from hpcml.report.document import (
    Paragraph,
    Part,
    Remarks,
    Section,
    Table,
    TableColumn,
    number_column,
    text_column,
    without_empty_columns,
    words,
)
from hpcml.report.runs import short_uid
from hpcml.report.text import safe
from hpcml.report.top import GPU_CELLS, run_cells, value

_LEVEL = "level"
_RUN_TEXTS = ("run", "name", _LEVEL, "state", "attempt", "step", "left", "metric", "trouble", "what is missing")
_RUN_NUMBERS = ("/s", "GPUs", "util %", "W", "GiB max", "°C max")
_RUN_COLUMNS = (*_RUN_TEXTS[:6], "/s", "left", "metric", *_RUN_NUMBERS[1:], *_RUN_TEXTS[8:])
_GPU_TEXTS = ("model", "use", "GiB", "W", "draw", "MHz", "throttled", "trouble")


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


def _runs(caption: str, runs: Sequence[RunNow], levels: Mapping[str, str]) -> Table:
    lines = [{**run_cells(run, 0.0), _LEVEL: levels.get(run.uid, "")} for run in runs]
    columns = [_column(name, _RUN_NUMBERS) for name in _RUN_COLUMNS]
    rows = [[words(line[name] or None) for name in _RUN_COLUMNS] for line in lines]
    return without_empty_columns(Table(caption=caption, columns=columns, rows=rows))


def _nodes(runs: Sequence[RunNow]) -> Iterator[Table]:
    """Yield a table of the nodes of *runs*, and one of their GPUs; nothing of what was not sampled."""
    nodes = [(run, node) for run in runs for node in run.nodes if node.sampled_at is not None]
    if nodes:
        columns = [text_column("run"), text_column("node"), number_column("cores busy"), number_column("memory", "GiB")]
        columns += [number_column("load"), text_column("what is missing")]
        rows = [
            [
                words(short_uid(run.uid)),
                words(node.host),
                words(value(node.cores_busy, 1) or None),
                words(value(None if node.memory_mb is None else node.memory_mb / 1024, 2) or None),
                words(value(node.load1, 1) or None),
                words(safe("; ".join(filter(None, [node.ended, node.doubt if node.gpus else None]))) or None),
            ]
            for run, node in nodes
        ]
        yield without_empty_columns(Table(caption="Their nodes", columns=columns, rows=rows))
    gpus = [
        (run, node.host, {name: cell(gpu) for name, cell in GPU_CELLS.items()})
        for run, node in nodes
        for gpu in node.gpus
    ]
    if gpus:
        columns = [text_column("run"), text_column("node"), *(_column(name, _gpu_numbers()) for name in GPU_CELLS)]
        rows = [
            [words(short_uid(run.uid)), words(host), *(words(cells[name] or None) for name in GPU_CELLS)]
            for run, host, cells in gpus
        ]
        yield without_empty_columns(Table(caption="Their GPUs", columns=columns, rows=rows))


def _gpu_numbers() -> Sequence[str]:
    return [name for name in GPU_CELLS if name not in _GPU_TEXTS]


def _column(name: str, numbers: Sequence[str]) -> TableColumn:
    return number_column(name) if name in numbers else text_column(name)
