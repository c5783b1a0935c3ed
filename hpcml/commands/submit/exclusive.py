"""One process at a time decides what is not under way and submits it, for ``hpcml run --missing`` and retries.

Two that looked at the same moment would both see nothing, and both submit everything. The lock is held until what was
submitted is in the journals, so that the next one to look sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpcml.errors import ConfigError, why_not
from hpcml.paths import Places
from hpcml.runs.lock import Lock, Patience, kept_alive, wait_for
from hpcml.runs.private import make_folder

_LOCK = "deciding"
_PATIENCE = Patience(poll_s=0.3)


@contextmanager
def deciding_alone(places: Places, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of this home within the block; *tell* gets a line where another process has to be waited for.

    A process that died with the lock is not waited for. Raises `ConfigError` where the home cannot be written.
    """
    with kept_alive(_lock(places, tell)):
        yield


def _lock(places: Places, tell: Callable[[str], None]) -> Lock:
    is_told = False
    try:
        make_folder(places.submission_locks, parents=True)
        for found in wait_for(places.submission_locks, _LOCK, patience=_PATIENCE):
            if isinstance(found, Lock):
                return found
            if not is_told:
                tell(f"waiting for {found}, which is submitting runs of this home")
                is_told = True
    except OSError as error:
        raise ConfigError(
            f"{why_not(error, places.submission_locks)}: nothing can be submitted (set HPCML_HOME to another place)"
        ) from error
    raise AssertionError("the lock is waited for until it is there")
