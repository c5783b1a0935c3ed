from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml
from tests.interop.exchanging import make_runs


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with the three runs of `make_runs`."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    environ = {**hpcml_environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    environ.pop("MLFLOW_TRACKING_URI", None)
    make_runs(Path(environ["HPCML_HOME"]))
    return Hpcml(environ=environ, cwd=cwd)
