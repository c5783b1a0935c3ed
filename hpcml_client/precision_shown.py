"""What a precision shows when it is measured: the error that tells a format, and the formats that tell a precision."""

from __future__ import annotations

from typing import Callable, Mapping, Tuple

# Upper limits of the relative Frobenius error, between the measured ones (docs/precision.md): fp64 1e-15, fp32 3.4e-7,
# tf32 and fp16 2.9e-4 (3.6e-4 where the result is fp16 too, truncated tf32 7.7e-4), bf16 2.3e-3 (2.9e-3 where the
# result is bf16 too), e4m3 3.8e-2, e5m2 7.4e-2. Each limit is the geometric mean of its neighbours.
_LIMITS = (
    (1e-11, "fp64"),
    (1e-5, "fp32"),
    (1.3e-3, "eleven bits"),
    (9.4e-3, "bf16"),
    (5.3e-2, "fp8_e4m3"),
    (0.2, "fp8_e5m2"),
)
# tf32 and fp16 both have eleven significant bits, but 2**17 is beyond FP16's range. A power of two: exact everywhere.
BEYOND_FP16 = 2.0**17

# precision -> (format of every product, type of the parameters); hpcml/precision.py reads measurements by the same
SHOWS: Mapping[str, Tuple[str, str]] = {
    "fp64": ("fp64", "float64"),
    "fp32": ("fp32", "float32"),
    "tf32": ("tf32", "float32"),
    "amp_fp16": ("fp16", "float32"),
    "amp_bf16": ("bf16", "float32"),
    "bf16": ("bf16", "bfloat16"),
    "fp16": ("fp16", "float16"),
    "fp8_e4m3": ("fp8_e4m3", "float32"),
    "fp8_e5m2": ("fp8_e5m2", "float32"),
}


def name_format(error: float, is_finite_beyond_fp16: Callable[[], bool]) -> str:
    """Name the format whose products have this relative *error*; one that no format has is ``unknown``.

    *is_finite_beyond_fp16* repeats the product with inputs times `BEYOND_FP16`, and is asked only where it decides.
    """
    for limit, name in _LIMITS:
        if error < limit:
            if name == "eleven bits":
                return "tf32" if is_finite_beyond_fp16() else "fp16"
            return name
    return "unknown"


def name_precision(products: Mapping[str, str], parameters: str) -> str:
    """Name what was measured: a precision, or ``mixed(...)`` with all that was seen where it is none of them."""
    seen = {(form, parameters) for form in products.values()}
    for precision, shown in SHOWS.items():
        if seen == {shown}:
            return precision
    parts = ", ".join(f"{product}={form}" for product, form in sorted(products.items()))
    return f"mixed({parts}, parameters={parameters})"
