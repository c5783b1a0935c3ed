"""The columns of what is shown of GPUs and of several runs at once: how each value is written, and which give way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from hpcml.live import GpuNow, RunNow
from hpcml.records import Point
from hpcml.report.plain_text import duration, number, safe
from hpcml.report.run_words import short_uid
from hpcml.report.sparkline import sparkline
from hpcml.report.value_table import that_fit
from hpcml.states import State

STATE_STYLES = {State.COMPLETED: "green", State.RUNNING: "cyan", State.PENDING: "dim"}
_CURVE = 20  # characters
_LEFT = frozenset({"GPU", "model", "throttled", "trouble", "run", "name", "state", "use", "draw", "what is missing"})
_RED = frozenset({"throttled", "trouble"})
_GPU_DISPENSABLE = (
    *("mem MHz", "mem %", "use", "DRAM %", "draw", "SM %", "model", "kJ", "MHz", "tensor %", "°C", "throttled", "GiB"),
)
_RUN_DISPENSABLE = ("what is missing", "name", "attempt", "°C max", "GiB max", "/s", "throttled", "W", "age", "left")


def gpu_lines(gpus: Sequence[GpuNow], *, width: int) -> list[Text]:
    """Return a heading and one line for each GPU; what none of them has is left out."""
    rows = [{heading: cell(gpu) for heading, cell in _GPU_CELLS.items()} for gpu in gpus]
    return _table(rows, width, _GPU_DISPENSABLE, keep=("GPU", "util %", "W"))


def run_lines(runs: Sequence[RunNow], *, now: float, width: int) -> list[Text]:
    """Return a heading and one line for each run."""
    rows = [_run_cells(run, now) for run in runs]
    lines = _table(rows, width, _RUN_DISPENSABLE, keep=("run", "state", "step"))
    for run, line in zip(runs, lines[1:], strict=True):
        line.highlight_words([run.state.value], STATE_STYLES.get(run.state, "red"))
    return lines


def curve(points: Sequence[Point], top: float | None = None) -> str:
    """Return the newest *points* as a line; from zero to *top*, else from the lowest to the highest."""
    newest = list(points)[-_CURVE:]
    if len(newest) < 2:
        return ""
    numbered = [Point(at, point.t_s, point.value) for at, point in enumerate(newest)]
    finite = [point.value for point in numbered if abs(point.value) < float("inf")] or [0.0]
    ends = (min(finite), max(finite)) if top is None else (0.0, top)
    return sparkline(numbered, width=len(numbered), steps=(0, len(numbered) - 1), values=ends)


def value(number_of: float | None, digits: int = 0) -> str:
    """Return a value with so many decimals, "" where there is none."""
    return "" if number_of is None else f"{number_of:.{digits}f}"


def percent_of(of: str) -> Callable[[GpuNow], str]:
    """Return what writes the percentage called *of*."""
    return lambda gpu: value(gpu.values.get(of))


def step_words(run: RunNow) -> str:
    """Return how far the run is: ``120/300``."""
    if run.step is None:
        return ""
    return str(run.step) if run.steps is None else f"{run.step}/{run.steps}"


def key_metric(run: RunNow) -> tuple[str, float] | None:
    """Return the run's objective, else its loss, else nothing."""
    for name in (run.objective, "loss"):
        if name is not None and name in run.metrics:
            return name, run.metrics[name].value
    return None


def newest_at(run: RunNow) -> float | None:
    """Return when the newest sample or metric was written."""
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
    xids = f"Xid {', '.join(str(code) for code in gpu.xids)}" if gpu.xids else ""
    return "; ".join(filter(None, [f"LOST: {gpu.lost}" if gpu.lost else "", xids]))


_GPU_CELLS: Mapping[str, Callable[[GpuNow], str]] = {
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


def _run_cells(run: RunNow, now: float) -> dict[str, str]:
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
    headings = [one for one in rows[0] if one in keep or any(row[one] for row in rows)]
    words = [[safe(row[heading]) for heading in headings] for row in rows]
    shown = that_fit(headings, words, width=width, dispensable=dispensable)
    widths = {at: max(cell_len(line[at]) for line in [headings, *words]) for at in shown}
    lines = []
    for number_of, line in enumerate([headings, *words]):
        text = Text(no_wrap=True, overflow="ellipsis", style="bold" if number_of == 0 else "")
        for at in shown:
            cell, heading = line[at], headings[at]
            padding = " " * (widths[at] - cell_len(cell))
            padded = set_cell_size(cell, widths[at]) if heading in _LEFT else f"{padding}{cell}"
            text.append(padded, style="red" if number_of and heading in _RED else "")
            text.append("  ")
        text.rstrip()
        lines.append(text)
    return lines
