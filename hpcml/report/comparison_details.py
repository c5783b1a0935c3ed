"""What rows of a comparison cost, how hard they worked, when they reached the target: a line for each quantity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcml.comparison import Cell, Interval, Row
from hpcml.report.plain_text import duration, ends, number

_Text = Callable[[Row], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One quantity of all rows of a cell, in their order; "" where a row has it not."""

    label: str
    texts: tuple[str, ...]


def details(cell: Cell) -> list[Detail]:
    """Return what is known of at least one row of *cell*; nothing of it is in the main table."""
    found = [Detail(label=label, texts=tuple(text(row) for row in cell.rows)) for label, text in _quantities()]
    return [detail for detail in found if any(detail.texts)]


def _quantities() -> list[tuple[str, _Text]]:
    return [*_target(), *_cost(), *_load()]


def _target() -> list[tuple[str, _Text]]:
    return [
        ("reached the target", lambda r: f"{r.to_target.reached} of {r.to_target.n}" if r.to_target else ""),
        ("time to target (median)", lambda r: duration(r.to_target.median_s) if r.to_target else ""),
        ("  restricted mean", lambda r: duration(r.to_target.restricted_mean_s) if r.to_target else ""),
        ("  ratio [95\u00a0%]", lambda r: _ratio(r.to_target.ratio, r.to_target.ratio_ci95) if r.to_target else ""),
        ("energy to target, kJ", lambda r: number(r.to_target.median_kj) if r.to_target else ""),
        ("score (MLPerf)", lambda r: duration(r.score)),
    ]


def _cost() -> list[tuple[str, _Text]]:
    return [
        ("GPU hours", lambda r: number(r.cost.gpu_hours) if r.cost else ""),
        ("energy, kJ", lambda r: number(r.cost.energy_kj) if r.cost else ""),
        ("energy per sample, J", lambda r: number(r.cost.energy_per_sample_j) if r.cost else ""),
        ("  ratio [95\u00a0%]", lambda r: _ratio(r.cost.energy_ratio, r.cost.energy_ratio_ci95) if r.cost else ""),
        ("CO2, g", lambda r: number(r.cost.co2_g) if r.cost else ""),
    ]


def _load() -> list[tuple[str, _Text]]:
    return [
        ("power of a GPU, W", lambda r: _of(r.load.mean_power_w, r.load.power_limit_w) if r.load else ""),
        ("throttled by the power cap", lambda r: _percent(r.load.throttled_power_share) if r.load else ""),
        ("throttled by heat", lambda r: _percent(r.load.throttled_thermal_share) if r.load else ""),
        ("SM clock, MHz", lambda r: number(r.load.sm_mhz) if r.load else ""),
        ("GPU busy", lambda r: _percent(r.load.util_percent, scale=1) if r.load else ""),
        ("tensor cores busy", lambda r: _percent(r.load.tensor_percent, scale=1) if r.load else ""),
        ("peak memory, MiB", lambda r: number(r.load.peak_memory_mb) if r.load else ""),
        ("TFLOP/s of a device", lambda r: _of(r.load.achieved_tflops, r.load.peak_tflops) if r.load else ""),
        ("  share of the peak (MFU)", lambda r: _percent(r.load.mfu) if r.load else ""),
        ("waiting for data", lambda r: _percent(r.load.data_share) if r.load else ""),
        ("communicating", lambda r: _percent(r.load.communication_share) if r.load else ""),
        ("steps skipped (loss scale)", lambda r: number(r.load.skipped_steps, 3) if r.load else ""),
        ("limited by", lambda r: (r.load.limited_by or "") if r.load else ""),
    ]


def _of(value: float | None, most: float | None) -> str:
    if value is None:
        return ""
    return number(value) if most is None else f"{number(value)} of {number(most)}"


def _percent(share: float | None, *, scale: float = 100) -> str:
    return "" if share is None else f"{share * scale:.1f} %"


def _ratio(value: float | None, interval: Interval | None) -> str:
    return "" if value is None else f"{value:.3f} {ends(interval, 3)}".strip()
