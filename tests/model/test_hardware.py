from __future__ import annotations

import pytest

from hpcml.model.hardware import (
    PEAKS,
    Basis,
    derive_gpu,
    derived_tflops,
    find_gpu,
    gpu_of,
    known_gpus,
    operations_tflops,
)
from hpcml.model.precision import PrecisionName

# As NVML names them; the right column is the row that they must, or must not, be taken for.
NAMES = {
    "Tesla V100-SXM2-16GB": "Tesla V100 SXM2",
    "Tesla V100-SXM2-32GB": "Tesla V100 SXM2",
    "Tesla V100-PCIE-16GB": "Tesla V100 PCIe",
    "Tesla V100S-PCIE-32GB": "Tesla V100S PCIe",
    "NVIDIA A100-SXM4-40GB": "A100 SXM4 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 SXM4 80GB",
    "A100-PCIE-40GB": "A100 PCIe 40GB",
    "NVIDIA A100 80GB PCIe": "A100 80GB PCIe",
    "NVIDIA H100 80GB HBM3": "H100 SXM5 80GB",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL (one GPU)",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA GH200 480GB": "GH200 (H100 96GB part)",
    "NVIDIA GB200": "GB200 (one Blackwell GPU)",
    "GB200 NVL72": "GB200 (one Blackwell GPU)",
    "NVL2": "GB200 (one Blackwell GPU)",
    "Tesla P100-PCIE-12GB": "Tesla P100 PCIe 12GB",
    "Tesla P100-SXM2-16GB": "Tesla P100 SXM2",
    "Tesla K20m": "Tesla K20",
    "Tesla K20Xm": "Tesla K20X",
    "Tesla K80": "Tesla K80 (one of two GK210)",
    "Tesla T4": "Tesla T4",
    "NVIDIA L4": "L4",
    "NVIDIA L40": "L40",
    "NVIDIA L40S": "L40S",
    "NVIDIA GeForce RTX 3090": "GeForce RTX 3090",
    "NVIDIA GeForce GTX 1650": "GeForce GTX 1650",
    "NVIDIA T400": None,
    "NVIDIA A10G": None,
    "NVIDIA GeForce RTX 3090 Ti": None,
    "NVIDIA A1000": None,
    "": None,
}


def test_a_device_is_found_by_the_name_that_nvml_gives_it() -> None:
    for name, row in NAMES.items():
        found = find_gpu(name)

        assert (found.name if found else None) == row, name


def peak(name: str, precision: PrecisionName) -> float | None:
    model = find_gpu(name)
    assert model is not None
    found = model.peak(precision)
    return found.tflops if found else None


SHEETS = (  # of the data sheets of NVIDIA's P100, V100 and A100, dense
    ("Tesla P100-SXM2-16GB", PrecisionName.fp64, 5.3),
    ("Tesla P100-SXM2-16GB", PrecisionName.fp32, 10.6),
    ("Tesla P100-SXM2-16GB", PrecisionName.fp16, 21.2),
    ("Tesla P100-SXM2-16GB", PrecisionName.tf32, None),
    ("Tesla P100-SXM2-16GB", PrecisionName.amp_bf16, None),
    ("Tesla V100-SXM2-16GB", PrecisionName.fp64, 7.8),
    ("Tesla V100-SXM2-16GB", PrecisionName.fp32, 15.7),
    ("Tesla V100-SXM2-16GB", PrecisionName.amp_fp16, 125),
    ("Tesla V100-SXM2-16GB", PrecisionName.tf32, None),
    ("Tesla V100-PCIE-16GB", PrecisionName.amp_fp16, 112),
    ("NVIDIA A100-SXM4-40GB", PrecisionName.fp64, 19.5),  # by the tensor cores
    ("NVIDIA A100-SXM4-40GB", PrecisionName.fp32, 19.5),
    ("NVIDIA A100-SXM4-40GB", PrecisionName.tf32, 156),
    ("NVIDIA A100-SXM4-40GB", PrecisionName.amp_fp16, 312),
    ("NVIDIA A100-SXM4-40GB", PrecisionName.amp_bf16, 312),
    ("NVIDIA A100-SXM4-40GB", PrecisionName.fp8_e4m3, None),
    ("NVIDIA H100 80GB HBM3", PrecisionName.amp_bf16, 989.5),  # 1979 is the sparse number
    ("NVIDIA GeForce RTX 3090", PrecisionName.amp_fp16, 71),  # 142 is with FP16 accumulation
)


def test_peaks_are_those_of_the_data_sheets() -> None:
    for name, precision, tflops in SHEETS:
        assert peak(name, precision) == tflops, (name, precision)


def test_a_peak_is_sms_times_clock_times_operations() -> None:
    for model, name, found in ((each, *row) for each in known_gpus() for row in each.peaks.items()):
        derived = derived_tflops(model, name)
        if derived is None:  # vector FP16 that stands for AMP's where there are no tensor cores
            assert (name, found) == ("fp16", model.peaks["fp16_vec"]), model.name
            continue
        assert found.tflops == pytest.approx(derived, rel=0.03), (model.name, name)


def test_a_row_is_consistent() -> None:
    for model in known_gpus():
        assert set(model.peaks) <= set(PEAKS), model.name
        assert ("tf32" in model.peaks) == (model.compute_capability >= (8, 0)), model.name
        assert ("fp8" in model.peaks) == (model.compute_capability >= (8, 9)), model.name
        assert model.memory_gb, model.name
        assert model.source, model.name


def test_the_worked_examples_of_a_course() -> None:
    assert operations_tflops(80, 1530, 1024) == pytest.approx(125.3376)
    assert operations_tflops(108, 1400, 2048) == pytest.approx(309.6576)
    assert operations_tflops(108, 1410, 2048) == pytest.approx(311.8694, abs=1e-4)


def test_an_unknown_gpu_is_derived_from_what_it_says_of_itself() -> None:
    model = derive_gpu("NVIDIA A800-SXM4-40GB", compute_capability=(8, 0), sm_count=108, max_sm_clock_mhz=1410)

    assert model is not None
    found = model.peak(PrecisionName.tf32)
    assert found is not None
    assert found.basis is Basis.derived
    assert found.tflops == pytest.approx(155.9, abs=0.1)
    assert model.bandwidth_gbs is None


@pytest.mark.parametrize(
    ("name", "capability", "precision", "tflops"),
    [
        ("NVIDIA GeForce RTX 3080", (8, 6), PrecisionName.amp_fp16, 68 * 1.710 * 512 / 1e3),
        ("NVIDIA GeForce GTX 1660", (7, 5), PrecisionName.amp_fp16, 68 * 1.710 * 256 / 1e3),
        ("Quadro RTX 8000", (7, 5), PrecisionName.amp_fp16, 68 * 1.710 * 1024 / 1e3),
    ],
)
def test_cards_for_games_are_not_taken_for_cards_for_data_centres(
    name: str, capability: tuple[int, int], precision: PrecisionName, tflops: float
) -> None:
    model = derive_gpu(name, compute_capability=capability, sm_count=68, max_sm_clock_mhz=1710)

    assert model is not None
    found = model.peak(precision)
    assert found is not None
    assert found.tflops == pytest.approx(tflops)


@pytest.mark.parametrize(("name", "capability"), [("NVIDIA GeForce RTX 4090", (8, 9)), ("NVIDIA B300", (10, 3))])
def test_nothing_is_derived_where_the_rates_are_not_known(name: str, capability: tuple[int, int]) -> None:
    assert derive_gpu(name, compute_capability=capability, sm_count=128, max_sm_clock_mhz=2520) is None


UNKNOWN = {
    "gpu_model": "NVIDIA H100 96GB of Somebody",
    "gpu_compute_capability": "9.0",
    "gpu_sm_count": 132,
    "gpu_max_sm_mhz": 1980,
}


def test_the_gpu_of_a_run_is_that_of_the_table() -> None:
    assert gpu_of({"gpu_model": "NVIDIA A100-SXM4-40GB"}) is find_gpu("NVIDIA A100-SXM4-40GB")


def test_one_that_the_table_lacks_is_derived_from_what_nvml_said_of_it() -> None:
    found = gpu_of(UNKNOWN)

    assert found is not None
    assert (found.name, found.architecture, found.sm_count) == (UNKNOWN["gpu_model"], "hopper_gh100", 132)
    # 132 SMs x 1980 MHz x 4096 operations of 16-bit tensor cores (NVIDIA, H100 white paper)
    peak = found.peak(PrecisionName.bf16)
    assert peak is not None
    assert (peak.basis, round(peak.tflops, 1)) == (Basis.derived, 1070.5)


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB MIG", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"])
def test_an_instance_has_the_peaks_of_its_own_multiprocessors(name: str) -> None:
    known = {"gpu_compute_capability": "8.0", "gpu_sm_count": 14, "gpu_max_sm_mhz": 1410}
    found = gpu_of({"gpu_model": name, **known})
    whole = gpu_of({"gpu_model": "NVIDIA A100-SXM4-40GB"})

    assert found is not None
    assert whole is not None
    assert found.peaks["bf16"].tflops == pytest.approx(whole.peaks["bf16"].tflops * 14 / 108, rel=0.01)
    assert gpu_of({"gpu_model": name}) is None


@pytest.mark.parametrize("missing", ["gpu_compute_capability", "gpu_sm_count", "gpu_max_sm_mhz", "gpu_model"])
def test_nothing_is_derived_from_half_of_what_it_takes(missing: str) -> None:
    assert gpu_of({name: value for name, value in UNKNOWN.items() if name != missing}) is None


@pytest.mark.parametrize(
    "facts",
    [
        {"gpu_model": "NVIDIA A100-SXM4-40GB, NVIDIA H100 PCIe"},
        {"gpu_model": "NVIDIA H100 PCIe", "gpu_compute_capability": "8.0, 9.0"},
        {**UNKNOWN, "gpu_model": "NVIDIA H100 of Somebody, NVIDIA H100 of Another"},
        {"gpu_model": None},
        {},
    ],
)
def test_gpus_of_several_kinds_and_none_are_no_gpu(facts: dict[str, object]) -> None:
    assert gpu_of(facts) is None
