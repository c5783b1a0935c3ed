from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ=hpcml_environ, cwd=cwd)
