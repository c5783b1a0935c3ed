"""Functions that tests submit: jobs import them from here."""

from __future__ import annotations

import os
import sys


def add(a: int, b: int) -> int:
    sys.stdout.write(f"adding {a} {b}\n")
    return a + b


def fail() -> None:
    raise ZeroDivisionError("on purpose")


def die() -> None:
    os.kill(os.getpid(), 9)


def environment() -> dict[str, str]:
    return dict(os.environ)
