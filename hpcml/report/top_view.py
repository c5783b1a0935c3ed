"""A frame of ``hpcml top``: lines for the terminal, the same as plain text, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.text import Text

from hpcml.codec import encode
from hpcml.live import NodeNow, RunNow
from hpcml.report.plain_text import duration, json_ready, number, safe
from hpcml.report.top_columns import STATE_STYLES, curve, gpu_lines, run_lines, step_words, value

_MOST_METRICS = 8  # of one run; --json has all
_FIRST = ("loss", "step_time_s")  # behind the objective, before all others
_OLD_S = 5.0  # a sample that is later than its interval by so much deserves a look


def runs_frame(runs: Sequence[RunNow], *, now: float, width: int) -> list[Text]:
    """Return the lines for *runs*: all about one, a line each of several; *now* is in unix seconds."""
    if len(runs) != 1:
        return run_lines(runs, now=now, width=width)
    (run,) = runs
    lines = [_title(run, now), *_progress(run), *_metrics(run, now)]
    for node in run.nodes:
        lines += [Text(), *_node(node, now=now, width=width)]
    return [*lines, Text(), *map(_as_note, run.notes)] if run.notes else lines


def machine_frame(node: NodeNow, *, now: float, width: int) -> list[Text]:
    """Return the lines for one machine."""
    return _node(node, now=now, width=width)


def plain(lines: Sequence[Text]) -> str:
    """Return *lines* as plain text."""
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def runs_json(runs: Sequence[RunNow]) -> str:
    """Return a JSON list with every field."""
    return json.dumps([json_ready(encode(run)) for run in runs], indent=2) + "\n"


def machine_json(node: NodeNow) -> str:
    """Return every field as a JSON object."""
    return json.dumps(json_ready(encode(node)), indent=2) + "\n"


def _title(run: RunNow, now: float) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{run.uid}  ", style="bold")
    line.append(run.state.value if run.is_settled else f"{run.state.value}?", style=STATE_STYLES.get(run.state, "red"))
    words = [f"{run.experiment}/{run.name}" if run.name else run.experiment, run.job or ""]
    words += [f"attempt {run.attempt}" if run.attempt else "", _time_words(run, now)]
    words.append(run.reason or "" if run.state.is_final else "")
    line.append(safe("".join(f"  {word}" for word in words if word)))
    return line


def _time_words(run: RunNow, now: float) -> str:
    if run.state.is_final:
        return f"ended {duration(now - run.ended_at)} ago" if run.ended_at is not None else "ended"
    return f"for {duration(now - run.started_at)}" if run.started_at is not None else ""


def _progress(run: RunNow) -> list[Text]:
    if run.step is None:
        return []
    share = f" ({100 * run.step / run.steps:.0f} %)" if run.steps else ""
    pace = f"{number(run.steps_per_s, 3)} steps/s" if run.steps_per_s is not None else ""
    left = f"{duration(run.left_s)} left" if run.left_s is not None else ""
    return [Text("  ".join(filter(None, [f"step {step_words(run)}{share}", pace, left])))]


def _metrics(run: RunNow, now: float) -> list[Text]:
    order = [run.objective, *_FIRST, *sorted(run.metrics)]
    names = [name for name in dict.fromkeys(order) if name is not None and name in run.metrics]
    lines = []
    for name in names[:_MOST_METRICS]:
        latest = run.metrics[name]
        at = "" if latest.step == run.step else f"at step {latest.step}"
        words = (f"{safe(name):20}", f"{number(latest.value):>10}", curve(run.curves.get(name, ())), at)
        lines.append(Text("  ".join(filter(None, words)), no_wrap=True, overflow="ellipsis"))
    if len(names) > _MOST_METRICS:
        lines.append(Text(f"... and {len(names) - _MOST_METRICS} more: --json has all", style="dim"))
    if lines and run.metrics_at is not None and not run.state.is_final:
        lines.append(Text(f"reported {duration(now - run.metrics_at)} ago", style="dim"))
    return lines


def _node(node: NodeNow, *, now: float, width: int) -> list[Text]:
    cores = f"{value(node.cores_busy, 1)} cores busy" if node.cores_busy is not None else ""
    gib = None if node.memory_mb is None else node.memory_mb / 1024
    memory = f"{value(gib, 1 if gib >= 1 else 2)} GiB" if gib is not None else ""
    load = f"load {node.load1:.1f}" if node.load1 is not None else ""
    missed = f"{node.missed_ticks} samples missed" if node.missed_ticks else ""
    heading = Text(no_wrap=True, overflow="ellipsis")
    heading.append(safe(node.host), style="bold")
    heading.append("".join(f"  {word}" for word in (cores, memory, load, missed) if word))
    age_s = None if node.sampled_at is None else max(0.0, now - node.sampled_at)
    if node.ended is not None:
        heading.append(f"  {safe(node.ended)}", style="yellow")
    if age_s is not None:
        is_old = node.ended is None and age_s > (node.interval_s or 0.0) + _OLD_S
        heading.append(f"  sample {duration(age_s)} old", style="yellow" if is_old else "dim")
    lines = [heading]
    if node.gpus:
        lines += gpu_lines(node.gpus, width=width)
    stale = [gpu for gpu in node.gpus if _is_stale(gpu.sampled_at, node)]
    lines += [
        _as_note(f"GPU {gpu.gpu.removeprefix('gpu')}: no sample for {duration(now - (gpu.sampled_at or now))}")
        for gpu in stale
        if gpu.lost is None
    ]
    return [*lines, _as_note(node.doubt)] if node.doubt else lines


def _is_stale(sampled_at: float | None, node: NodeNow) -> bool:
    if sampled_at is None or node.sampled_at is None:
        return False
    return node.sampled_at - sampled_at > (node.interval_s or 0.0) + _OLD_S


def _as_note(text: str) -> Text:
    return Text(safe(text), style="yellow")
