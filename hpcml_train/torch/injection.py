"""An observer in a program that has no line of hpcml's: started by `hpcml_train/injected/sitecustomize.py`.

Must not import torch at its top: torch is in the middle of being imported.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from hpcml_client.client import ranks_of
from hpcml_client.journal import JournalWriter
from hpcml_train.torch.observer import Observer

OBSERVED_RANKS = 8  # of which all windows are taken; of the others the first: a thousand ranks tell no more


class Journal:
    """The journal of a process that asks for none. It promises no end: the process may be killed at any time."""

    def __init__(self, run_dir: str) -> None:
        self.rank = ranks_of(os.environ).rank
        self._writer = JournalWriter.open(
            os.path.join(run_dir, "journal"),
            run=os.environ.get("HPCML_RUN_ID") or os.path.basename(os.path.abspath(run_dir)),
            attempt=int(os.environ.get("HPCML_ATTEMPT") or 0),
            writer=f"rank{self.rank}",
        )

    def event(self, name: str, /, **details: object) -> None:
        """Report an event."""
        self._writer.event(name, details)
        self._writer.sync()


def watch(optimizers: Any) -> None:  # noqa: ANN401 - the module torch.optim.optimizer
    """Say hello, and observe the process from its first step on; *optimizers* has been executed, torch not yet."""
    torch = sys.modules.get("torch")
    journal = Journal(os.environ["HPCML_RUN_DIR"])
    hello = {"framework": "torch", "how": "injected", "version": str(getattr(torch, "__version__", "unknown"))}
    if not hasattr(optimizers, "register_optimizer_step_post_hook"):
        journal.event("precision_observer", **hello, off=f"torch {hello['version']} tells no steps of optimizers")
        return
    journal.event("precision_observer", **hello)
    first = _FirstStep(journal)
    optimizers.register_optimizer_step_pre_hook(first.begins)
    optimizers.register_optimizer_step_post_hook(first)


class _FirstStep:
    """A hook that makes the observer at the first step, when torch is whole, and calls it from then on."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._observer: Observer | None = None
        self._is_ours = True

    def begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ANN401 - as torch calls it
        """Know that *optimizer* begins a step."""
        if self._observer is not None and self._is_ours:
            self._observer.steps(optimizer, args, kwargs)

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ANN401 - as torch calls it
        try:
            if self._observer is None:
                self._begin()
            if self._observer is not None and self._is_ours:
                self._observer.stepped(optimizer, args, kwargs)
        except Exception as error:  # noqa: BLE001 - never the program's trouble
            self._is_ours = False
            sys.stderr.write(f"hpcml: the precision is not observed: {error}\n")

    def _begin(self) -> None:
        from hpcml_train.torch import observer

        if observer.is_compiling():
            return
        self._is_ours = observer.current() is None  # else the program has asked for its precision itself
        self._observer = observer.observe(
            self._journal, how="injected", is_brief=self._journal.rank >= OBSERVED_RANKS, is_hooked=False
        )
        if self._is_ours:
            atexit.register(self._observer.close)
