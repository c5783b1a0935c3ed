"""`hpcml top`: the screen, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from rich.console import Console, Group, RenderableType
from rich.text import Text

from hpcml.codec import encode
from hpcml.model.live import GpuNow, NodeNow, RunNow
from hpcml.model.metric_goal import shown_metric, training_loss
from hpcml.model.records import Point
from hpcml.model.state import State
from hpcml.report.document import Column, Listing, Tone
from hpcml.report.render.data import json_text
from hpcml.report.render.terminal import listing_renderable
from hpcml.report.runs import STATE_TONES, short_uid
from hpcml.report.text import duration, number, safe
from hpcml.report.text_charts import sparkline

_CURVE = 20  # characters
_MIB_IN_GIB = 1024


def gpu_table(gpus: Sequence[GpuNow], *, console: Console) -> RenderableType:
    """Return a line for each GPU; a column that is empty for all is left out."""
    return listing_renderable(Listing(columns=GPU_COLUMNS, rows=gpus), console=console)


def run_table(runs: Sequence[RunNow], *, now: float, console: Console) -> RenderableType:
    """Return a line for each run; *now* in unix seconds.

    Power is the sum over the run's GPUs, utilization their mean, memory and temperature their highest.
    """
    return listing_renderable(Listing(columns=run_columns(now=now), rows=runs), console=console)


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


def _bad(_: object) -> Tone:
    return "bad"


GPU_COLUMNS: Sequence[Column[GpuNow]] = (
    Column("", "GPU", lambda gpu: gpu.gpu.removeprefix("gpu")),
    Column("", "model", lambda gpu: gpu.model, is_short=False),
    Column("", "util %", percent_of("util_percent"), is_number=True),
    Column("", "use", lambda gpu: curve(gpu.util_percent, 100.0)),
    Column("", "SM %", percent_of("sm_active_percent"), is_number=True),
    Column("", "tensor %", percent_of("tensor_percent"), is_number=True),
    Column("", "DRAM %", percent_of("dram_percent"), is_number=True, is_short=False),
    Column("", "mem %", percent_of("memory_util_percent"), is_number=True, is_short=False),
    Column("", "GiB", _memory, is_number=True),
    Column("", "W", _of_limit, is_number=True),
    Column("", "draw", lambda gpu: curve(gpu.power_w, gpu.power_limit_w), is_short=False),
    Column("", "MHz", _clock, is_number=True),
    Column("", "mem MHz", lambda gpu: value(gpu.values.get("mem_mhz")), is_number=True, is_short=False),
    Column("", "°C", lambda gpu: value(gpu.values.get("temperature_c")), is_number=True),
    Column("", "kJ", lambda gpu: None if gpu.energy_j is None else gpu.energy_j / 1000, is_number=True),
    Column("", "throttled", lambda gpu: ", ".join(reason.replace("_", " ") for reason in gpu.throttled), tone=_bad),
    Column("", "trouble", _trouble, tone=_bad),
)


def run_columns(*, now: float | None) -> list[Column[RunNow]]:
    """Return what is shown of a run; *now* in unix seconds, None where its age is not told."""
    return [
        Column("", "run", lambda run: short_uid(run.uid)),
        Column("", "name", lambda run: run.name),
        Column("", "state", _state, tone=lambda run: STATE_TONES.get(run.state, "bad")),
        Column("", "attempt", lambda run: str(run.attempt) if run.attempt else ""),
        Column("", "step", step_words),
        Column("", "/s", lambda run: number(run.steps_per_s, 3), is_number=True),
        Column("", "left", lambda run: duration(run.left_s), is_number=True),
        Column("", "metric", lambda run: f"{metric[0]} {number(metric[1])}" if (metric := key_metric(run)) else ""),
        Column("", "GPUs", lambda run: len(run.gpus) or None),
        Column("", "util %", lambda run: _over_gpus(run, "util_percent", mean), is_number=True),
        Column("", "W", lambda run: _over_gpus(run, "power_w", sum), is_number=True),
        Column("", "GiB max", lambda run: _over_gpus(run, "memory_mb", _most_gib, 1), is_number=True),
        Column("", "°C max", lambda run: _over_gpus(run, "temperature_c", max), is_number=True),
        Column("", "throttled", lambda run: ", ".join(sorted({why for gpu in run.gpus for why in gpu.throttled}))),
        Column("", "trouble", _troubles, tone=_bad),
        Column("", "age", lambda run: "" if now is None else _age(run, now), is_number=True),
        Column("", "what is missing", _missing),
    ]


def _state(run: RunNow) -> str:
    return run.state.value if run.is_settled else f"{run.state.value}?"


def _over_gpus(run: RunNow, name: str, of: Callable[[Sequence[float]], float], digits: int = 0) -> str:
    values = [gpu.values[name] for gpu in run.gpus if name in gpu.values]
    return value(of(values), digits) if values else ""


def _most_gib(values: Sequence[float]) -> float:
    return max(values) / _MIB_IN_GIB


def _troubles(run: RunNow) -> str:
    return "; ".join(f"{gpu.gpu} {trouble}" for gpu in run.gpus if (trouble := _trouble(gpu)))


def _age(run: RunNow, now: float) -> str:
    newest = newest_at(run)
    return "" if newest is None or run.state.is_final else duration(now - newest)


def _missing(run: RunNow) -> str:
    return run.reason if run.reason and run.state.is_final else "; ".join(run.notes)


_MOST_METRICS = 8  # of one run; --json has all
_OLD_S = 5.0  # a sample that is later than its interval by so much deserves a look


def runs_frame(runs: Sequence[RunNow], *, now: float, console: Console) -> RenderableType:
    """Return the screen for *runs*: details for one run, a line each for several; *now* in unix seconds."""
    if len(runs) != 1:
        return run_table(runs, now=now, console=console)
    (run,) = runs
    parts: list[RenderableType] = [_title(run, now), *_progress(run), *_metrics(run, now)]
    for node in run.nodes:
        parts += [Text(), _node(node, now=now, console=console)]
    return Group(*parts, *([Text(), *map(_as_note, run.notes)] if run.notes else []))


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
    line.append(_state(run), style="red" if STATE_TONES.get(run.state, "bad") == "bad" else "cyan")
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


def _node(node: NodeNow, *, now: float, console: Console) -> RenderableType:
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
    gpus = [gpu_table(node.gpus, console=console)] if node.gpus else []
    stale = [gpu for gpu in node.gpus if _is_stale(gpu.sampled_at, node)]
    notes = [
        _as_note(f"GPU {gpu.gpu.removeprefix('gpu')}: no sample for {duration(now - (gpu.sampled_at or now))}")
        for gpu in stale
        if gpu.lost is None
    ]
    return Group(heading, *gpus, *notes, *([_as_note(node.doubt)] if node.doubt else []))


def _is_stale(sampled_at: float | None, node: NodeNow) -> bool:
    if sampled_at is None or node.sampled_at is None:
        return False
    return node.sampled_at - sampled_at > (node.interval_s or 0.0) + _OLD_S


def _as_note(text: str) -> Text:
    return Text(safe(text), style="yellow")
