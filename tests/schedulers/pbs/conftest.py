"""A PBS for tests: the double's programs on PATH, and submitit told of hpcml's plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.schedulers.driver import Driver
from hpcml.schedulers.pbs.scheduler import PBS
from hpcml.schedulers.pbs.submitit_executor import PbsInfoWatcher, PbsJob
from tests.cluster.pbs.double import PbsDouble


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsDouble]:
    """A running server; the user's home is empty."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    double = PbsDouble(tmp_path / "pbs")
    double.start()
    monkeypatch.setenv("PATH", f"{double.bin}:/usr/local/bin:/usr/bin:/bin")
    yield double
    double.stop()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Entry points in the jobs' search path: the metadata of an editable install may be older than the checkout."""
    folder = tmp_path / "plugin"
    info = folder / "hpcml_plugin-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hpcml-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[submitit]\n"
        "executor = hpcml.schedulers.pbs.submitit_executor:PbsExecutor\n"
        "job_environment = hpcml.schedulers.pbs.submitit_environment:PbsJobEnvironment\n"
    )
    root = Path(__file__).resolve().parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{root}")
    return folder


@pytest.fixture(autouse=True)
def fresh_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit keeps one watcher for all jobs of a process; without this, tests would see each other's jobs."""
    monkeypatch.setattr(PbsJob, "watcher", PbsInfoWatcher(delay_s=1))


@pytest.fixture
def submitter(tmp_path: Path, pbs: PbsDouble) -> Driver:  # noqa: ARG001 - it must run
    return Driver(scheduler=PBS, submissions=tmp_path / "sub missions")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "a user's folder"
    made.mkdir()
    return made
