"""gemm in JAX: the errors that the formats are known for, and what JAX does not emulate."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from image_runs import Recorded
from numeric_runs import config_of, run_all

from tests.cli.command_line import Hpcml, said_in_one_line

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")

SMALL = {"sizes": [96, 32], "repeats": 2, "repeat_time_s": 0.0, "warmup": 1}
# as in test_gemm.py: one error for each format, whatever the framework
KNOWN = {
    "fp64": (0.0, 1e-15),
    "fp32": (1e-8, 5e-7),
    "amp_fp16": (3.3e-4, 4.0e-4),
    "fp16": (3.3e-4, 4.0e-4),
    "amp_bf16": (2.5e-3, 3.2e-3),
    "bf16": (2.5e-3, 3.2e-3),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    configs = {name: config_of("gemm", name, "jax", options=SMALL) for name in KNOWN}
    configs["batched"] = config_of("gemm", "bf16", "jax", options={**SMALL, "batch": 3})
    return run_all(tmp_path_factory.mktemp("gemm"), "gemm", configs)


@pytest.mark.parametrize("precision", KNOWN)
def test_a_product_in_jax_has_the_error_that_its_format_is_known_for(runs: dict[str, Recorded], precision: str) -> None:
    least, most = KNOWN[precision]

    assert all(least <= error <= most for error in runs[precision].series("relative_error"))
    assert len(runs[precision].series("gflops")) == 2
    assert runs[precision].events["framework"]["framework"] == "jax"
    assert runs[precision].events["precision"]["mismatch"] is False


def test_batched_products_in_jax_are_rounded_like_single_ones(runs: dict[str, Recorded]) -> None:
    assert all(2.5e-3 <= error <= 3.2e-3 for error in runs["batched"].series("relative_error"))


def test_what_jax_does_not_emulate_is_refused_before_anything_starts(
    tmp_path: Path, hpcml_environ: dict[str, str]
) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)

    done = hpcml("run", "model=gemm", "model.framework=jax", "precision=tf32")

    assert done.returncode == 2
    assert "precision=tf32 is refused on this CPU: no CPU has TF32 units" in said_in_one_line(done)
