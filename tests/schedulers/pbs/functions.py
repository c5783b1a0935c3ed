"""Functions that tests submit: jobs import them from here."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from submitit.helpers import Checkpointable, DelayedSubmission


def add(a: int, b: int) -> int:
    sys.stdout.write(f"adding {a} {b}\n")
    return a + b


def fail() -> None:
    raise ZeroDivisionError("on purpose")


def die() -> None:
    os.kill(os.getpid(), 9)


def environment() -> dict[str, str]:
    return dict(os.environ)


class Counting(Checkpointable):
    """Runs longer than its walltime, and comes to its end in the third run."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, diary: str) -> int:
        self.runs += 1
        with Path(diary).open("a") as file:
            file.write(f"run {self.runs} as {os.environ['PBS_JOBID']}\n")
        if self.runs < 3:
            time.sleep(60)
        return self.runs

    def checkpoint(self, diary: str) -> DelayedSubmission:
        return DelayedSubmission(self, diary)


class Endless(Counting):
    def __call__(self, diary: str) -> int:  # noqa: ARG002
        time.sleep(60)
        return 0
