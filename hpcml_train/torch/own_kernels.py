"""Products in kernels that a program launches itself, by Triton: torch's trace does not see them.

Triton computes float32 in TF32 unless it is told otherwise, whatever torch's switches say
(`triton.language.dot`, ``input_precision``).
"""

from __future__ import annotations

import contextlib
import re
import sys
from typing import Any, Callable, Collection, Dict, FrozenSet, List

_DOT = re.compile(r"\btt\.dot(_scaled)?\b([^\n]*)")
_PRECISION = re.compile(r"inputPrecision = (\w+)")
_FACTOR = re.compile(r"tensor<(?:\d+x)*([a-z]\w*)")
_FORMATS = {"f64": "fp64", "f32": "fp32", "bf16": "bf16", "f16": "fp16", "f8E4M3FN": "fp8_e4m3", "f8E5M2": "fp8_e5m2"}


class OwnKernels:
    """The kernels with products that were launched since `watch`, with the formats of these, by name."""

    def __init__(self) -> None:
        self.formats: Dict[str, FrozenSet[str]] = {}
        self._undo: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """Look at each kernel that is launched, until `end`. What torch.compile makes is launched elsewhere."""
        kind: Any = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
        run = getattr(kind, "run", None)
        if run is None:
            return

        def run_and_look(function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton calls it
            kernel = run(function, *args, **kwargs)
            with contextlib.suppress(Exception):
                self._look(str(getattr(function, "__name__", function)), kernel)
            return kernel

        def leave() -> None:
            if kind.run is run_and_look:  # else somebody has built upon it
                kind.run = run

        kind.run = run_and_look
        self._undo = leave

    def end(self) -> None:
        """Look no more."""
        self._undo()

    def unknown(self, formats: Collection[str]) -> List[str]:
        """Return what is not known, where all products that were seen are of *formats*: how much these kernels were."""
        return [
            f"{name}: a kernel of Triton that multiplies in {', '.join(sorted(mine))}"
            for name, mine in self.formats.items()
            if mine != set(formats)
        ]

    def _look(self, name: str, kernel: Any) -> None:  # noqa: ANN401
        if name not in self.formats and (found := formats_in(str(kernel.asm["ttir"]))):
            self.formats[name] = found


def formats_in(ttir: str) -> FrozenSet[str]:
    """Return the formats of the products in a kernel, of which *ttir* is Triton's own form; none: it has no products.

    >>> sorted(formats_in("%3 = tt.dot %0, %1, %2, inputPrecision = tf32 : tensor<64x64xf32> * tensor<64x64xf32>"))
    ['tf32']
    """
    found = set()
    for scaled, rest in _DOT.findall(ttir):
        kinds = {_FORMATS.get(one, one) for one in _FACTOR.findall(rest)[:2]}
        precision = _PRECISION.search(rest)
        if kinds == {"fp32"} and precision is not None and precision.group(1) != "ieee":
            kinds = {precision.group(1)}
        found.add("x".join(sorted(kinds)) + ("" if not scaled else " with scales"))
    return frozenset(found)
