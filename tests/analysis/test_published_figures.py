"""Figures of others, recomputed: what is printed must follow from the sizes, the times and the clocks beside it."""

from __future__ import annotations

import pytest

from hpcml.analysis.published import published_figures, published_for
from hpcml.model import hardware

OPERATIONS = {"2N^3": 2.0, "2N^3/3": 2.0 / 3.0}  # times N^3: a product, an LU factorisation
MATRICES = [each for each in published_figures() if each.operations is not None]


def matrix_gflops(operations: str, size: int, seconds: float) -> float:
    """Return GFLOP/s of what takes so many *operations* on matrices of *size* rows."""
    return OPERATIONS[operations] * size**3 / seconds / 1e9


def test_rates_follow_from_the_size_and_the_time() -> None:
    for figure in MATRICES:
        assert figure.operations is not None
        assert figure.size is not None, figure
        assert figure.seconds is not None, figure
        printed_s = 1e-10 if figure.workload.startswith("SGEMM") else 5e-6 if "DGEMM" in figure.workload else 5e-3
        rounding = printed_s / figure.seconds if figure.seconds > printed_s else 1.0
        small_lu = figure.operations == "2N^3/3" and figure.size < 2000  # lower terms count, and 0.00 s is printed
        if not small_lu:
            computed = matrix_gflops(figure.operations, figure.size, figure.seconds)
            assert computed == pytest.approx(figure.value, rel=rounding + 1e-3), figure


def test_the_product_of_6000_in_the_slides_is_exact_to_the_last_digit() -> None:
    assert matrix_gflops("2N^3", 6000, 6.155170440673828) == pytest.approx(70.18489644824643, rel=1e-15)
    assert matrix_gflops("2N^3/3", 20000, 1.89) == pytest.approx(2821.9, rel=1e-4)


ALIKE = ("fp16", "fp32", "fp64")
NAMES = {"fp16 vector": "fp16_vec", "fp64 tensor": "fp64_tc"}  # theirs -> ours


@pytest.mark.parametrize(
    ("name", "gpu", "precisions"),
    [
        ("Tesla P100 SXM", "Tesla P100-SXM2-16GB", ALIKE),
        ("Tesla V100 SXM2", "Tesla V100-SXM2-16GB", (*ALIKE, "fp16 vector")),
        ("A100 SXM4", "NVIDIA A100-SXM4-40GB", (*ALIKE, "bf16", "tf32", "fp16 vector", "fp64 tensor", "int8")),
    ],
)
def test_published_peaks_are_those_of_the_table_of_gpus(name: str, gpu: str, precisions: tuple[str, ...]) -> None:
    model = hardware.find_gpu(gpu)
    assert model is not None
    values = {f.precision: f.value for f in published_figures() if f.device == name and f.workload == "peak, dense"}

    for precision in precisions:
        ours = model.peaks[NAMES.get(precision, precision)]
        assert ours.tflops == pytest.approx(values[precision], rel=0.005), precision


def test_tensor_cores_multiply_out_to_125_and_312_tflops() -> None:
    # 80 SMs x 8 tensor cores x 64 fused multiply-adds x 2 at 1.53 GHz; 108 x 4 x 256 x 2 at 1.41 GHz
    assert hardware.operations_tflops(80, 1530, 8 * 64 * 2) == pytest.approx(125, rel=0.005)
    assert hardware.operations_tflops(108, 1410, 4 * 256 * 2) == pytest.approx(312, rel=0.005)


def test_training_times_multiply_out_to_gpu_hours() -> None:
    hours = {
        figure.devices: figure.devices * figure.value / 3600
        for figure in published_figures()
        if figure.workload.startswith("ResNet-50") and figure.devices > 1
    }

    assert hours == pytest.approx({8: 232, 256: 256, 1024: 256, 2048: 225.28, 2176: 135.396}, rel=1e-4)


def test_the_figure_that_was_timed_without_waiting_is_marked() -> None:
    [wrong] = [f for f in published_figures() if f.workload == "SGEMM by torch.matmul"]

    assert wrong.note is not None
    assert "ERRATUM" in wrong.note
    assert wrong.architecture is None  # hence it stands beside nobody's runs


def test_beside_runs_stands_the_highest_of_each_series_for_their_kind_of_gpu_alone() -> None:
    found = published_for({"pascal_gp100"})

    assert {f.architecture for f in found} == {"pascal_gp100"}
    [lu] = [f for f in found if "DGETRF" in f.workload]
    assert (lu.size, lu.value) == (20000, 2821.48)
    assert published_for(set()) == ()
    assert all(f.source for f in published_figures())


def test_figures_name_the_program_that_printed_them() -> None:
    """The two outputs of MAGMA's testers are three years apart; only the later one says where it ran."""
    by_program = {(f.workload, f.device): f.source for f in MATRICES if f.precision == "fp64"}

    lu = {pair: source for pair, source in by_program.items() if "DGETRF" in pair[0]}
    assert set(lu) == {
        ("DGETRF (LU), MAGMA 2.2.0", "Tesla P100 PCIe 16GB"),
        ("DGETRF (LU), MKL 2017.0.1", "CPU (not named), 20 threads"),
    }
    assert all("not named" in source and "Bridges" not in source for source in lu.values())
    products = {pair: source for pair, source in by_program.items() if "DGEMM" in pair[0]}
    assert all("Bridges" in source for source in products.values())
    assert ("DGEMM, MKL 2019.0.5", "CPU (not named), 16 threads") in products
