"""Sees what a training multiplies: whole steps of it, from the end of one optimizer's step to the end of its next.

The second step is observed, then the fourth or so, the eighth ..., as the time for it allows, and the last where the
program says which that is. Each becomes an event ``precision_observed``. Nothing is observed of a program that
`torch.compile` compiles: to watch it would change what it computes. At its first error an observer is off for good.

>>> observe(run, how="client")  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.optim import optimizer as optimizers

from hpcml_client.observed import COMPILED
from hpcml_train.torch import switches
from hpcml_train.torch.observed_float32 import Float32
from hpcml_train.torch.window import Window, active_mode

_SHARE = 0.001  # of the time since the start, which observing may take beyond the first window
_DEEPEST = 4  # steps of one optimizer in each other: of a class, its base, and so on
_LEAD_LOST = 8  # steps of other optimizers without one of the leading one's


class Reporter(Protocol):
    """Where events go: a client of a run."""

    def event(self, name: str, /, **details: object) -> None:
        """Report an event."""


class Observer:
    """The one observer of a process. *report* is where events go, *how* whether the client or nobody called for it."""

    def __init__(self, report: Reporter, *, how: str, is_brief: bool = False) -> None:
        self._report, self._is_brief = report, is_brief
        self._hello = {"framework": "torch", "how": how, "version": torch.__version__}
        self._lock = threading.Lock()
        self._is_on = self._is_closed = self._has_said_hello = False
        self._lead: weakref.ref[Any] | None = None
        self._depths: dict[int, int] = {}  # by optimizer: how many of its steps lie in each other now
        self._others = 0  # steps of other optimizers since the last one of the leading
        self._steps = self._windows = 0
        self._next_step = 1
        self._last_step: int | None = None
        self._float32 = Float32()
        self._window: Window | None = None
        self._stuck: Window | None = None  # closed, below a mode of the program's
        self._began = self._opened_at = self._stepped_at = time.perf_counter()
        self._usual_s: float | None = None  # that a step takes
        self._spent_s = self._last_s = 0.0

    def install(self, *, is_hooked: bool) -> None:
        """Watch the steps of all optimizers from now on; hello is said at the first.

        Not *is_hooked*: somebody else watches, and has said hello.
        """
        if not hasattr(optimizers, "register_optimizer_step_post_hook"):
            self._report.event("precision_observer", **self._hello, off=f"torch {torch.__version__} tells no steps")
            return
        self._has_said_hello = not is_hooked
        if is_hooked:
            optimizers.register_optimizer_step_pre_hook(self.steps)
            optimizers.register_optimizer_step_post_hook(self.stepped)
        self._is_on = True
        os.register_at_fork(after_in_child=self._forget)

    def know_probe(self, products: Mapping[str, str], device: str) -> None:
        """Take what a probe has measured just now for what float32 is where a library has leave for less."""
        self._float32.know_probe(products, device)

    def expect_last(self, step: int) -> None:
        """Have the last step observed too: the program says that it is *step*."""
        self._last_step = step

    def end_step(self) -> None:
        """Tell the end of a step of a program that has no optimizer."""
        self.stepped(self, (), {})

    def close(self, *, is_hasty: bool = False) -> None:
        """Give up an open window, tell how many steps there were, and observe no more.

        If *is_hasty*, not while a step is looked at: that may be this very thread's, which a signal interrupts.
        """
        if not self._lock.acquire(blocking=not is_hasty):
            return
        try:
            if self._is_closed:
                return
            self._is_closed, self._is_on = True, False
            self._drop_window()
            if self._steps:
                self._report.event("precision_observer_closed", framework="torch", steps=self._steps)
        finally:
            self._lock.release()

    def steps(self, optimizer: Any, _: Any, __: Any) -> None:  # noqa: ANN401 - as torch calls it
        """Know that *optimizer* begins a step, maybe as a part of another class' step of the same one."""
        if not self._is_on or is_compiling():
            return
        depth = self._depths.get(id(optimizer), 0)
        self._depths[id(optimizer)] = depth + 1 if depth < _DEEPEST else 1  # the last ones have raised
        if self._window is not None:
            self._window.is_in_optimizer = True

    def stepped(self, optimizer: Any, _: Any, __: Any) -> None:  # noqa: ANN401 - as torch calls it
        """Know that *optimizer* has made a step just now."""
        if is_compiling():
            return
        depth = self._depths.pop(id(optimizer), 1) - 1
        if depth > 0:
            self._depths[id(optimizer)] = depth
            return
        if self._window is not None:
            self._window.is_in_optimizer = False
        if self._stuck is not None and self._stuck.leave():
            self._stuck = None
        if not self._lock.acquire(blocking=False):  # another thread's step ended just now
            return
        try:
            if not self._is_closed and self._leads(optimizer):
                self._steps += 1
                if self._is_on:
                    self._end_of_step(optimizer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._turn_off(f"{type(error).__name__}: {error}")
        finally:
            self._lock.release()

    def _leads(self, optimizer: object) -> bool:
        """Whether it is the optimizer whose steps are counted: the first, of several that step in turns."""
        lead = None if self._lead is None else self._lead()
        if lead is not optimizer and lead is not None and self._others < _LEAD_LOST:
            self._others += 1
            return False
        if lead is not optimizer:
            self._lead = weakref.ref(optimizer)
        self._others = 0
        return True

    def _end_of_step(self, optimizer: Any) -> None:  # noqa: ANN401
        now = time.perf_counter()
        if not self._has_said_hello:
            self._has_said_hello = True
            self._report.event("precision_observer", **self._hello)
        if self._window is not None:
            self._end_window(self._window, optimizer, now)
        elif self._steps > 1:
            step_s = now - self._stepped_at
            self._usual_s = step_s if self._usual_s is None else min(self._usual_s, step_s)
        if self._is_due():
            self._open_window(optimizer)
        self._stepped_at = time.perf_counter()

    def _is_due(self) -> bool:
        if self._windows == 0:
            return self._steps >= self._next_step
        is_last = self._last_step is not None and self._steps == self._last_step - 1
        is_in_time = self._spent_s + self._last_s <= _SHARE * (time.perf_counter() - self._began)
        return not self._is_brief and (is_last or self._steps >= self._next_step) and is_in_time

    def _open_window(self, optimizer: Any) -> None:  # noqa: ANN401
        if is_anything_compiled():
            self._report_window(optimizer, [], [{"what": COMPILED, "flops": None}], {}, 0.0)
            return
        if active_mode() is not None or _is_disturbed():
            return  # the next step tries again
        self._window = Window(self._float32)
        self._opened_at = time.perf_counter()
        self._window.open()

    def _end_window(self, window: Window, optimizer: Any, now: float) -> None:  # noqa: ANN401
        self._window = None
        if window.is_given_up:
            return  # the next step tries again
        if not window.close():
            self._stuck = window
            self._turn_off("the program's own dispatch mode lies above the observer's")
            return
        window_s = now - self._opened_at
        self._last_s = max(0.0, window_s - (self._usual_s or window_s))
        self._spent_s += self._last_s
        if is_anything_compiled():
            self._report_window(optimizer, [], [{"what": COMPILED, "flops": None}], {}, self._last_s)
            return
        self._report_window(optimizer, window.rows(), window.unknown_rows(), window.autocast, self._last_s)

    def _report_window(
        self,
        optimizer: Any,  # noqa: ANN401
        rows: list[Any],
        unknown: list[Any],
        autocast: Mapping[str, str],
        seconds: float,
    ) -> None:
        allowed = self._float32.allowed
        evidence: dict[str, Any] = {}
        if allowed:
            evidence["tf32_allowed"] = sorted(allowed)
            evidence["as_probed"] = sorted(kind for kind, is_probed in allowed.items() if is_probed)
        self._report.event(
            "precision_observed",
            framework="torch",
            window=self._windows,
            step=self._steps,
            rows=rows,
            unknown=unknown,
            parameters=_parameters(optimizer),
            switches=_switches(),
            autocast=dict(autocast),
            evidence=evidence,
            seconds=seconds,
        )
        self._windows += 1
        self._next_step = 2 * self._steps

    def _turn_off(self, why: str) -> None:
        """Observe no more: *why* is told in a line, and no error of ours reaches the program."""
        if not self._is_on:
            return
        self._is_on = False
        why = " ".join(why.split())[:200]
        with contextlib.suppress(Exception):
            sys.stderr.write(f"hpcml_client: the precision is not observed any more: {why}\n")
        with contextlib.suppress(Exception):
            self._drop_window()
            self._report.event("precision_observer", **self._hello, off=why)

    def _drop_window(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            window.close()

    def _forget(self) -> None:
        """Observe nothing in a child: its steps, if any, are another program's."""
        self._lock = threading.Lock()
        self._is_on, self._is_closed = False, True
        self._drop_window()


def observe(report: Reporter, *, how: str, is_brief: bool = False, is_hooked: bool = True) -> Observer:
    """Observe this process from now on, unless somebody does already; return the observer.

    With *is_brief* only the first window is taken, as is enough for most of many ranks. Not *is_hooked*: it is told
    each step (`Observer.stepped`), and hello has been said.
    """
    if _Process.observer is None:
        _Process.observer = Observer(report, how=how, is_brief=is_brief)
        _Process.observer.install(is_hooked=is_hooked)
    return _Process.observer


def current() -> Observer | None:
    """Return the observer of this process, if there is one."""
    return _Process.observer


class _Process:
    """What there is one of in a process, as of the hooks of all optimizers."""

    observer: Observer | None = None


def is_compiling() -> bool:
    """Whether torch.compile is looking at this code, as in an optimizer's step that a program compiles."""
    compiler = getattr(torch, "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())


def is_anything_compiled() -> bool:
    """Whether torch.compile has compiled code of this process: the compiler is loaded, and has counted frames."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and sum(dynamo.counters["frames"].values()) > 0


def _is_disturbed() -> bool:
    """Whether the next step is somebody else's to look at: a CUDA graph is being captured, or a profile taken."""
    is_used = torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call, unused-ignore]
    return (is_used and torch.cuda.is_current_stream_capturing()) or torch._C._autograd._profiler_enabled()  # noqa: SLF001


def _parameters(optimizer: Any) -> dict[str, int]:  # noqa: ANN401
    counts: dict[str, int] = {}
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            name = str(parameter.dtype).rpartition(".")[2]
            counts[name] = counts.get(name, 0) + parameter.numel()
    return counts


def _switches() -> dict[str, Any]:
    try:
        return dict(switches.read_switches())
    except RuntimeError:  # a program that has used torch's old interface and the new one
        return {}
