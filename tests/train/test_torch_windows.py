from __future__ import annotations

import hashlib

import pytest

pytest.importorskip("torch")

import torch

from hpcml_train.data.texts import Text
from hpcml_train.data.windows import Windows
from hpcml_train.errors import RecipeError

pytestmark = pytest.mark.torch


def text_of(size: int) -> Text:
    content = bytes(place % 256 for place in range(size))
    return Text(content=content, sha256=hashlib.sha256(content).hexdigest(), where="data.path=here")


def windows_of(size: int, *, most: int = 1000, most_samples: int = 10_000) -> Windows:
    text = text_of(size)
    return Windows(text, length=10, holdout=0.2, validation_windows=most, place=torch.tensor, most_samples=most_samples)


def places(starts: torch.Tensor, length: int) -> set[int]:
    return {int(start) + offset for start in starts for offset in range(length)}


def test_no_byte_is_both_trained_on_and_validated_on() -> None:
    windows = windows_of(2000)

    trained, held_out = places(windows.starts, 10), places(windows.validation_starts, 10)
    assert not trained & held_out
    assert len(trained) == 1600
    assert len(held_out) == 400


def test_windows_to_train_on_begin_everywhere_and_those_to_validate_on_lie_side_by_side() -> None:
    windows = windows_of(2000)  # pieces of 100, the fifth of each five held out

    assert windows.starts.tolist()[:392] == [*range(391), 500]
    assert windows.validation_starts.tolist()[:11] == [*range(400, 500, 10), 900]
    assert windows.at(torch.tensor([250])).tolist() == [[250, 251, 252, 253, 254, 255, 0, 1, 2, 3]]


def test_a_validation_looks_at_no_more_than_it_was_told_evenly_spread() -> None:
    windows = windows_of(2000, most=4)

    assert windows.validation_starts.tolist() == [400, 900, 1400, 1900]


def test_in_a_long_text_windows_begin_at_every_nth_byte() -> None:
    windows = windows_of(2000, most_samples=500)

    assert 350 < len(windows) <= 500
    assert windows.starts.tolist()[:3] == [0, 4, 8]


@pytest.mark.parametrize("size", [0, 9, 40])
def test_a_text_too_short_is_refused_in_one_line(size: int) -> None:
    with pytest.raises(RecipeError, match=rf"data.path=here has {size} bytes: too few to hold out windows of 10 with"):
        windows_of(size)
