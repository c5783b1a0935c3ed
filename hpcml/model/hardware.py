"""Peak performance of GPUs: from vendors' data sheets (gpus.toml), or derived from a device's own properties.

`gpu_of` finds the model for a run's recorded facts; `GpuModel.peak` is what `hpcml peak` divides by. gpus.toml names
the source of every row, and the values that no source settles. `hpcml recipes --gpus` lists the table.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from hpcml.errors import ConfigError
from hpcml.model.precision import PrecisionName
from hpcml.spelling import did_you_mean

PEAKS = (
    *("fp64", "fp64_tc", "fp32", "tf32", "fp16", "fp16_vec", "bf16", "bf16_vec", "fp8", "int8", "int4", "int32"),
)  # rows of gpus.toml
_TENSOR_CLOCK = frozenset({"tf32", "fp16", "bf16", "fp8", "int8", "int4"})
_MIG = re.compile(r"\bMIG\b")  # in the name of an instance, NVML's or CUDA's
_ARCHITECTURES = {
    (3, 5): "kepler_gk110",
    (3, 7): "kepler_gk110",
    (5, 3): "maxwell_gm20b",
    (6, 0): "pascal_gp100",
    (7, 0): "volta_gv100",
    (7, 5): "turing_tu10x",
    (8, 0): "ampere_ga100",
    (8, 6): "ampere_ga10x",
    (8, 9): "ada_ad10x",
    (9, 0): "hopper_gh100",
    (10, 0): "blackwell_gb100",
}


_FOR_DATA_CENTRES = re.compile(
    r"\b(Tesla|K[248]0[cmstx]?|M[46]0|P40?|P100|V100S?|T4|A2|A10|A16|A30|A40|A100|A800|L4|L20|L40S?|[HB][128]00|H20|B300"
    r"|GH200|GB[23]00)\b"
)
_NOT_FOR_THEM = re.compile(r"GeForce|\bRTX|\bGTX|Quadro|TITAN|Jetson|Tegra", re.IGNORECASE)


class Basis(Enum):
    """The origin of a peak value."""

    data_sheet = "data sheet"
    uncertain = "uncertain"  # no data sheet says it, or two disagree
    derived = "derived"  # SMs x clock x operations per clock
    measured = "measured by model=gemm"  # the fastest product of matrices
    given = "given"  # on the command line


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The peak rate of one GPU in one number format, dense (no sparsity): TFLOP/s, or TOP/s for integers."""

    tflops: float
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One model of GPU, as one CUDA device; None is not known, as most fields are for a derived model.

    Clocks are in MHz, memory in 10^9 bytes, bandwidths in 10^9 bytes per second, power in watts.
    """

    name: str
    architecture: str
    compute_capability: tuple[int, int]
    sm_count: int
    boost_mhz: float
    tensor_mhz: float  # the clock that the peaks of the tensor cores are quoted at, but for FP64
    peaks: Mapping[str, Peak]  # of `PEAKS`; absent: no units for it, or no number
    memory_gb: Sequence[int] = ()  # 10^9 bytes; of several, the model is sold with each
    bandwidth_gbs: float | None = None
    tdp_w: float | None = None
    mig_instances: int | None = None
    nvlink_gbs: float | None = None  # both directions together
    uncertain: frozenset[str] = frozenset()  # of the fields above; a peak says it itself
    source: str | None = None
    note: str | None = None

    def peak(self, precision: PrecisionName) -> Peak | None:
        """Return the peak that work in *precision* is measured against; None where the GPU has no units for it."""
        return next((self.peaks[name] for name in precision.value.peaks if name in self.peaks), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    models: Sequence[tuple[GpuModel, Sequence[re.Pattern[str]]]]
    operations: Mapping[str, Mapping[str, int]]  # architecture -> peak -> operations per clock and SM


def known_gpus() -> Sequence[GpuModel]:
    """Return all models of the table, in its order."""
    return [model for model, _ in _table().models]


def is_for_data_centres(name: str) -> bool | None:
    """Tell by its name whether NVIDIA sells a GPU for data centres; None where the name says neither.

    >>> is_for_data_centres("Tesla V100-SXM2-32GB"), is_for_data_centres("NVIDIA GeForce RTX 3090")
    (True, False)
    """
    if _NOT_FOR_THEM.search(name):
        return False
    return True if _FOR_DATA_CENTRES.search(name) else None


@cache  # the runs of a comparison have few names among them
def find_gpu(name: str) -> GpuModel | None:
    """Return the model whose devices have the NVML name *name*; None where the table has none."""
    for model, patterns in _table().models:
        if any(pattern.search(name) for pattern in patterns):
            return model
    return None


def choose_gpus(names: Sequence[str]) -> Sequence[GpuModel]:
    """Return the models that *names* refer to, without repetition; no names mean all models.

    Each name is an NVML name, or a part of a model's name (case does not matter). Raises `ConfigError` where one
    matches nothing.
    """
    chosen: list[GpuModel] = []
    for name in names:
        found = find_gpu(name)
        models = [found] if found else [model for model in known_gpus() if name.casefold() in model.name.casefold()]
        if not models:
            meant = did_you_mean(name, [model.name for model in known_gpus()])
            raise ConfigError(f"no GPU of the table is called {name!r}: {meant or 'hpcml recipes --gpus lists them'}")
        chosen += [model for model in models if model not in chosen]
    return chosen if names else known_gpus()


def derive_gpu(
    name: str, *, compute_capability: tuple[int, int], sm_count: int, max_sm_clock_mhz: float
) -> GpuModel | None:
    """Return a model made from a device's own properties: peak = SMs x highest SM clock x operations per clock and SM.

    None where the architecture is not in the table, or does not follow from the compute capability: GeForce cards from
    Ada on have another rate of FP32 accumulation than the cards for data centres.
    """
    architecture = _architecture(name, compute_capability)
    if architecture is None:
        return None
    rates = _table().operations[architecture]
    peaks = {
        peak: Peak(tflops=operations_tflops(sm_count, max_sm_clock_mhz, rate), basis=Basis.derived)
        for peak, rate in rates.items()
    }
    return GpuModel(
        name=name,
        architecture=architecture,
        compute_capability=compute_capability,
        sm_count=sm_count,
        boost_mhz=max_sm_clock_mhz,
        tensor_mhz=max_sm_clock_mhz,
        peaks=_with_vector_fp16(peaks),
    )


def gpu_of(facts: Mapping[str, Any]) -> GpuModel | None:
    """Return the GPU model that a run's recorded *facts* describe: from the table by name, else derived from the facts.

    None without GPUs, with GPUs of several models, and where neither way gives an answer. A MIG instance is always
    derived, from its own multiprocessors: the peaks of the table are those of whole GPUs.
    """
    names = [name for name in str(facts.get("gpu_model") or "").split(", ") if name]
    capability = str(facts.get("gpu_compute_capability") or "")
    if not names or "," in capability:  # of several: a program names that of its first rank alone as its model
        return None
    if not any(_MIG.search(name) for name in names):
        found = [find_gpu(name) for name in names]
        if found[0] is not None and all(model is found[0] for model in found):
            return found[0]
    version = re.fullmatch(r"(\d+)\.(\d+)", capability)
    sm_count, max_sm_mhz = facts.get("gpu_sm_count"), facts.get("gpu_max_sm_mhz")
    if len(names) > 1 or version is None or not sm_count or not max_sm_mhz:
        return None
    return derive_gpu(
        names[0],
        compute_capability=(int(version[1]), int(version[2])),
        sm_count=int(sm_count),
        max_sm_clock_mhz=float(max_sm_mhz),
    )


def derived_tflops(model: GpuModel, peak: str) -> float | None:
    """Return the derived *peak* of *model* in TFLOP/s (see `operations_tflops`); None where there are no such units.

    Used to check the table's peaks; tensor core peaks use the clock that the vendor quotes them at.
    """
    rate = _table().operations[model.architecture].get(peak)
    if rate is None:
        return None
    clock_mhz = model.tensor_mhz if peak in _TENSOR_CLOCK else model.boost_mhz
    return operations_tflops(model.sm_count, clock_mhz, rate)


def operations_tflops(sm_count: int, clock_mhz: float, operations_per_clock: int) -> float:
    """Return the rate of *sm_count* multiprocessors in 10^12 operations per second; a fused multiply-add is two.

    >>> round(operations_tflops(108, 1410, 2048), 1)  # A100, FP16 tensor cores: its data sheet says 312
    311.9
    """
    return sm_count * clock_mhz * 1e6 * operations_per_clock / 1e12


def _architecture(name: str, compute_capability: tuple[int, int]) -> str | None:
    architecture = _ARCHITECTURES.get(compute_capability)
    if "GTX 16" in name:  # Turing without tensor cores has the compute capability of Turing with them
        return "turing_tu11x"
    if "GeForce" not in name or architecture is None or compute_capability < (8, 0):
        return architecture
    return "ampere_ga10x_geforce" if compute_capability == (8, 6) else None


def _with_vector_fp16(peaks: dict[str, Peak]) -> dict[str, Peak]:
    """Let FP16 be the vector units' where no tensor cores do it."""
    if "fp16" not in peaks and "fp16_vec" in peaks:
        peaks["fp16"] = peaks["fp16_vec"]
    return peaks


@cache
def _table() -> _Table:
    raw = tomllib.loads((Path(__file__).parent / "gpus.toml").read_text(encoding="utf-8"))
    models = []
    for row in raw["gpus"].values():
        uncertain = frozenset(row.get("uncertain", ()))
        model = GpuModel(
            name=row["name"],
            architecture=row["architecture"],
            compute_capability=_version(row["compute_capability"]),
            sm_count=row["sm_count"],
            boost_mhz=row["boost_mhz"],
            tensor_mhz=row.get("tensor_mhz", row["boost_mhz"]),
            peaks={
                name: Peak(tflops=float(value), basis=Basis.uncertain if name in uncertain else Basis.data_sheet)
                for name, value in row["peak_tflops"].items()
            },
            memory_gb=tuple(row["memory_gb"]),
            bandwidth_gbs=row["bandwidth_gbs"],
            tdp_w=row["tdp_w"],
            mig_instances=row["mig_instances"],
            nvlink_gbs=row["nvlink_gbs"],
            uncertain=uncertain - set(PEAKS),
            source=raw["sources"][row["source"]],
            note=row.get("note"),
        )
        models.append((model, [re.compile(pattern) for pattern in row["match"]]))
    return _Table(models=models, operations=raw["operations_per_clock_per_sm"])


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
