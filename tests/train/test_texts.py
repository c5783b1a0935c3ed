from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml_train.data.texts import read_text, split_spans, spread
from hpcml_train.errors import DatasetError, RecipeError


@settings(deadline=None)
@given(st.integers(0, 300), st.floats(0.01, 0.99))
def test_what_is_held_out_is_the_share_and_nothing_is_lost(count: int, holdout: float) -> None:
    kept, held_out = spread(count, holdout)

    assert sorted(kept + held_out) == list(range(count))
    assert abs(len(held_out) - count * holdout) < 1


def test_what_is_held_out_is_spread_evenly() -> None:
    assert spread(10, 0.2)[1] == [4, 9]


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 60), st.floats(0.01, 0.99))
def test_spans_cover_a_text_once(size: int, piece: int, holdout: float) -> None:
    kept, held_out = split_spans(size, piece, holdout)

    assert sorted(place for begin, end in kept + held_out for place in range(begin, end)) == list(range(size))
    assert all(first[1] < second[0] for first, second in pairwise(kept))


def test_the_help_of_python_is_a_text() -> None:
    text = read_text("pydoc", None)

    assert len(text) > 100_000
    assert text.sha256 == hashlib.sha256(text.content).hexdigest()
    assert "conditional execution" in text.content.decode()


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("größer\r\n".encode())

    assert read_text("text", str(path)).content == "größer\r\n".encode()


def test_what_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("größer".encode("latin-1"))

    for path, says in {
        tmp_path: "is a folder: name one file in UTF-8",
        tmp_path / "nowhere": "cannot be read: No such file or directory",
        tmp_path / "latin.txt": "is no UTF-8: byte 2 is 0xf6",
    }.items():
        with pytest.raises(DatasetError) as refused:
            read_text("text", str(path))
        assert str(refused.value) == f"data.path={path} {says}"
    with pytest.raises(RecipeError, match=r"data=text needs data\.path: a file in UTF-8"):
        read_text("text", None)
