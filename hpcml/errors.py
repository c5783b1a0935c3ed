"""Everything that can go wrong through a user, a site or a file, and the exit code it ends with.

HpcmlError                 1  something hpcml was asked to do did not happen
├── ConfigError            2  the words given cannot be a run; nothing was submitted, written or lost
│   └── NotPrivateError    2  what would be executed or believed could be another user's; nothing was done with it
├── StoreError             2  the experiment store cannot be used as it is
│   └── NoSuchRunError     2  no run is called so
├── ComparisonError        2  these runs cannot be compared honestly
├── ImageError             4  an image was not built, found or moved
├── SubmissionError        3  the scheduler, or this machine in its place, refused the job
└── NoAnswerError          3  a scheduler's program gave no answer in time (schedulers/commands.py)
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

TAKES_NOTHING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})  # a file system that can be read all the same
# What a disk, a network file system or a system without room answers: no defect of ours, wherever it is met
OF_THE_DISK = frozenset(
    {
        *TAKES_NOTHING,
        *(errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        *(errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)


class HpcmlError(Exception):
    """The base: the message is one line that names the field, the value and what to do."""

    exit_code = 1

    @property
    def lines(self) -> tuple[str, ...]:
        """The message, as the lines that it is shown in."""
        return (str(self),)


class ConfigError(HpcmlError):
    """The configuration is misspelt, incomplete, contradictory or impossible on the chosen cluster."""

    exit_code = 2


class NotPrivateError(ConfigError):
    """What would be executed or believed could be another user's; nothing was done with it."""


class StoreError(HpcmlError):
    """The store is missing, is no database, or belongs to another version of hpcml."""

    exit_code = 2


class NoSuchRunError(StoreError):
    """The store has no run that `reference` means."""

    def __init__(self, message: str, reference: str) -> None:
        super().__init__(message)
        self.reference = reference


class ComparisonError(HpcmlError):
    """The selected runs differ in more than the named factor, or there is nothing to compare.

    *below* are lines that list what differs.
    """

    exit_code = 2

    def __init__(self, message: str, *below: str) -> None:
        super().__init__("\n".join((message, *below)))
        self._lines = (message, *below)

    @property
    def lines(self) -> tuple[str, ...]:
        """The message, and below it what differs."""
        return self._lines


class ImageError(HpcmlError):
    """An image cannot be built, found, read or moved; no other image has changed."""

    exit_code = 4


class SubmissionError(HpcmlError):
    """The scheduler refused the job; the message holds its own words."""

    exit_code = 3


def why_not(error: OSError, place: object) -> str:
    """Return where and why *error* came: ``FILE: No space left on device``; of *place* where it names no file.

    The system names the file that could not be opened, renamed or made, but not the one that was being written.
    """
    where = error.filename2 or error.filename or place  # the second is what was to be replaced
    return f"{where}: {error.strerror or error}"


# What a machine, or the limits of a session there, has no more of: neither a mistake nor a defect, and it may pass.
USED_UP: Mapping[int, str] = {
    errno.EAGAIN: "no more processes or threads can be started here (ulimit -u, or the limit of a session)",
    errno.EMFILE: "no more files can be opened here (ulimit -n)",
    errno.ENFILE: "no more files can be opened on this machine",
    errno.ENOMEM: "no more memory is to be had here",
}


def require(holds: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise `ConfigError` with *message* unless *holds*.

    require(steps >= 1, f"training.steps={steps} must be at least 1")
    """
    if not holds:
        raise ConfigError(message)
