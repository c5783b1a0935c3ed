"""`hpcml recipes --gpus`: peak rates of GPU models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcml.codec import Json
from hpcml.model.hardware import PEAKS, Basis, GpuModel
from hpcml.model.mig import mig_profiles
from hpcml.report.document import Column, Document, Listing

FOOTNOTE = "TFLOP/s (integers: TOP/s), dense; ~ no data sheet of the vendor settles it"
_SHORT = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")  # peaks that a terminal shows


def gpus_document(models: Sequence[GpuModel], *, has_instances: bool = False) -> Document:
    """Return one line for each model; an empty cell means no such units, or no number.

    Rates are in TFLOP/s (integers: TOP/s) without sparsity, bandwidth in GB/s, power in W. ``~`` marks a number that no
    data sheet of the vendor settles; a note says so. With *has_instances* notes say how MIG divides them. In JSON
    `peak_tflops` has the numbers and `basis` the source of each; CSV names uncertain cells in its last column.
    """
    columns: list[Column[GpuModel]] = [
        Column("name", "GPU", lambda model: model.name),
        Column("architecture", None, lambda model: model.architecture),
        Column("compute_capability", "cc", _capability, is_number=True),
        Column("sm_count", None, lambda model: model.sm_count),
        Column("boost_mhz", None, lambda model: model.boost_mhz),
        Column("tensor_mhz", None, lambda model: model.tensor_mhz),
        Column("memory_gb", "GB", lambda model: " ".join(map(str, model.memory_gb)), _memory, is_number=True),
        _rated("bandwidth_gbs", "GB/s"),
        _rated("tdp_w", "W"),
        Column("mig_instances", None, lambda model: model.mig_instances),
        Column("nvlink_gbs", None, lambda model: model.nvlink_gbs),
        *map(_peak, PEAKS),
        Column("uncertain", None, lambda model: " ".join(_uncertain(model))),
    ]
    instances = [line for model in models for line in _mig_line(model)] if has_instances else []
    listing = Listing(columns=columns, rows=models, notes=[*instances, FOOTNOTE])
    return Document.of(listing, record=lambda: [_as_json(model) for model in models])


def _capability(model: GpuModel) -> str:
    return ".".join(map(str, model.compute_capability))


def _memory(model: GpuModel) -> str:
    return "/".join(map(str, model.memory_gb))


def _rated(name: str, heading: str) -> Column[GpuModel]:
    def text(model: GpuModel) -> str:
        value = getattr(model, name)
        return "" if value is None else f"{'~' if name in model.uncertain else ''}{value:g}"

    return Column(name, heading, lambda model: getattr(model, name), text, is_number=True, is_short=False)


def _peak(name: str) -> Column[GpuModel]:
    def text(model: GpuModel) -> str:
        peak = model.peaks.get(name)
        return "" if peak is None else f"{'' if peak.basis is Basis.data_sheet else '~'}{peak.tflops:g}"

    def value(model: GpuModel) -> float | None:
        return model.peaks[name].tflops if name in model.peaks else None

    return Column(f"{name}_tflops", name, value, text, is_number=True, is_short=name in _SHORT)


def _mig_line(model: GpuModel) -> Iterator[str]:
    """Yield how MIG divides the model, if it does: the profiles, and how many of each one GPU holds at most."""
    if profiles := mig_profiles(model.name):
        yield f"{model.name}: resources.mig={' '.join(f'{profile} (x{profile.most})' for profile in profiles)}"


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
