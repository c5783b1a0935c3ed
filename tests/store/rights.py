"""Who a test is: somebody who may do less than root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def somebody_without_rights() -> Iterator[None]:
    """Root may do anything, so become nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
