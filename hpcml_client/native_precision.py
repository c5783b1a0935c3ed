"""Which precisions the adaptors of TensorFlow and JAX have: native ones only, since emulation is torch's."""

from __future__ import annotations

from hpcml_client.precision_shown import SHOWS


def check_native(framework: str, precision: str, numerics: str, device: str) -> None:
    """Raise `ValueError` where *framework* cannot compute in *precision* on *device*, ``cpu`` or ``cuda``.

    hpcml's plan refuses the same before anything starts; this is for a program that is started by hand.
    """
    known = [name for name in SHOWS if not name.startswith("fp8")]
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
