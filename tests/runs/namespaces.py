"""Another PID namespace on this machine, as a container with the host's name has it."""

from __future__ import annotations

import functools
import subprocess

import pytest

_INSIDE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


@functools.cache
def _works() -> bool:
    try:
        return subprocess.run([*_INSIDE, "true"], capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        return False


def inside() -> list[str]:
    """Return the words before a command that run it in a PID namespace of its own, in which it sees no other."""
    if not _works():
        pytest.skip("no new PID namespace can be made here")
    return list(_INSIDE)
