"""What a walltime means, such as ``1-02:00:00`` or ``2h30m``, and how one is written."""

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
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


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
