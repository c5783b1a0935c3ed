from __future__ import annotations

import itertools
import math

import pytest

from hpcml_client.formats import name_format, name_precision
from hpcml_client.precisions import PRECISIONS

FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "unknown")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def test_every_precision_is_named_by_what_it_shows_and_nothing_else_is() -> None:
    shown = {name: (row.product, row.parameters) for name, row in PRECISIONS.items()}
    assert len(set(shown.values())) == len(shown)
    for matmul, conv, parameters in itertools.product(FORMATS, FORMATS, DTYPES):
        name = name_precision({"matmul": matmul, "conv": conv}, parameters)

        if name in shown:
            assert shown[name] == (matmul, parameters)
            assert matmul == conv
        else:
            assert matmul != conv or (matmul, parameters) not in shown.values()
            assert name == f"mixed(conv={conv}, matmul={matmul}, parameters={parameters})"


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
