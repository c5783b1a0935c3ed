"""Walltimes, intervals, memory sizes and shares as people write them, converted to one unit and back.

Each parser takes the name of the setting for its message, and raises `ConfigError` where it cannot read the text.
"""

from __future__ import annotations

import functools
import math
import re

from hpcml.errors import ConfigError

_DAYS_FORM = re.compile(r"(?P<days>\d{1,9})-(?P<hours>\d{1,2})(:(?P<minutes>\d{2}))?(:(?P<seconds>\d{2}))?")
_CLOCK_FORM = re.compile(r"(?P<hours>\d{1,9}):(?P<minutes>\d{2}):(?P<seconds>\d{2})")
_UNIT_FORM = re.compile(
    r"(?:(?P<days>\d{1,9})d)?(?:(?P<hours>\d{1,9})h)?(?:(?P<minutes>\d{1,9})m(?:in)?)?(?:(?P<seconds>\d{1,9})s)?"
)
_INTERVAL_FORM = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(?P<unit>ms|s|m|min|)")
_MEMORY_FORM = re.compile(r"(?P<number>\d{1,9})\s*(?P<unit>[KMGT])(?:i?B)?", re.IGNORECASE)
_INTERVALS_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0}
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


@functools.lru_cache(maxsize=1000)  # of a sweep's runs they are the same
def parse_walltime_s(text: str, *, field: str = "resources.walltime") -> int:
    """Return the seconds of ``HH:MM:SS``, ``D-HH[:MM[:SS]]`` or ``2h30m``.

    ``24:00`` is refused: PBS reads hours and minutes, Slurm minutes and seconds (man sbatch, --time).

        >>> parse_walltime_s("2h30m"), parse_walltime_s("1-12")
        (9000, 129600)
    """
    given = text.strip()
    for form in (_DAYS_FORM, _CLOCK_FORM, _UNIT_FORM):
        match = form.fullmatch(given)
        if given and match:
            parts = {name: int(value) for name, value in match.groupdict().items() if value}
            if form is not _UNIT_FORM and (parts.get("minutes", 0) > 59 or parts.get("seconds", 0) > 59):
                break
            total_s = sum(_SECONDS[name] * value for name, value in parts.items())
            if total_s:
                return total_s
    if re.fullmatch(r"\d+:\d{2}", given):
        raise ConfigError(f"{field}={given} is ambiguous (24:00 is 24 minutes to Slurm): write HH:MM:SS or 2h30m")
    # YAML 1.1 reads 24:00:00 as the number 86400, in base 60, but not 01:00:00
    hint = " (in a YAML file in quotes: 24:00:00 without is a number)" if given.isdigit() else ""
    raise ConfigError(f"{field}={given!r} is no walltime: write HH:MM:SS, D-HH:MM:SS or 2h30m{hint}")


def parse_wait_s(text: str, *, field: str) -> int:
    """Return the seconds of ``200``, or of any form of a walltime; for times that no scheduler reads.

    A walltime is never a bare number: Slurm would read minutes and PBS seconds.

    >>> parse_wait_s("200", field="--timeout"), parse_wait_s("5m", field="--timeout")
    (200, 300)
    """
    given = text.strip()
    if re.fullmatch(r"[0-9]{1,9}", given) and int(given):
        return int(given)
    try:
        return parse_walltime_s(given, field=field)
    except ConfigError:
        raise ConfigError(f"{field}={given!r} is no time: write 200 (seconds), 200s, 5m, 2h30m or HH:MM:SS") from None


def format_walltime(seconds: int) -> str:
    """Return *seconds* as ``HH:MM:SS``, the one form that Slurm and PBS read alike: PBS refuses days in any form.

    >>> format_walltime(9000), format_walltime(90061)
    ('02:30:00', '25:01:01')
    """
    minutes, rest_s = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest_s:02d}"


def spell_walltime(seconds: float) -> str:
    """Return *seconds* as a person writes a walltime, rounded up to the minute; `parse_walltime_s` reads it.

    >>> spell_walltime(7741), spell_walltime(2700)
    ('2h10m', '45m')
    """
    whole = math.ceil(seconds)
    if whole < _SECONDS["minutes"]:
        return f"{max(whole, 1)}s"
    hours, minutes = divmod(math.ceil(whole / _SECONDS["minutes"]), 60)
    return f"{hours}h{minutes:02d}m" if hours and minutes else f"{hours}h" if hours else f"{minutes}m"


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
