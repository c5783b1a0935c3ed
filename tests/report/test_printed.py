from __future__ import annotations

import itertools
import re
import tracemalloc
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.report.printed import printable

SAFE = re.compile(r"(\x1b\[[0-9;:]{0,64}m|[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f])*")
# pieces of which sequences are made, and what a terminal never saw before
MARKS = ["\x1b", "[", "]", "0;", "31", "m", "?", " ", "\\", "\x07", "\x9b", "\x9c", "\x9d", "P", "_", "k", "\n", "\r"]
WORDS = st.lists(st.sampled_from([*(mark.encode() for mark in MARKS), b"\x9b", b"\x90", b"\xc2", b"\xe2\x80", b"\xae",
                                  b"a", "é".encode(), "\u202e".encode(), b"\xff"]), max_size=40)  # fmt: skip


def shown(*pieces: bytes) -> str:
    return b"".join(printable(pieces)).decode()


@pytest.mark.parametrize(
    ("printed", "left"),
    [
        (b"\x1b[1;31mred\x1b[0m \x1b[38;5;208morange\x1b[m \x1b[38:2::1:2:3mtrue\x1b[0m\n", None),
        ("Größe 模型 \t 👩‍🔬 €\n".encode(), None),  # a joiner inside of the emoji
        (b"  0%|   |\r 50%|#  |\r100%|###|\n", None),
        (b"a\x1b]0;title\x07b\x1b]2;title\x1b\\c\x1bktitle\x1b\\d", "abcd"),
        (b"\x1b]8;;http://evil\x1b\\words\x1b]8;;\x1b\\", "words"),
        (b"\x1b]52;c;b3duZWQ=\x07x", "x"),
        (b'a\x1bP$q"p\x1b\\b\x1b_Gi=1;AAAA\x1b\\c\x1b^secret\x1b\\d\x1bXstart\x1b\\e', "abcde"),
        (b"a\x1b[2Jb\x1b[1;1Hc\x1b[3Ad\x1b[Ke\x1b[?25lf\x1b[?1049hg\x1b[>4;1mh\x1b[6ni\x1b[ qj", "abcdefghij"),
        (b"a\x1bcb\x1b7c\x1b8d\x1b(0e\x1b#8f\x1b=g\x1bNh", "abcdefgh"),
        ("a\x9b2Jb\x9d0;title\x9cc\x90q\x9cd\x85e\x84f".encode(), "abcdef"),
        (b"a\x9b2Jb\x9b31mc\x9b0md\x9d0;title\x07e\x8d", "ab\x1b[31mc\x1b[0mde"),
        (b"rm -rf /\b\b\b\b\b\b\b\bls     \x7f\x00\x0e\x0f\x0b\x0c\a", "rm -rf /ls     "),
        ("nedloh \u202eholden\u202c \u2066x\u2069 \u200e\ufeff\u2028".encode(), "nedloh holden x "),
        (b"open \x1b]0;never closed\nis the next line\n", "open \nis the next line\n"),
        (b"caf\xe9 \xff\xfe\n", "caf� ��\n"),
        (b"\x1b[31mleft on\n", "\x1b[31mleft on\n\x1b[0m"),
        (b"x\x1b[", "x"),
        (b"x\x1b", "x"),
        (b"x\x1b]0;", "x"),
        (b"x\xe2\x82", "x�"),
        (b"\xe2\x80\x07\xae", "��"),  # parts that would make a bidi override, once what stands between is gone
        (b"\x1b\x1b[0m[2J", "\x1b[0m[2J"),
        (b"\x1b[" + b"1;" * 500 + b"1mx", "x"),
    ],
)
def test_colours_stay_and_whatever_else_a_terminal_obeys_is_left_out(printed: bytes, left: str | None) -> None:
    assert shown(printed) == (printed.decode() if left is None else left)


@given(WORDS, st.data())
def test_nothing_is_obeyed_and_it_is_the_same_however_it_is_cut(words: list[bytes], data: st.DataObject) -> None:
    printed = b"".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(printed)), max_size=6)))
    pieces = [printed[start:end] for start, end in zip([0, *cuts], [*cuts, len(printed)], strict=True)]

    whole = shown(printed)

    assert SAFE.fullmatch(whole), repr(whole)
    assert not {each for each in whole if unicodedata.bidirectional(each) in ("RLO", "LRO", "RLE", "LRE", "RLI")}
    assert shown(*pieces) == whole
    assert shown(whole.encode()) == whole


def test_a_string_without_end_takes_no_memory() -> None:
    tracemalloc.start()
    pieces = itertools.chain([b"\x1b]0;"], (b"x" * 1_000_000 for _ in range(30)))

    assert sum(len(piece) for piece in printable(pieces)) == 0
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert shown(b"\x1b]0;", b"x", b"\nlast") == "\nlast"
