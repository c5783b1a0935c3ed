"""lu: MAGMA's residuals, and the refinements that a precision is known to need."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from image_runs import Recorded
from numeric_runs import config_of, last, load, run_all

from tests.cli.command_line import Hpcml, said_in_one_line

pytestmark = pytest.mark.torch
# Precision -> the fewest and the most refinements at N = 512. The project measured before there was this recipe:
# fp64 0, fp32 2, fp16 6, tf32 8, bf16 13, e4m3 never, with FP32 results of all products; torch's have 16 bits.
REFINEMENTS = {"fp64": (0, 0), "fp32": (2, 2), "tf32": (6, 11), "fp16": (6, 14), "amp_fp16": (6, 14)}
NEVER = ("fp8_e4m3", "fp8_e5m2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    few = {"warmup": 0, "repeats": 1}
    configs = {name: config_of("lu", name, options={**few, "sizes": [512]}) for name in (*REFINEMENTS, "bf16", *NEVER)}
    configs["sizes"] = config_of("lu", "fp64", options={**few, "sizes": [123, 1000]})
    library = {**few, "sizes": [123], "factorisation": "library"}
    configs |= {f"library {name}": config_of("lu", name, options=library) for name in ("fp64", "fp32")}
    for kind in ("cholesky", "qr"):
        options = {**library, "factorisation": kind}
        configs |= {f"{kind} {name}": config_of("lu", name, options=options) for name in ("fp64", "fp32")}
    return run_all(tmp_path_factory.mktemp("lu"), "lu", configs)


@pytest.mark.parametrize("precision", REFINEMENTS)
def test_a_solution_needs_the_refinements_that_its_precision_is_known_for(
    runs: dict[str, Recorded], precision: str
) -> None:
    fewest, most = REFINEMENTS[precision]

    assert fewest <= last(runs[precision], "refinement_iterations") <= most
    assert last(runs[precision], "backward_error") < 1e-15
    assert last(runs[precision], "converged") == 1.0


def test_bf16_needs_many_refinements_if_it_gets_there(runs: dict[str, Recorded]) -> None:
    needed = runs["bf16"].series("refinement_iterations")  # which last bits decide, that differ from CPU to CPU

    assert all(13 <= count <= 50 for count in needed)
    assert last(runs["bf16"], "converged") == len(needed)
    assert last(runs["bf16"], "residual") == pytest.approx(4.5e-5, rel=0.1)


@pytest.mark.parametrize("precision", NEVER)
def test_one_that_never_gets_there_says_so(runs: dict[str, Recorded], precision: str) -> None:
    assert runs[precision].series("refinement_iterations") == []
    assert last(runs[precision], "converged") == 0.0
    assert last(runs[precision], "backward_error") > 1e-4


def test_residuals_are_those_of_magmas_table(runs: dict[str, Recorded]) -> None:
    small, large = runs["sizes"].series("residual")

    # MAGMA's dgetrf on a P100, N = 123 and 1000: 3.59e-18 and 2.76e-18
    assert small == pytest.approx(3.59e-18, rel=0.3)
    assert large == pytest.approx(2.76e-18, rel=0.3)
    assert last(runs["library fp64"], "residual") == pytest.approx(3.59e-18, rel=0.3)
    assert 1e-9 < last(runs["library fp32"], "residual") < 2.2e-9  # 2**29 times as much, as the last bits are
    assert 1e-9 < last(runs["fp32"], "residual") < 2e-9


def test_emulated_arithmetic_has_no_rate(runs: dict[str, Recorded]) -> None:
    rated = {name for name, recorded in runs.items() if recorded.series("gflops")}

    of_lapack = {f"{kind} {name}" for kind in ("library", "cholesky", "qr") for name in ("fp64", "fp32")}
    assert rated == {"fp64", "fp32", "bf16", "sizes", *of_lapack}
    assert all(bool(runs[name].series("total_gflop")) == (name in rated) for name in runs)
    assert all(bool(runs[name].series("factorisation_time_s")) == (name in rated) for name in runs)


def test_a_rate_is_of_two_thirds_of_n_cubed() -> None:
    gflops = load("lu").gflops

    # published rates of the same operation agree with this within what their printed times are rounded to
    assert gflops(20000, 1.89) == pytest.approx(2821.48, rel=2e-3)
    assert gflops(10000, 0.37) == pytest.approx(1802.39, rel=2e-3)
    assert gflops(3000, 9.0, "cholesky") == pytest.approx(1.0)  # N^3 / 3
    assert gflops(3000, 36.0, "qr") == pytest.approx(1.0)  # four times that


@pytest.mark.parametrize("kind", ["cholesky", "qr"])
def test_cholesky_and_qr_are_exact_to_their_format_and_solve_as_lu_does(runs: dict[str, Recorded], kind: str) -> None:
    exact, single = runs[f"{kind} fp64"], runs[f"{kind} fp32"]

    assert last(exact, "residual") < 1e-17
    assert 1e-10 < last(single, "residual") < 1e-8  # 2**29 times as much, as the last bits are
    assert [last(run, "refinement_iterations") for run in (exact, single)] == [0, 2]
    assert all(last(run, "backward_error") < 1e-15 for run in (exact, single))


def test_the_factors_of_a_matrix_done_by_hand_are_found() -> None:
    import torch  # noqa: PLC0415 - only where it is installed

    factors = load("lu", "factors")
    of_cholesky = torch.tensor([[4.0, 12, -16], [12, 37, -43], [-16, -43, 98]], dtype=torch.float64)
    of_qr = torch.tensor([[12.0, -51, 4], [6, 167, -68], [-4, 24, -41]], dtype=torch.float64)

    lower = factors.factorised("cholesky", of_cholesky)
    q, r = factors.factorised("qr", of_qr)

    assert lower[0].tolist() == [[2, 0, 0], [6, 1, 0], [-8, 5, 3]]
    assert torch.allclose(r.abs(), torch.tensor([[14.0, 21, 14], [0, 175, 70], [0, 0, 35]], dtype=torch.float64))
    right = torch.tensor([1.0, 2, 3], dtype=torch.float64)
    for a, found in ((of_cholesky, lower), (of_qr, (q, r))):
        assert torch.allclose(factors.multiplied(found), a)
        assert torch.allclose(a @ factors.solver(found)(right), right)
    assert torch.linalg.eigvalsh(factors.positive_definite(of_qr / 167)).min() > 0


def test_a_block_that_does_not_divide_the_size_gives_the_same_factors() -> None:
    import torch  # noqa: PLC0415 - only where it is installed

    blocked = load("lu", "blocked")
    a = torch.rand(50, 50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    lu, order = blocked.factorise(a, 7, torch.matmul)

    whole, rows = blocked.lapack_factorise(a)
    assert torch.equal(order, rows)
    assert torch.allclose(lu, whole, rtol=1e-10, atol=1e-12)


def test_a_lapack_factorises_in_its_own_formats_only(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)
    words = ("model=lu", "model.options.sizes=[8]", "telemetry.enabled=false", "model.options.factorisation=library")

    refused = hpcml("run", "-m", *words, "precision=bf16,fp32")
    no_qr = hpcml("run", *words[:-1], "precision=bf16", "model.options.factorisation=qr")
    done = hpcml("run", "-m", *words, "precision=fp64,fp32")

    assert refused.returncode == 2
    assert "model.options.factorisation=library" in said_in_one_line(refused)
    assert "model.options.factorisation=qr must be fp64 or fp32" in said_in_one_line(no_qr)
    assert done.returncode == 0, done.stderr
    assert sorted(run["params"]["precision.name"] for run in hpcml.runs()) == ["fp32", "fp64"]
