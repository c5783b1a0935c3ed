"""What programs printed, for a terminal: colours stay, and everything else that a terminal would obey is left out.

A program's output may set the title of the window, write to the clipboard, move the cursor over what was printed before
or hide what follows (ECMA-48; xterm's ctlseqs). Kept are text, line feeds, tabs, carriage returns, by which progress
bars draw over themselves, and colours and styles (SGR).
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator

from hpcml.report.text import UNSAFE_CATEGORIES

_KEPT = frozenset("\n\t\r\u200c\u200d")  # the last two join letters of Persian and parts of an emoji
_RESET = "\x1b[0m"
# Control sequences of 7 bits (ESC and a letter) or 8 (C1). A string (OSC, DCS, APC, PM, SOS, a title of screen) ends
# where a terminal ends it, and at the end of the line at the latest: an open one may not hide the rest of a log.
_SEQUENCE = re.compile(
    r"(?P<string>(?:\x1b[\]P_^Xk]|[\x90\x98\x9d-\x9f])[^\x07\x18\x1a\x1b\n\x9c]*+)"
    r"(?:\x07|\x18|\x1a|\x9c|\x1b\\|(?=\x1b[^\\])|(?=\n)|(?P<open_string>\x1b?)\Z)"
    r"|(?:\x1b\[|\x9b)(?P<numbers>[0-?]*+)(?P<between>[ -/]*+)(?:(?P<final>[@-~])|(?P<open>\Z)|)"
    r"|\x1b(?P<other>[ -/]*+)(?:[0-~]|(?P<open_other>\Z)|)"
)
_COLOURS = re.compile(r"[0-9;:]{0,64}")
_DOUBTFUL = re.compile(rb"[^\t\n\r -~]")
_UNDECODED = re.compile("[\udc80-\udcff]")


def printable(pieces: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield *pieces* without what a terminal would obey but colours, as UTF-8.

    Sequences and characters may be torn between two pieces: the beginning waits for its end. Bytes that are no UTF-8
    become ``�``. Colours that are left on are switched off at the end. A caller who wants bytes as they are does
    without this.

    >>> b"".join(printable([b"\x1b[32mgreen\x1b]0;ti", b"tle\x07\x1b[0m \x1b[2Jstays"]))
    b'\x1b[32mgreen\x1b[0m stays'
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    rest, last_colour = "", _RESET
    for piece in pieces:
        if not rest and not decoder.getstate()[0] and not _DOUBTFUL.search(piece):
            yield piece
            continue
        text = rest + _UNDECODED.sub(_as_character, decoder.decode(piece))
        text, rest = _without_sequences(text)
        if text:
            last_colour = next(iter(re.findall(r"\x1b\[[^m]*m", text)[-1:]), last_colour)
            yield _without_controls(text).encode()
    if text := _without_controls(_UNDECODED.sub(_as_character, decoder.decode(b"", final=True))):
        yield text.encode()
    if last_colour not in (_RESET, "\x1b[m"):
        yield _RESET.encode()


def _as_character(undecoded: re.Match[str]) -> str:
    """Return what a byte that is no UTF-8 may be to a terminal: a control character of 8 bits (C1), or nothing."""
    byte = ord(undecoded[0]) - 0xDC00
    return chr(byte) if byte < 0xA0 else "\N{REPLACEMENT CHARACTER}"


def _without_sequences(text: str) -> tuple[str, str]:
    """Return *text* with colours alone, and the beginning of a sequence that has not ended, as short as it can be."""
    rest = ""

    def decide(found: re.Match[str]) -> str:
        nonlocal rest
        if found["open_string"] is not None:
            rest = f"\x1b]{found['open_string']}"
        elif found["open"] is not None:
            is_colour = not found["between"] and _COLOURS.fullmatch(found["numbers"])
            rest = f"\x1b[{found['numbers'] if is_colour else '?'}{' ' if found['between'] else ''}"
        elif found["open_other"] is not None:
            rest = f"\x1b{' ' if found['other'] else ''}"
        elif found["final"] == "m" and not found["between"] and _COLOURS.fullmatch(found["numbers"]):
            return f"\x1b[{found['numbers']}m"
        return ""

    return _SEQUENCE.sub(decide, text), rest


def _without_controls(text: str) -> str:
    """Return *text* without control and invisible characters, once all its ESC belong to colours."""
    unsafe = {ord(each) for each in set(text) if unicodedata.category(each) in UNSAFE_CATEGORIES} - {
        ord(each) for each in (*_KEPT, "\x1b")
    }
    return text.translate(dict.fromkeys(unsafe)) if unsafe else text
