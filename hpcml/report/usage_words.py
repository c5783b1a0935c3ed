"""What a run used and what a step of it does, in words for the details of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from hpcml.answers import Span, Timeline
from hpcml.records import Point, Usage, Work
from hpcml.report.plain_text import number, safe
from hpcml.report.sparkline import sparkline

_SCOPES = {
    "board": "of whole boards, of which the run had instances",
    "shared": "of GPUs that may not have been the run's alone",
}
_WIDTH = 32  # characters of a timeline
_SHOWN = 16  # timelines of GPUs


def usage_words(usage: Usage) -> Iterator[tuple[str, object]]:
    """Yield what was measured beside a run; None stands for what was not."""
    yield "GPUs", _gpus(usage)
    yield "energy", _energy(usage)
    yield "energy, remarks", usage.energy_reason
    co2 = None if usage.co2_g is None else f"{number(usage.co2_g)} g"
    yield "CO2", _joined(co2, usage.co2_source and f"({usage.co2_source})", by="  ")
    power = (("mean", usage.mean_power_w), ("highest", usage.max_power_w), ("limit", usage.power_limit_w))
    yield "power of a GPU", _joined(*(_with(name, value, "W") for name, value in power))
    throttled = (("power cap", usage.throttled_power_share), ("heat", usage.throttled_thermal_share))
    shares = [_with(name, None if share is None else 100 * share, "%") for name, share in throttled]
    yield "clocks lowered", _joined(*shares, "of the time" if any(shares) else None)
    yield "SM clock", _with("median", usage.sm_mhz, "MHz")
    yield "utilisation", _joined(_with("", usage.util_percent, "%"), _with("memory", usage.memory_util_percent, "%"))
    yield (
        "active",
        _joined(
            _with("SMs", usage.sm_active_percent, "%"),
            _with("tensor cores", usage.tensor_percent, "%"),
            _with("memory bandwidth", usage.dram_percent, "%"),
        ),
    )
    yield "GPU memory", _with("at most", usage.max_memory_mb, "MiB")
    yield "temperature", _with("at most", usage.max_temperature_c, "degrees Celsius")
    yield "CPU time", _with("", usage.cpu_s, "s")
    yield "memory", _with("at most", usage.max_host_memory_mb, "MiB on a node")
    yield "Xid errors", usage.xids
    yield "incomplete", usage.incomplete


def work_words(work: Work) -> Iterator[tuple[str, object]]:
    """Yield what one optimiser step does over all devices, as the program counted it."""
    yield "devices", work.devices
    flops = None if work.model_flops is None else f"{number(work.model_flops)} forward and backward"
    yield "FLOPs of a step", flops
    yield "FLOPs, remarks", work.flops_doubt
    yield "samples of a step", number(work.samples) or None
    yield "tokens of a step", number(work.tokens) or None
    allocated, reserved = work.peak_allocated_mb, work.peak_reserved_mb
    words = (_with("allocated", allocated, "MiB"), _with("reserved", reserved, "MiB"))
    yield "peak memory", _joined(*words, "on the fullest device" if any(words) else None)


def timelines_table(timelines: Sequence[Timeline]) -> Table | None:
    """Return power and utilisation of each GPU as small curves over the run's time; None where there is too little."""
    gpus = [line for line in timelines if line.device != "host" and len(line.spans) > 1]
    if not gpus:
        return None
    spans = [span for line in gpus for span in line.spans]
    ends = (_slot(min(spans, key=_begin)), _slot(max(spans, key=_begin)))
    most_w = max((span.mean_power_w for span in spans if span.mean_power_w is not None), default=0.0)
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("GPU", f"power, to {number(most_w, 3)} W", "utilisation, to 100 %"):
        table.add_column(heading, no_wrap=True)
    for line in gpus[:_SHOWN]:
        power = _curve(line.spans, [span.mean_power_w for span in line.spans], ends, most_w)
        busy = _curve(line.spans, [span.util_percent for span in line.spans], ends, 100.0)
        name = f"{line.device} of {line.host}, attempt {line.attempt}"
        table.add_row(*(Text(safe(word)) for word in (name, power, busy)))
    if len(gpus) > _SHOWN:
        table.add_row(Text(f"... and {len(gpus) - _SHOWN} more"), Text(""), Text(""))
    return table


def _curve(spans: Sequence[Span], values: Sequence[float | None], ends: tuple[int, int], most: float) -> str:
    points = [
        Point(_slot(span), span.t_s, value) for span, value in zip(spans, values, strict=True) if value is not None
    ]
    return sparkline(points, width=min(_WIDTH, ends[1] - ends[0] + 1), steps=ends, values=(0.0, most))


def _begin(span: Span) -> float:
    return span.t_s


def _slot(span: Span) -> int:
    return round(span.t_s / 10)


def _gpus(usage: Usage) -> str | None:
    if not usage.gpus:
        return None
    hours = None if usage.gpu_s is None else f"{number(usage.gpu_s / 3600)} GPU hours"
    return _joined(str(usage.gpus), hours)


def _energy(usage: Usage) -> str | None:
    if usage.energy_j is None:
        return "not known" if usage.gpus else None
    uncertain = usage.energy_uncertainty_j
    by = None if usage.energy_method is None else f"by {usage.energy_method}"
    return _joined(
        f"{number(usage.energy_j / 1e3)} kJ",
        None if uncertain is None else f"+- {number(uncertain / 1e3, 2)} kJ of sampling",
        by,
        _SCOPES.get(usage.energy_scope or ""),
        "the two ways disagree" if usage.energy_disagrees else None,
    )


def _with(name: str, value: float | None, unit: str) -> str | None:
    return None if value is None else f"{name} {number(value, 3 if unit == '%' else 4)} {unit}".lstrip()


def _joined(*words: str | None, by: str = ", ") -> str | None:
    return by.join(word for word in words if word) or None
