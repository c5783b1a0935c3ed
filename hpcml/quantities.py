"""Walltime, intervals and memory as people write them, turned into one unit."""

from __future__ import annotations

import math
import re

from hpcml.errors import ConfigError

_DAYS_FORM = re.compile(r"(?P<days>\d+)-(?P<hours>\d{1,2})(:(?P<minutes>\d{2}))?(:(?P<seconds>\d{2}))?")
_CLOCK_FORM = re.compile(r"(?P<hours>\d+):(?P<minutes>\d{2}):(?P<seconds>\d{2})")
_UNIT_FORM = re.compile(r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m(?:in)?)?(?:(?P<seconds>\d+)s)?")
_INTERVAL_FORM = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m)")
_MEMORY_FORM = re.compile(r"(?P<number>\d+)\s*(?P<unit>[KMGT])(?:i?B)?", re.IGNORECASE)
_INTERVALS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def parse_walltime_s(text: str, *, field: str = "resources.walltime") -> int:
    """Return seconds from ``HH:MM:SS``, ``D-HH[:MM[:SS]]`` or ``2h30m``.

    ``24:00`` is refused: PBS reads hours and minutes, Slurm minutes and seconds (man sbatch, --time).
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
    raise ConfigError(f"{field}={given!r} is no walltime: write HH:MM:SS, D-HH:MM:SS or 2h30m")


def format_walltime(seconds: int) -> str:
    """Return *seconds* as ``HH:MM:SS``, the one form that Slurm and PBS read alike."""
    minutes, rest_s = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest_s:02d}"


def spell_walltime(seconds: float) -> str:
    """Return *seconds* as a person writes a walltime and `parse_walltime_s` reads it: 45m, 2h10m; to the minute."""
    whole = math.ceil(seconds)
    if whole < _SECONDS["minutes"]:
        return f"{max(whole, 1)}s"
    hours, minutes = divmod(math.ceil(whole / _SECONDS["minutes"]), 60)
    return f"{hours}h{minutes:02d}m" if hours and minutes else f"{hours}h" if hours else f"{minutes}m"


def parse_interval_s(text: str, *, field: str) -> float:
    """Return seconds from ``1s``, ``500ms``, ``0.5s`` or ``2m``."""
    match = _INTERVAL_FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{field}={text!r} is no interval: write 1s, 500ms or 2m")
    return float(match["number"]) * _INTERVALS_S[match["unit"]]


def parse_memory_mb(text: str, *, field: str = "resources.mem") -> int:
    """Return MiB from ``64G``, ``500M`` or ``1T`` (1024-based, as Slurm and PBS count)."""
    match = _MEMORY_FORM.fullmatch(text.strip())
    size_mb = round(int(match["number"]) * _MEGABYTES[match["unit"].upper()]) if match else 0
    if size_mb < 1:
        raise ConfigError(f"{field}={text!r} is no memory size: write 64G, 500M or 1T")
    return size_mb
