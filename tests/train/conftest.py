from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def torch_as_found() -> Iterator[None]:
    """Put torch's global switches back after a test that sets them, since torch keeps them for the process."""
    pytest.importorskip("torch")
    from hpcml_train.torch import switches  # noqa: PLC0415 - needs torch

    with switches.ieee():
        yield
