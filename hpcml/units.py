"""Intervals, memory sizes, shares and plurals as people write them.

Each parser takes the name of the setting for its message, and raises `ConfigError` where it cannot read the text.
"""

from __future__ import annotations

import re

from hpcml.errors import ConfigError

_INTERVAL_FORM = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(?P<unit>ms|s|m|min|)")
_MEMORY_FORM = re.compile(r"(?P<number>\d{1,9})\s*(?P<unit>[KMGT])(?:i?B)?", re.IGNORECASE)
_INTERVALS_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0}
_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def spell_percent(share: float) -> str:
    """Return *share* in percent with two digits, or with all before the point, and never with an exponent above.

    >>> spell_percent(0.0123), spell_percent(1.0), spell_percent(1.234)
    ('1.2 %', '100 %', '123 %')
    """
    percent = share * 100
    return f"{percent:.2g} %" if abs(percent) < 99.5 else f"{percent:.0f} %"  # above, two digits are 1e+02


def parse_interval_s(text: str, *, field: str) -> float:
    """Return the seconds of ``1s``, ``500ms``, ``0.5s`` or ``2m``; a bare number is seconds.

    >>> parse_interval_s("500ms", field="telemetry.interval")
    0.5
    """
    match = _INTERVAL_FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{field}={text!r} is no interval: write 1s, 500ms or 2m")
    return float(match["number"]) * _INTERVALS_S[match["unit"]]


def parse_memory_mb(text: str, *, field: str = "resources.mem") -> int:
    """Return the MiB of ``64G``, ``500M`` or ``1T`` (1024-based, as Slurm and PBS count).

    >>> parse_memory_mb("64G")
    65536
    """
    match = _MEMORY_FORM.fullmatch(text.strip())
    size_mb = round(int(match["number"]) * _MEGABYTES[match["unit"].upper()]) if match else 0
    if size_mb < 1:
        raise ConfigError(f"{field}={text!r} is no memory size: write 64G, 500M or 1T")
    return size_mb


def one_or_many(number: int, words: str) -> str:
    """Return the plural *words* in the form that follows *number*.

    >>> one_or_many(1, "processes"), one_or_many(2, "GPUs")
    ('process', 'GPUs')
    """
    if number != 1:
        return words
    return words.removesuffix("es") if words.endswith("sses") else words.removesuffix("s")
