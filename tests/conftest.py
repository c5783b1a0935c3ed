"""Fixtures that several rooms use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.config.compose import compose_from_cli
from hpcml.manifest import Provenance
from hpcml.spec import Run

ComposeOne = Callable[..., Run]
ORIGIN = Provenance(
    command_line=["hpcml", "run"],
    submitted_at="2026-11-21T08:30:15+00:00",
    submitted_from="login1",
    user="me",
    cwd="/home/me",
    hpcml_version="0.1.0",
    python="3.11.7",
)


@pytest.fixture
def compose_one(tmp_path: Path) -> ComposeOne:
    """Compose one run from overrides, as the command line would."""

    def compose(*overrides: str) -> Run:
        (point,) = compose_from_cli(overrides, project=tmp_path)
        return point.run

    return compose


@pytest.fixture
def hpcml_environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose home is empty and whose cores nobody else claims."""
    home, runtime = tmp_path / "home", tmp_path / "runtime"
    home.mkdir()
    runtime.mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "XDG_", "SUBMITIT_"))}
    return {**kept, "HOME": str(home), "HPCML_HOME": str(home / "hpcml"), "XDG_RUNTIME_DIR": str(runtime)}
