"""What a program compiles, as TensorFlow and JAX tell it: its products, before they are computed.

An observer is called for each function that is compiled, adds up the products in it, and reports them as events
``precision_observed`` (`hpcml_train.precision.observed` reads them): at once where a function differentiates, since
that is what trains, and at the end for all others. Nothing in the program changes, and no step is slower for it. How
often a function runs is not known: each counts once. At its first error an observer is off for good.
"""

from __future__ import annotations

import abc
import contextlib
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

FORWARD, BACKWARD = "forward", "backward"
BESIDE = "optimizer"  # in a function that differentiates, but not differentiated there
EVALUATION = "evaluation"  # in a function that does not differentiate, of a program that has others
_MOST_WINDOWS = 50  # a program that compiles without end
_MOST_ROWS = 60  # of a window: a layer each, format and phase
_LONGEST_S = 5.0  # that reading may take in all


class Reporter(Protocol):
    """Where events go: a client of a run."""

    def event(self, name: str, /, **details: object) -> None:
        """Report an event."""


class Product(NamedTuple):
    """A product of matrices or a convolution; its `format` is None where the framework does not tell it."""

    format: Optional[str]
    phase: str  # forward, backward, or what is in between
    layer: Optional[str]
    flops: float
    why_unknown: str = ""
    name: str = ""  # which is the same wherever it is compiled again; empty: it has none


class Function(NamedTuple):
    """What is known of a function that is compiled."""

    products: Sequence[Product]
    unknown: Sequence[str] = ()  # what it calls that may multiply too, and does not say so
    is_part: bool = False  # of another function: the body of a loop


class ProgramObserver(abc.ABC):
    """Sees what a framework compiles in this process. *report* is where events go, *how* who has called for it."""

    framework = ""

    def __init__(self, report: Reporter, *, how: str = "client", is_brief: bool = False, on_gpu: bool = False) -> None:
        self.on_gpu = on_gpu
        self._report, self._how, self._most = report, how, 1 if is_brief else _MOST_WINDOWS
        self._lock = threading.RLock()
        self._undo: Optional[Callable[[], None]] = None
        self._pending: List[Function] = []
        self._trains = False  # whether anything was differentiated so far
        self._windows = 0
        self._spent_s = 0.0

    @abc.abstractmethod
    def version(self) -> str:
        """Return the version of the framework."""

    @abc.abstractmethod
    def hook(self, seen: Callable[[Any], None]) -> Callable[[], None]:
        """Have *seen* called for each function that is compiled; return what ends that.

        Raises `AttributeError` or `ImportError` where this version of the framework has no such place.
        """

    @abc.abstractmethod
    def read(self, compiled: Any) -> Function:  # noqa: ANN401 - what the framework compiles
        """Return what is in a function."""

    @abc.abstractmethod
    def switches(self) -> Mapping[str, object]:
        """Return the framework's switches with their values."""

    def before(self) -> Sequence[str]:
        """Return what of the program was compiled before it was observed, and multiplies."""
        return ()

    def at_last(self) -> Sequence[str]:
        """Return what else is unknown at the end."""
        return ()

    def install(self) -> None:
        """Say hello, and see from now on what is compiled."""
        try:
            self._undo = self.hook(self._see)
        except (ImportError, AttributeError) as error:
            self._hello(off=f"{self.framework} {self.version()} does not tell what it compiles: {error}")
            return
        self._hello()
        with self._safely():
            if earlier := self.before():
                self._pending.append(Function((), earlier))

    def expect_last(self, step: int) -> None:
        """Know the last step, which says nothing here."""
        del step

    def close(self) -> None:
        """Report what is not reported yet, and see nothing any more."""
        with self._safely(), self._lock:
            if self._undo is None:
                return
            if unknown := self.at_last():
                self._pending.append(Function((), unknown))
            self._emit()
            self._end()

    def _see(self, compiled: Any) -> None:  # noqa: ANN401
        began = time.perf_counter()
        with self._safely(), self._lock:
            if self._undo is None:
                return
            if self._spent_s > _LONGEST_S:
                raise RuntimeError(f"reading what is compiled has taken {self._spent_s:.0f} s")
            function = self.read(compiled)
            self._spent_s += time.perf_counter() - began
            if not function.products and not function.unknown:
                return
            self._pending.append(function)
            if not function.is_part and any(one.phase == BACKWARD for one in function.products):
                self._trains = True
                self._emit()

    def _emit(self) -> None:
        pending, self._pending = self._pending, []
        if not pending or self._windows >= self._most:
            return
        rows, unknown = _added_up(pending, trains=self._trains)
        if not rows and not unknown:
            return
        self._report_window(rows, unknown, self.switches())

    def _report_window(self, rows: Sequence[object], unknown: Sequence[object], switches: Mapping[str, object]) -> None:
        self._report.event(
            "precision_observed",
            framework=self.framework,
            window=self._windows,
            step=0,  # a framework that compiles tells of no steps
            rows=list(rows),
            unknown=list(unknown),
            switches=dict(switches),
            autocast={},
            evidence=["compiled functions, each counted once"],
            seconds=round(self._spent_s, 6),
        )
        self._windows += 1

    def _hello(self, **more: object) -> None:
        self._report.event(
            "precision_observer", framework=self.framework, how=self._how, version=self.version(), **more
        )

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        """Let no error of ours reach the program: the first one is told in a line, and ends the observing."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            with contextlib.suppress(Exception):
                self._turn_off(" ".join(f"{type(error).__name__}: {error}".split())[:200])

    def _turn_off(self, why: str) -> None:
        if self._undo is None:
            return
        with contextlib.suppress(Exception):
            sys.stderr.write(f"hpcml_client: the precision is not observed any more: {why}\n")
        self._end()
        # a window says so, since those before it are not all that there was
        self._report_window([], [_nobody_knows(f"the observer was off: {why}")], {})
        self._hello(off=why)

    def _end(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


def _added_up(
    functions: Sequence[Function], *, trains: bool
) -> Tuple[List[Dict[str, object]], List[Dict[str, object]]]:
    """Return the rows of a window, and what is unknown in it."""
    flops: Dict[Tuple[str, str, str], float] = {}
    missing: Dict[str, float] = {}
    seen = set()
    differentiated = "\n".join(one.name for function in functions for one in function.products if one.phase == BACKWARD)
    for function in functions:
        differentiates = any(one.phase in (BACKWARD, FORWARD) for one in function.products)
        for one in function.products:
            if one.name:
                if (one.name, one.phase) in seen:
                    continue
                seen.add((one.name, one.phase))
            phase = one.phase
            if phase == BESIDE and one.name and one.name in differentiated:  # a gradient has the name of its product
                phase = FORWARD
            elif phase == BESIDE and not differentiates:
                phase = EVALUATION if trains else FORWARD
            if one.format is None:
                missing[one.why_unknown] = missing.get(one.why_unknown, 0.0) + one.flops
                continue
            key = (one.format, phase, one.layer or "")
            flops[key] = flops.get(key, 0.0) + one.flops
    for form, phase, layer in sorted(flops, key=lambda one: -flops[one])[_MOST_ROWS:]:  # what is left has no layers
        rest = flops.pop((form, phase, layer))
        flops[form, phase, ""] = flops.get((form, phase, ""), 0.0) + rest
    rows: List[Dict[str, object]] = [
        {"format": form, "phase": phase, "layer": layer or None, "flops": count}
        for (form, phase, layer), count in sorted(flops.items(), key=lambda item: -item[1])
    ]
    unknown: List[Dict[str, object]] = [
        {"what": what, "flops": count, "share": None} for what, count in sorted(missing.items())
    ]
    others = dict.fromkeys(what for function in functions for what in function.unknown)
    return rows, unknown + [_nobody_knows(what) for what in others]


def _nobody_knows(what: str) -> Dict[str, object]:
    return {"what": what, "flops": None, "share": None}
