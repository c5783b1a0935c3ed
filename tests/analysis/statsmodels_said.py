"""What statsmodels answers to the questions of these tests: its import takes longer than all of them together.

The answers lie in `statsmodels_said.json`. The full suite asks statsmodels again, compares, and keeps what is new.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.effort import is_full, keep

_SAID = Path(__file__).with_name("statsmodels_said.json")


def said(question: str, ask: Callable[[], list[float]]) -> list[float]:
    """Return the answer to *question*, which *ask* gets from statsmodels."""
    known: dict[str, list[float]] = json.loads(_SAID.read_text(encoding="utf-8"))
    if question in known and not is_full():
        return known[question]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        answer = [float(value) for value in ask()]
    if question in known:
        assert answer == pytest.approx(known[question]), question
    else:
        keep(_SAID, question, answer)
    return answer
