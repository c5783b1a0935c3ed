"""Sees what a training multiplies: windows of a step or a few, taken by torch's own execution trace.

The trace lies below Python, in every thread and in compiled code, and changes nothing that the program executes. A
window lasts from the end of one optimizer's step to the end of its next. Windows are read after their step, as the time
for it allows, and each becomes an event ``precision_observed``. At its first error an observer is off for good.

>>> observe(run, how="client")  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Protocol, Set

import torch

from hpcml_train.torch import float32, nested, switches, traces
from hpcml_train.torch.layers import LayerHooks, quiet
from hpcml_train.torch.own_kernels import OwnKernels
from hpcml_train.torch.step_kinds import Kind, Kinds
from hpcml_train.torch.uncompiled import never_compiled

_SHARE = 0.001  # of the time since the start, which observing may take beyond the first window
_BYTES_PER_S = 8e6  # of a trace that are read: a guess that is corrected by the first
_LARGEST_BYTES = 1 << 28  # of a trace: a window of more is given up
_TRIES = 5  # windows in which something was compiled, or made as nested tensors are, one after the other
_NESTED = "the program makes nested tensors, at which torch's execution trace crashes"
_DEEPEST = 4  # steps of one optimizer in each other: of a class, its base, and so on
_MOST_KINDS = 6  # of steps that get a window for being of a new kind, whatever time it takes
_LEAD_LOST = 8  # steps of other optimizers without one of the leading one's
_TRACED_BY_ENVIRONMENT = "ENABLE_PYTORCH_EXECUTION_TRACE"


class Reporter(Protocol):
    """Where events go: a client of a run."""

    def event(self, name: str, /, **details: object) -> None:
        """Report an event."""


class _Taken(NamedTuple):
    """A window whose trace waits to be read."""

    path: str
    size_bytes: int
    details: Dict[str, Any]
    leave: float32.Leave
    own_kernels: OwnKernels
    unknown: List[str]
    window_s: Optional[float] = None  # how long the window took, where it is not known how long a step usually does


class Observer:
    """The one observer of a process. *report* is where events go, *how* whether the client or nobody called for it."""

    def __init__(self, report: Reporter, *, how: str, is_brief: bool = False) -> None:
        self._report, self._how, self._is_brief = report, how, is_brief
        self._lock = threading.Lock()
        self._is_on = self._is_closed = False
        self._has_said_hello = False
        self._folder: Optional[str] = None
        self._lead: Optional[weakref.ref[Any]] = None
        self._depths: Dict[int, int] = {}  # by optimizer: how many of its steps lie in each other now
        self._strangers = 0  # steps of other optimizers since the last one of the leading
        self._steps = self._windows = self._tries = 0
        self._next_step = 1
        self._last_step: Optional[int] = None
        self._kinds = Kinds()
        self._kind: Optional[Kind] = None  # of the last step
        self._watched: Set[Kind] = set()  # kinds of steps of which a window was taken
        self._taken: List[_Taken] = []
        self._hooks: Optional[LayerHooks] = None  # of the open window
        self._own_kernels = OwnKernels()  # of it, or of the last one
        self._compiled_before = 0
        self._drivers_word = float32.drivers_word()
        self._probed = float32.Probed()
        self._began = time.perf_counter()
        self._opened = self._stepped_at = self._began
        self._usual_s: Optional[float] = None
        self._spent_s = self._last_s = 0.0
        self._bytes_per_s = _BYTES_PER_S

    def install(self, *, is_hooked: bool) -> None:
        """Watch the steps of all optimizers from now on; hello is said at the first.

        Not *is_hooked*: somebody else watches, and has said hello. The hook stays for good: torch goes through its
        hooks while they are called, and none may go away meanwhile.
        """
        why_not = self._why_not()
        if why_not is not None:
            self._report.event("precision_observer", **self._hello, off=why_not)
            return
        self._has_said_hello = not is_hooked
        if is_hooked:
            from torch.optim import optimizer

            never_compiled(self.steps, self.stepped)
            optimizer.register_optimizer_step_pre_hook(self.steps)
            optimizer.register_optimizer_step_post_hook(self.stepped)
        self._is_on = True
        self._kinds.watch()
        os.register_at_fork(before=self._pause, after_in_child=self._forget)
        _give_way_to_others(self)
        nested.before_a_program_makes_one(lambda: self.give_way(_NESTED))

    def end_step(self) -> None:
        """Tell the end of a step of a program that has no optimizer."""
        self.stepped(self, (), {})

    def know_probe(self, products: Mapping[str, str], device: str) -> None:
        """Take what a probe has measured just now for what float32 is where a library has leave for less."""
        self._probed = float32.probed(products, device, float32.Leave(self._drivers_word))

    def expect_last(self, step: int) -> None:
        """Have the last step observed too: the program says that it is *step*."""
        self._last_step = step

    def close(self, *, is_hasty: bool = False) -> None:
        """Give up an open window, read those that wait, tell how many steps there were, and observe no more.

        If *is_hasty*, not while a step is looked at: that may be this very thread's, which a signal interrupts.
        """
        if not self._lock.acquire(blocking=not is_hasty):
            return
        try:
            with self._safely():
                self._close()
        finally:
            self._lock.release()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_on:
            self._drop_window()
            while self._taken:
                self._read(self._taken.pop(0))
        if self._steps:
            self._report.event("precision_observer_closed", framework="torch", steps=self._steps)
        self._end()

    def give_way(self, why: str) -> None:
        """Be off for good, since somebody else is about to take a trace, or to do what none may see.

        The windows that wait are read first.
        """
        with self._safely():
            self._drop_window()
            while self._is_on and self._taken:
                self._read(self._taken.pop(0))
            self._turn_off(why)

    def give_up_window(self) -> None:
        """Have no window open any more, before a nested tensor is there; the next step tries again, a few times."""
        with self._safely(), self._lock:
            if self._hooks is None:
                return
            self._drop_window()
            self._tries += 1
            if self._tries >= _TRIES:
                self.give_way(_NESTED)

    @property
    def has_window(self) -> bool:
        """Whether a window is open."""
        return self._hooks is not None

    @property
    def _hello(self) -> Dict[str, Any]:
        return {"framework": "torch", "how": self._how, "version": torch.__version__}

    @staticmethod
    def _why_not() -> Optional[str]:
        if os.environ.get(_TRACED_BY_ENVIRONMENT, "0") == "1":
            return f"{_TRACED_BY_ENVIRONMENT} has torch trace for somebody else"
        optimizer = sys.modules.get("torch.optim.optimizer")
        if not hasattr(optimizer, "register_optimizer_step_post_hook"):
            return f"torch {torch.__version__} tells no steps of optimizers"
        if not hasattr(torch._C, "_profiler") or traces.tracing("add") is None:  # noqa: SLF001
            return f"torch {torch.__version__} has no execution trace"
        return None

    def steps(self, optimizer: Any, _: Any, __: Any) -> None:  # noqa: ANN401 - as torch calls it
        """Know that *optimizer* begins a step, maybe as a part of another class' step of the same one."""
        if self._is_on:
            depth = self._depths.get(id(optimizer), 0)
            self._depths[id(optimizer)] = depth + 1 if depth < _DEEPEST else 1  # the last ones have raised
            if self._hooks is not None and self._depths[id(optimizer)] == 1:
                with traces.step_mark():
                    pass

    def stepped(self, optimizer: Any, _: Any, __: Any) -> None:  # noqa: ANN401 - as torch calls it
        """Know that *optimizer* has made a step just now."""
        depth = self._depths.pop(id(optimizer), 1) - 1
        if depth > 0:
            self._depths[id(optimizer)] = depth
            return
        if not self._is_on:
            self._steps += not self._is_closed and self._leads(optimizer)  # of one that went off, the steps still count
            return
        if not self._lock.acquire(blocking=False):  # another thread's step ended just now
            return
        try:
            if self._is_on and self._leads(optimizer):
                self._end_of_step(optimizer)
        except Exception as error:  # noqa: BLE001 - as `_safely`, which every step would have to make anew
            self._fail(error)
        finally:
            self._lock.release()

    def _leads(self, optimizer: object) -> bool:
        """Whether it is the optimizer whose steps are counted: the first, of several that step in turns."""
        lead = None if self._lead is None else self._lead()
        if lead is not optimizer and lead is not None and self._strangers < _LEAD_LOST:
            self._strangers += 1
            return False
        if lead is not optimizer:
            self._lead = weakref.ref(optimizer)
        self._strangers = 0
        return True

    def _end_of_step(self, optimizer: Any) -> None:  # noqa: ANN401
        now = time.perf_counter()
        if not self._has_said_hello:
            self._has_said_hello = True
            self._report.event("precision_observer", **self._hello)
        self._steps += 1
        self._kind = self._kinds.of_step(optimizer)
        had_window = self._hooks is not None
        if had_window:
            self._take_window(optimizer, now)
        elif self._steps > 1:
            step_s = now - self._stepped_at
            self._usual_s = step_s if self._usual_s is None else min(self._usual_s, step_s)
        if self._taken and self._may_spend(self._taken[0].size_bytes / self._bytes_per_s):
            self._read(self._taken.pop(0))
        # The range that torch has around this very step began in the window that ended. Its end would be taken off the
        # next trace's stack, which is empty: the process crashes (torch 2.11 and 2.13, execution_trace_observer.cpp).
        if not had_window and self._is_due():
            self._open_window()
        self._stepped_at = time.perf_counter()

    def _is_due(self) -> bool:
        if self._windows == 0:
            return self._steps >= self._next_step
        if self._is_brief:
            return False
        if self._kind not in self._watched and len(self._watched) < _MOST_KINDS:
            return True
        is_last = self._last_step is not None and self._steps == self._last_step - 1
        return (is_last or self._steps >= self._next_step) and self._may_spend(self._last_s)

    def _may_spend(self, seconds: float) -> bool:
        return self._spent_s + seconds <= _SHARE * (time.perf_counter() - self._began)

    def _open_window(self) -> None:
        if _is_capturing():
            return
        began = time.perf_counter()
        self._folder = self._folder or tempfile.mkdtemp(prefix="hpcml-observer-")
        path = os.path.join(self._folder, f"{self._windows}-{self._tries}.json")
        with quiet():
            traces.tracing("add")(path)  # its class does no more, but warns
        if not os.path.exists(path):
            self._turn_off("the program takes an execution trace itself")
            return
        self._compiled_before = _compilations()
        leave = float32.Leave(self._drivers_word)
        # compiled code would be compiled anew for the hooks
        is_hooked = not self._compiled_before
        self._hooks = LayerHooks(
            path, leave=leave, give_up=self.give_up_window, with_layers=is_hooked, most_bytes=_LARGEST_BYTES
        )
        traces.Marks.is_on = True
        with quiet():
            traces.tracing("enable")()
        with traces.own_mark():  # so that this thread's stack has something on it, should another old range end now
            pass
        self._hooks.install()
        self._own_kernels = OwnKernels()
        self._own_kernels.watch()
        self._opened = time.perf_counter()
        self._spent_s += self._opened - began

    def _end_window(self) -> LayerHooks:
        hooks = self._hooks
        if hooks is None:
            raise RuntimeError("no window is open")
        self._hooks = None
        self._own_kernels.end()
        hooks.remove()
        traces.Marks.is_on = False
        with quiet():
            traces.tracing("disable")()
            traces.tracing("remove")()
        return hooks

    def _drop_window(self) -> None:
        if self._hooks is not None:
            _remove_file(self._end_window().path)

    def _take_window(self, optimizer: Any, now: float) -> None:  # noqa: ANN401
        hooks = self._end_window()
        window_s = now - self._opened - hooks.untraced_s
        self._last_s = max(0.0, window_s - (self._usual_s or window_s))
        if _compilations() != self._compiled_before and self._tries < _TRIES:  # what is being compiled does not run
            self._tries += 1
            _remove_file(hooks.path)
            self._spent_s += self._last_s
            return
        self._last_s += time.perf_counter() - now
        self._spent_s += self._last_s
        details = {
            "framework": "torch",
            "window": self._windows,
            "step": self._steps,
            "parameters": _parameters(optimizer),
            "switches": _switches(),
            "autocast": hooks.autocast,
            "seconds": self._last_s,
        }
        late_s = None if self._usual_s else window_s  # what is usual, the next steps will tell
        unknown = [*_hidden(), *hooks.troubles]
        size_bytes = os.path.getsize(hooks.path)
        self._taken.append(
            _Taken(
                hooks.path,
                size_bytes,
                details,
                hooks.leave,
                self._own_kernels,
                unknown,
                late_s,
            )
        )
        self._windows += 1
        if self._kind is not None:
            self._watched.add(self._kind)
        self._tries = 0
        self._next_step = 2 * self._steps

    def _read(self, taken: _Taken) -> None:
        """Read a window's trace, and report it."""
        began = time.perf_counter()
        try:
            if taken.size_bytes > _LARGEST_BYTES:
                found = traces.Found([], {f"a window whose trace has more than {_LARGEST_BYTES >> 20} MiB": None}, 0)
            else:
                found = traces.read_trace(taken.path)
        except traces.TraceError as error:
            found = traces.Found([], {f"torch's execution trace: {error}": None}, 0)
        finally:
            _remove_file(taken.path)
        products, unknown = float32.resolve(found, taken.leave, self._probed)
        unknown.update(dict.fromkeys(taken.own_kernels.unknown({one.format for one in products})))
        read_s = time.perf_counter() - began
        if taken.window_s is not None and self._usual_s is not None:
            read_s += max(0.0, taken.window_s - self._usual_s)
        self._spent_s += read_s
        self._last_s = max(self._last_s, taken.details["seconds"] + read_s)
        self._bytes_per_s = max(1.0, taken.size_bytes / max(time.perf_counter() - began, 1e-6))
        evidence: Dict[str, Any] = {"records": found.nodes}
        if any(traces.FLOAT32_ON_GPU in one.format for one in found.products):
            evidence["tf32_allowed"] = sorted(taken.leave.on_gpu)
            evidence["as_probed"] = sorted(taken.leave.on_gpu & self._probed.on_gpu.keys())
        self._report.event(
            "precision_observed",
            **{
                **taken.details,
                "rows": traces.rows(products),
                "unknown": [
                    {"what": what, "flops": flops}
                    for what, flops in {**unknown, **dict.fromkeys(taken.unknown)}.items()
                ],
                "evidence": evidence,
                "seconds": taken.details["seconds"] + read_s,
            },
        )

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        """Let no error of ours reach the program: the first one is told in a line, and ends the observing."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        with contextlib.suppress(Exception):
            self._turn_off(f"{type(error).__name__}: {error}")

    def _turn_off(self, why: str) -> None:
        if not self._is_on:
            return
        said = " ".join(why.split())[:200]
        with contextlib.suppress(Exception):
            sys.stderr.write(f"hpcml_client: the precision is not observed any more: {said}\n")
        with contextlib.suppress(Exception):
            self._drop_window()
        traces.Marks.is_on = False
        self._end()
        self._report.event("precision_observer", **self._hello, off=said)

    def _end(self) -> None:
        self._is_on = False
        self._kinds.end()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _pause(self) -> None:
        """Have no trace open in a child."""
        if self._is_on and self._hooks is not None:
            with self._safely(), self._lock:
                self._drop_window()  # the next step tries again

    def _forget(self) -> None:
        """Observe nothing in a child: its steps, if any, are another program's."""
        self._lock = threading.Lock()
        self._is_on, self._is_closed, self._taken, self._folder = False, True, [], None


def observe(report: Reporter, *, how: str, is_brief: bool = False, is_hooked: bool = True) -> Observer:
    """Observe this process from now on, unless somebody does already; return the observer.

    With *is_brief* only the first window is taken, as is enough for most of many ranks. Not *is_hooked*: it is told
    each step (`Observer.stepped`), and hello has been said.
    """
    if _Process.observer is None:
        _Process.observer = Observer(report, how=how, is_brief=is_brief)
        _Process.observer.install(is_hooked=is_hooked)
    return _Process.observer


def current() -> Optional[Observer]:
    """Return the observer of this process, if there is one."""
    return _Process.observer


class _Process:
    """What there is one of in a process, as of torch's trace."""

    observer: Optional[Observer] = None


def _give_way_to_others(observer: Observer) -> None:
    """Have *observer* go off before anybody else takes an execution trace: torch has one, and two crash."""
    from torch.profiler import profiler

    names = [f"_add_execution_{called}_observer" for called in traces.TRACE_IS_CALLED]  # what all who trace call
    name = next(name for name in names if hasattr(profiler, name))
    add: Callable[[str], bool] = getattr(profiler, name)

    def add_after_us(path: str) -> bool:
        observer.give_way("the program takes an execution trace itself")
        return add(path)

    setattr(profiler, name, add_after_us)


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured, which nobody may disturb."""
    is_used = torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call, unused-ignore]
    return is_used and torch.cuda.is_current_stream_capturing()


def _compilations() -> int:
    """Return how often torch.compile has looked at code so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else sum(dynamo.counters["frames"].values())


def _hidden() -> List[str]:
    """Return what compiled code may compute without any trace of it."""
    found = []
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["inductor"].get("select_algorithm_autotune"):
        found.append("templates of torch.compile, which no trace shows")
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None and getattr(getattr(trees, "local", None), "tree_manager_containers", None):
        found.append("CUDA graphs, whose replays no trace shows")
    return found


def _parameters(optimizer: Any) -> Dict[str, int]:  # noqa: ANN401
    counts: Dict[str, int] = {}
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            name = str(parameter.dtype).rpartition(".")[2]
            counts[name] = counts.get(name, 0) + parameter.numel()
    return counts


def _switches() -> Dict[str, Any]:
    try:
        return dict(switches.read_switches())
    except RuntimeError:  # a program that has used torch's old interface and the new one
        return {}


def _remove_file(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)
