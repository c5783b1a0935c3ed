"""`hpcml top`: the lines of its screen, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from hpcml.codec import encode
from hpcml.model.live import GpuNow, NodeNow, RunNow
from hpcml.model.metric_goal import shown_metric, training_loss
from hpcml.model.records import Point
from hpcml.model.state import State
from hpcml.report.render.data import json_text
from hpcml.report.render.terminal import that_fit
from hpcml.report.runs import STATE_STYLES, short_uid
from hpcml.report.text import duration, number, safe
from hpcml.report.text_charts import sparkline

_CURVE = 20  # characters
_LEFT = frozenset({"GPU", "model", "throttled", "trouble", "run", "name", "state", "use", "draw", "what is missing"})
_RED = frozenset({"throttled", "trouble"})
_GPU_DISPENSABLE = (
    *("mem MHz", "mem %", "use", "DRAM %", "draw", "SM %", "model", "kJ", "MHz", "tensor %", "°C", "throttled", "GiB"),
)
_RUN_DISPENSABLE = ("what is missing", "name", "attempt", "°C max", "GiB max", "/s", "throttled", "W", "age", "left")


def gpu_lines(gpus: Sequence[GpuNow], *, width: int) -> list[Text]:
    """Return a heading and one line for each GPU; a column that is empty for all is left out.

    *width* is in characters: columns that do not fit are left out, too. *gpus* must not be empty.
    """
    rows = [{heading: cell(gpu) for heading, cell in GPU_CELLS.items()} for gpu in gpus]
    return _table(rows, width, _GPU_DISPENSABLE, keep=("GPU", "util %", "W"))


def run_lines(runs: Sequence[RunNow], *, now: float, width: int) -> list[Text]:
    """Return a heading and one line for each run; *now* in unix seconds. *runs* must not be empty.

    Power is the sum over the run's GPUs, utilization their mean, memory and temperature their highest.
    """
    rows = [run_cells(run, now) for run in runs]
    lines = _table(rows, width, _RUN_DISPENSABLE, keep=("run", "state", "step"))
    for run, line in zip(runs, lines[1:], strict=True):
        line.highlight_words([run.state.value], STATE_STYLES.get(run.state, "red"))
    return lines


def curve(points: Sequence[Point], top: float | None = None) -> str:
    """Return the newest *points* as a line of characters, from zero to *top*, else from the lowest to the highest.

    At most 20 points are drawn, one character each; "" for fewer than two.
    """
    newest = list(points)[-_CURVE:]
    if len(newest) < 2:
        return ""
    numbered = [Point(at, point.t_s, point.value) for at, point in enumerate(newest)]
    finite = [point.value for point in numbered if abs(point.value) < float("inf")] or [0.0]
    ends = (min(finite), max(finite)) if top is None else (0.0, top)
    return sparkline(numbered, width=len(numbered), steps=(0, len(numbered) - 1), values=ends)


def value(figure: float | None, digits: int = 0) -> str:
    """Return a number with *digits* decimals, "" for None."""
    return "" if figure is None else f"{figure:.{digits}f}"


def percent_of(of: str) -> Callable[[GpuNow], str]:
    """Return a function that writes the percentage in the field *of* of a GPU, "" where it has none."""
    return lambda gpu: value(gpu.values.get(of))


def step_words(run: RunNow) -> str:
    """Return the step reached, and of how many where known: ``120/300``."""
    if run.step is None:
        return ""
    return str(run.step) if run.steps is None else f"{run.step}/{run.steps}"


def key_metric(run: RunNow) -> tuple[str, float] | None:
    """Return name and newest value of the metric by which the run is shown; None where it has reported none."""
    name = shown_metric(run.objective, run.metrics)
    return None if name is None else (name, run.metrics[name].value)


def newest_at(run: RunNow) -> float | None:
    """Return when the newest sample or metric was written, in unix seconds; None without any."""
    known = [run.metrics_at, *(node.sampled_at for node in run.nodes)]
    return max((at for at in known if at is not None), default=None)


def _of_limit(gpu: GpuNow) -> str:
    power = value(gpu.values.get("power_w"))
    return f"{power}/{gpu.power_limit_w:.0f}" if power and gpu.power_limit_w else power


def _memory(gpu: GpuNow) -> str:
    used = gpu.values.get("memory_mb")
    if used is None:
        return ""
    return f"{used / 1024:.1f}" + (f"/{gpu.memory_total_mb / 1024:.0f}" if gpu.memory_total_mb else "")


def _clock(gpu: GpuNow) -> str:
    clock = value(gpu.values.get("sm_mhz"))
    return f"{clock}/{gpu.max_sm_mhz:.0f}" if clock and gpu.max_sm_mhz else clock


def _trouble(gpu: GpuNow) -> str:
    """Return in words that the GPU was lost, and its Xid errors (codes of NVIDIA's driver); "" without any."""
    xids = f"Xid {', '.join(str(code) for code in gpu.xids)}" if gpu.xids else ""
    return "; ".join(filter(None, [f"LOST: {gpu.lost}" if gpu.lost else "", xids]))


GPU_CELLS: Mapping[str, Callable[[GpuNow], str]] = {
    "GPU": lambda gpu: gpu.gpu.removeprefix("gpu"),
    "model": lambda gpu: gpu.model or "",
    "util %": percent_of("util_percent"),
    "use": lambda gpu: curve(gpu.util_percent, 100.0),
    "SM %": percent_of("sm_active_percent"),
    "tensor %": percent_of("tensor_percent"),
    "DRAM %": percent_of("dram_percent"),
    "mem %": percent_of("memory_util_percent"),
    "GiB": _memory,
    "W": _of_limit,
    "draw": lambda gpu: curve(gpu.power_w, gpu.power_limit_w),
    "MHz": _clock,
    "mem MHz": lambda gpu: value(gpu.values.get("mem_mhz")),
    "°C": lambda gpu: value(gpu.values.get("temperature_c")),
    "kJ": lambda gpu: "" if gpu.energy_j is None else number(gpu.energy_j / 1000),
    "throttled": lambda gpu: ", ".join(reason.replace("_", " ") for reason in gpu.throttled),
    "trouble": _trouble,
}


def run_cells(run: RunNow, now: float) -> dict[str, str]:
    """Return the line of *run* by heading; *now* in unix seconds. What is not known is ""."""
    gpus = run.gpus
    utils = [gpu.values["util_percent"] for gpu in gpus if "util_percent" in gpu.values]
    powers = [gpu.values["power_w"] for gpu in gpus if "power_w" in gpu.values]
    metric, newest = key_metric(run), newest_at(run)
    return {
        "run": short_uid(run.uid),
        "name": run.name or "",
        "state": run.state.value if run.is_settled else f"{run.state.value}?",
        "attempt": str(run.attempt) if run.attempt else "",
        "step": step_words(run),
        "/s": number(run.steps_per_s, 3),
        "left": duration(run.left_s),
        "metric": f"{metric[0]} {number(metric[1])}" if metric else "",
        "GPUs": str(len(gpus)) if gpus else "",
        "util %": value(sum(utils) / len(utils)) if utils else "",
        "W": value(sum(powers)) if powers else "",
        "GiB max": value(max((gpu.values.get("memory_mb", 0.0) for gpu in gpus), default=0.0) / 1024 or None, 1),
        "°C max": value(max((gpu.values.get("temperature_c", 0.0) for gpu in gpus), default=0.0) or None),
        "throttled": ", ".join(sorted({reason for gpu in gpus for reason in gpu.throttled})),
        "trouble": "; ".join(f"{gpu.gpu} {_trouble(gpu)}" for gpu in gpus if _trouble(gpu)),
        "age": duration(now - newest) if newest is not None and not run.state.is_final else "",
        "what is missing": run.reason if run.reason and run.state.is_final else "; ".join(run.notes),
    }


def _table(
    rows: Sequence[Mapping[str, str]], width: int, dispensable: Sequence[str], *, keep: Sequence[str]
) -> list[Text]:
    """Return the lines of a table with its heading; columns of *keep* stay even if they are empty in all rows."""
    headings = [one for one in rows[0] if one in keep or any(row[one] for row in rows)]
    words = [[safe(row[heading]) for heading in headings] for row in rows]
    shown = that_fit(headings, words, width=width, dispensable=dispensable)
    widths = {at: max(cell_len(line[at]) for line in [headings, *words]) for at in shown}
    lines = []
    for row, line in enumerate([headings, *words]):
        text = Text(no_wrap=True, overflow="ellipsis", style="bold" if row == 0 else "")
        for at in shown:
            cell, heading = line[at], headings[at]
            padding = " " * (widths[at] - cell_len(cell))
            padded = set_cell_size(cell, widths[at]) if heading in _LEFT else f"{padding}{cell}"
            text.append(padded, style="red" if row and heading in _RED else "")
            text.append("  ")
        text.rstrip()
        lines.append(text)
    return lines


_MOST_METRICS = 8  # of one run; --json has all
_OLD_S = 5.0  # a sample that is later than its interval by so much deserves a look


def runs_frame(runs: Sequence[RunNow], *, now: float, width: int) -> list[Text]:
    """Return the screen for *runs*: details for one run, a line each for several; *now* in unix seconds.

    *width* is in characters. Lines that are longer end in an ellipsis.
    """
    if len(runs) != 1:
        return run_lines(runs, now=now, width=width)
    (run,) = runs
    lines = [_title(run, now), *_progress(run), *_metrics(run, now)]
    for node in run.nodes:
        lines += [Text(), *_node(node, now=now, width=width)]
    return [*lines, Text(), *map(_as_note, run.notes)] if run.notes else lines


def run_line(run: RunNow) -> str:
    """Return a line on one run, for where nothing can be drawn anew."""
    metric = key_metric(run)
    value = f"{metric[0]} {number(metric[1])}" if metric else ""
    if run.state.is_final:
        words = ["; ".join(filter(None, [" ".join(filter(None, [run.state.value, value])), run.reason]))]
    elif run.state is State.PENDING:
        words = list(run.notes)
    else:
        step = "" if run.step is None else f"step {step_words(run)}"
        words = ["running", step, value, *_pace(run)]
    return safe("  ".join(filter(None, [run.uid, run.name, *words])))


def runs_json(runs: Sequence[RunNow]) -> str:
    """Return a JSON list with every field of `RunNow`, for ``hpcml top --once --json``."""
    return json_text([encode(run) for run in runs])


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
    return [Text("  ".join(filter(None, [f"step {step_words(run)}{share}", *_pace(run)])))]


def _pace(run: RunNow) -> tuple[str, str]:
    pace = f"{number(run.steps_per_s, 3)} steps/s" if run.steps_per_s is not None else ""
    return pace, f"{duration(run.left_s)} left" if run.left_s is not None else ""


def _metrics(run: RunNow, now: float) -> list[Text]:
    first = (shown_metric(run.objective, run.metrics), training_loss(run.metrics), "step_time_s")
    order = [*first, *sorted(run.metrics)]
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
