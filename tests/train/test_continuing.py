"""Text that goes on byte by byte: from prompts of any length, and from networks whose answers are no numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hpcml_train.continuing import continue_text

Array = np.ndarray[Any, np.dtype[Any]]


def after(last: Array) -> Array:
    """Say that the byte behind *last* is the next one of the alphabet."""
    likely = np.full(257, -50.0)
    likely[(int(last[0, -1]) + 1) % 256] = 0.0
    return likely


@dataclass(frozen=True)
class Wish:
    prompt: str
    generate: int
    temperature: float = 0.0
    context: int = 4


def said(prompt: str, count: int, temperature: float = 0.0) -> dict[str, object]:
    return continue_text(after, Wish(prompt, count, temperature), seed=0)["generated"]


@pytest.mark.parametrize("temperature", [0.0, 1e-310, 1.0])
def test_text_goes_on_from_the_last_bytes_of_the_prompt(temperature: float) -> None:
    assert said("longer than the context, a", 3, temperature)["text"] == "bcd"


def test_what_is_no_utf8_is_shown_as_such() -> None:
    assert said("\u00ff", 2) == {"prompt": "\u00ff", "text": "\ufffd\ufffd", "temperature": 0.0}


@pytest.mark.parametrize("answer", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_network_that_says_no_numbers_ends_the_text_and_not_the_run(answer: float, temperature: float) -> None:
    def breaks(last: Array) -> Array:
        return np.full(256, answer) if int(last[0, -1]) == ord("c") else after(last)

    found = continue_text(breaks, Wish("a", 9, temperature), seed=0)["generated"]

    assert found["text"] == "bc"
    assert found["reason"] == "the network's answer was nan or infinite after 2 of 9 bytes"
