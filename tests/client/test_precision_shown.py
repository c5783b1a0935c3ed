from __future__ import annotations

import itertools
import math

import pytest

from hpcml import precision
from hpcml_client.precision_shown import SHOWS, name_format, name_precision

FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "unknown")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def test_the_program_judges_by_the_same_table_as_the_store() -> None:
    assert {name: name for name in SHOWS} == {name.name: name.name for name in precision.PrecisionName}
    for matmul, conv, parameters in itertools.product(FORMATS, FORMATS, DTYPES):
        products = {"matmul": matmul, "conv": conv}
        assert name_precision(products, parameters) == precision.effective_precision(products, parameters)


@pytest.mark.parametrize(
    ("error", "is_finite", "name"),
    [
        (1e-15, None, "fp64"),
        (3.4e-7, None, "fp32"),
        (2.9e-4, True, "tf32"),
        (7.7e-4, True, "tf32"),
        (3.6e-4, False, "fp16"),
        (2.9e-3, None, "bf16"),
        (3.8e-2, None, "fp8_e4m3"),
        (7.4e-2, None, "fp8_e5m2"),
        (0.5, None, "unknown"),
        (math.inf, None, "unknown"),
        (math.nan, None, "unknown"),
    ],
)
def test_an_error_tells_its_format(error: float, is_finite: bool | None, name: str) -> None:  # noqa: FBT001
    def repeat() -> bool:
        assert is_finite is not None, "asked where it does not matter"
        return is_finite

    assert name_format(error, repeat) == name
