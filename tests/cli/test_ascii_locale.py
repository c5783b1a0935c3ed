"""Python told to take names of files for ASCII, and a home whose name is not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hpcml
from tests.cli.command_line import Hpcml, program

MAIN = 'if __name__ == "__main__":'


@pytest.fixture
def hpcml_in_ascii(hpcml: Hpcml) -> Hpcml:
    home = str(hpcml.home.parent / "é")
    return replace(hpcml, environ={**hpcml.environ, "HPCML_HOME": home, "PYTHONUTF8": "0", "LC_ALL": "C"})


def test_a_run_under_a_home_that_is_not_ascii_is_run_and_shown(hpcml_in_ascii: Hpcml) -> None:
    mode = program("import sys; print('mode', sys.flags.utf8_mode)")
    ran = hpcml_in_ascii("run", mode)

    assert ran.returncode == 0, ran.stderr
    (record,) = hpcml_in_ascii.runs()
    assert record["state"] == "COMPLETED"
    for words in (["show", "@1"], ["store", "check"], ["files", "@1"], ["sync"]):
        done = hpcml_in_ascii(*words)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "mode 0" in hpcml_in_ascii("logs", "@1").stdout  # the program is started as ever


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("hpcml.schedulers.requeue", ["local", "é/run.json"]),
        ("hpcml.schedulers.time_limit", ["é"]),
        ("hpcml.images.job", ["é/order.json"]),
        ("hpcml.agent.mpi.reach", ["é", "true"]),
    ],
)
def test_what_jobs_start_by_itself_says_names_as_they_are(module: str, words: list[str], tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "HPCML_MPI_REACH": "nothing-of-that-name"}

    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=tmp_path, env=environ, capture_output=True, timeout=60, check=False
    )

    assert "é" in done.stderr.decode(), done.stderr


def test_everything_that_is_started_by_itself_begins_in_utf8() -> None:
    package = Path(hpcml.__file__).parent
    starts = {
        path.relative_to(package).as_posix(): path.read_text().partition(MAIN)[2]
        for path in package.rglob("*.py")
        if MAIN in path.read_text()
    }

    whole = {name: (package / name).read_text() for name, body in starts.items() if body.strip() == "begin()"}
    without = {name for name, body in {**starts, **whole}.items() if "begin_in_utf8()" not in body}

    assert len(starts) > len(without)
    # They write no name of a file down; cli/main.py begins in it itself.
    assert without == {"schedulers/guard.py", "agent/bundle.py", "__main__.py"}
