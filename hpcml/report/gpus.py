"""`hpcml recipes --gpus`: peak rates of GPU models as table, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcml.codec import Json
from hpcml.model.hardware import PEAKS, Basis, GpuModel
from hpcml.model.mig import mig_profiles
from hpcml.report.render.data import csv_text, json_text
from hpcml.report.render.markdown import markdown_table, safe_markdown
from hpcml.report.render.terminal import bare_table, that_fit
from hpcml.report.text import safe

FOOTNOTE = "TFLOP/s (integers: TOP/s), dense; ~ no data sheet of the vendor settles it"
_HEADINGS = ("GPU", "cc", "GB", "GB/s", "W", *PEAKS)
_NAME = 0
_DISPENSABLE = (
    "int32",
    "bf16_vec",
    "int4",
    "fp16_vec",
    "int8",
    "GB/s",
    "W",
    "fp64_tc",
    "fp8",
    "fp64",
    "GB",
)  # left out in this order for want of room


def gpus_table(models: Sequence[GpuModel], *, console: Console) -> Table:
    """Return one line for each model; an empty cell means no such units, or no number.

    Rates are in TFLOP/s (integers: TOP/s) without sparsity, bandwidth in GB/s, power in W. ``~`` marks a number that no
    data sheet of the vendor settles; `FOOTNOTE` says so below the table. A narrow console leaves out columns.
    """
    table = bare_table(console)
    rows = [[safe(word) for word in _words(model)] for model in models]
    shown = that_fit(_HEADINGS, rows, width=console.width, dispensable=_DISPENSABLE)
    for column in shown:
        table.add_column(_HEADINGS[column], no_wrap=True, justify="left" if column == _NAME else "right")
    for row in rows:
        table.add_row(*(Text(row[column]) for column in shown))
    return table


def gpus_markdown(models: Sequence[GpuModel]) -> str:
    """Return the table as Markdown."""
    rows = [[safe_markdown(word) for word in _words(model)] for model in models]
    return "\n".join([*markdown_table(_HEADINGS, rows, right=range(1, len(_HEADINGS))), "", FOOTNOTE, ""])


def mig_lines(models: Sequence[GpuModel]) -> list[str]:
    """Return a line for each model that MIG divides: the profiles, and how many of each one GPU holds at most."""
    found = [(model.name, mig_profiles(model.name)) for model in models]
    return [
        f"{name}: resources.mig={' '.join(f'{profile} (x{profile.most})' for profile in profiles)}"
        for name, profiles in found
        if profiles
    ]


def gpus_json(models: Sequence[GpuModel]) -> str:
    """Return a JSON list with every field; `peak_tflops` has the numbers, `basis` the source of each."""
    return json_text([_as_json(model) for model in models])


def gpus_csv(models: Sequence[GpuModel]) -> str:
    """Return one line of CSV for each model; uncertain cells are named in the last column.

    A model that is sold with several sizes of memory has them in one cell, separated by blanks.
    """
    plain: tuple[str, ...] = ("name", "architecture", "compute_capability", "sm_count", "boost_mhz", "tensor_mhz")
    plain = (*plain, "memory_gb", "bandwidth_gbs", "tdp_w", "mig_instances", "nvlink_gbs")
    headings = [*plain, *(f"{name}_tflops" for name in PEAKS), "uncertain"]
    rows = []
    for model in models:
        fields = _as_json(model)
        cells = [" ".join(map(str, value)) if isinstance(value := fields[name], list) else value for name in plain]
        peaks = [model.peaks[name].tflops if name in model.peaks else None for name in PEAKS]
        rows.append((*cells, *peaks, " ".join(_uncertain(model))))
    return csv_text(headings, rows)


def _words(model: GpuModel) -> list[str]:
    def word(name: str, value: float | None) -> str:
        return "" if value is None else ("~" if name in model.uncertain else "") + f"{value:g}"

    peaks = [model.peaks.get(name) for name in PEAKS]
    return [
        model.name,
        ".".join(map(str, model.compute_capability)),
        "/".join(map(str, model.memory_gb)),
        word("bandwidth_gbs", model.bandwidth_gbs),
        word("tdp_w", model.tdp_w),
        *("" if peak is None else f"{'' if peak.basis is Basis.data_sheet else '~'}{peak.tflops:g}" for peak in peaks),
    ]


def _uncertain(model: GpuModel) -> list[str]:
    """Return the names of the numbers that no data sheet of the vendor settles."""
    return sorted({*model.uncertain, *(name for name, peak in model.peaks.items() if peak.basis is Basis.uncertain)})


def _as_json(model: GpuModel) -> dict[str, Json]:
    return {
        "name": model.name,
        "architecture": model.architecture,
        "compute_capability": ".".join(map(str, model.compute_capability)),
        "sm_count": model.sm_count,
        "boost_mhz": model.boost_mhz,
        "tensor_mhz": model.tensor_mhz,
        "memory_gb": list(model.memory_gb),
        "bandwidth_gbs": model.bandwidth_gbs,
        "tdp_w": model.tdp_w,
        "mig_instances": model.mig_instances,
        "mig_profiles": {profile.name: profile.most for profile in mig_profiles(model.name)},
        "nvlink_gbs": model.nvlink_gbs,
        "peak_tflops": {name: peak.tflops for name, peak in model.peaks.items()},
        "basis": {name: peak.basis.value for name, peak in model.peaks.items()},
        "uncertain": list(_uncertain(model)),
        "source": model.source,
        "note": model.note,
    }
