"""From measured errors to names: the format whose rounding a product shows, and the precision of several formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpcml_client.precisions import OWN, PRECISIONS

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


def name_format(error: float, is_finite_beyond_fp16: Callable[[], bool]) -> str:
    """Return the name of the format whose products have this relative *error*; ``unknown`` where none has.

    *is_finite_beyond_fp16* repeats the product with inputs times `BEYOND_FP16`; called only where that decides.
    """
    for limit, name in _LIMITS:
        if error < limit:
            if name == "eleven bits":
                return "tf32" if is_finite_beyond_fp16() else "fp16"
            return name
    return "unknown"


def name_precision(products: Mapping[str, str], parameters: str) -> str:
    """Return the precision with these formats of products and parameters, else ``mixed(...)`` with all of them."""
    seen = {(form, parameters) for form in products.values()}
    for precision, row in PRECISIONS.items():
        if seen == {(row.product, row.parameters)}:
            return precision
    parts = ", ".join(f"{product}={form}" for product, form in sorted(products.items()))
    return f"mixed({parts}, parameters={parameters})"


def check_native(framework: str, precision: str, numerics: str, device: str) -> None:
    """Raise `ValueError` where *framework* cannot compute natively in *precision* on *device* (``cpu`` or ``cuda``).

    hpcml's planning refuses the same before anything starts; this is for programs started by hand.
    """
    known = [OWN, *(name for name, row in PRECISIONS.items() if row.in_every_framework)]
    if precision not in known:
        raise ValueError(f"precision={precision!r} is not there with {framework}: choose one of {', '.join(known)}")
    if numerics not in ("auto", "native"):
        raise ValueError(f"numerics={numerics!r} is refused with {framework}: hpcml_client emulates in torch only")
    # Who says native gets it, and the probe says what came of it.
    if precision == "tf32" and device == "cpu" and numerics == "auto":
        raise ValueError(
            f"precision=tf32 is refused on a CPU with {framework}: it has no TF32 units, and hpcml_client emulates "
            "them in torch only"
        )
