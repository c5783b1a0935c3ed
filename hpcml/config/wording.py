"""What Hydra and OmegaConf say over several lines, said in one."""

from __future__ import annotations

import difflib
import re
from dataclasses import fields, is_dataclass
from typing import get_type_hints

_NOISE = re.compile(
    r"^(object_type=|reference_type=|Set the environment variable HYDRA_FULL_ERROR|Config search path:|provider=)"
)
_UNKNOWN_KEY = re.compile(r"Could not override '(?P<key>[^']+)'")


def in_one_line(message: str, cause: str = "", *, schema: type | None = None) -> str:
    """Join the informative lines of *message* and its *cause*; a misspelt key gets its nearest neighbours.

    *schema* is the dataclass that knows the right keys.
    """
    unknown = _UNKNOWN_KEY.search(message)
    if unknown and schema is not None and (key := unknown["key"]) not in (known := _known_keys(schema)):
        near = difflib.get_close_matches(key, known, n=2, cutoff=0.6)
        return f"unknown key {key}: " + (
            f"did you mean {' or '.join(near)}?" if near else "hpcml run --help lists the keys"
        )
    lines: list[str] = []
    for line in f"{message}\n{cause}".splitlines():
        text = " ".join(line.split())
        if text and not _NOISE.match(text) and text not in lines and not _said(text, lines):
            lines.append(text)
    return " ".join(line if line.endswith((".", "?", ":", ",")) else f"{line};" for line in lines).rstrip("; ")


def _said(text: str, lines: list[str]) -> bool:
    return text.startswith("full_key: ") and any(text.removeprefix("full_key: ") in line for line in lines)


def _known_keys(schema: type, prefix: str = "") -> list[str]:
    hints = get_type_hints(schema)
    keys: list[str] = []
    for field in fields(schema):
        keys.append(f"{prefix}{field.name}")
        if is_dataclass(hints[field.name]):
            keys += _known_keys(hints[field.name], f"{prefix}{field.name}.")
    return keys
