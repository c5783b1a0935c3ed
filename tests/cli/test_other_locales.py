"""Python told to take names of files for ASCII or Latin-1, and a home whose name is in UTF-8."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hpcml
from tests.cli.command_line import Hpcml, program, said_in_one_line

MAIN = 'if __name__ == "__main__":'


@pytest.fixture(params=["C", "de_DE.ISO-8859-1"])
def elsewhere(request: pytest.FixtureRequest, hpcml: Hpcml, tmp_path: Path) -> Hpcml:
    """A user whose locale is not in UTF-8, and whose home is."""
    home, name = str(hpcml.home.parent / "é"), str(request.param)
    language, _, charset = name.partition(".")
    if charset:
        made = [shutil.which("localedef") or "localedef", "-f", charset, "-i", language, str(tmp_path / name)]
        if not shutil.which("localedef") or subprocess.run(made, capture_output=True, check=False).returncode > 1:
            pytest.skip("localedef (libc-bin) and /usr/share/i18n (locales) make a locale in Latin-1")
    locale = {"PYTHONUTF8": "0", "LC_ALL": name, "LOCPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    return replace(hpcml, environ={**hpcml.environ, "HPCML_HOME": home, **locale})


def test_a_run_under_a_home_whose_name_the_locale_has_no_word_for_is_run_and_shown(elsewhere: Hpcml) -> None:
    mode = program("import sys; print('mode', sys.flags.utf8_mode, sys.getfilesystemencoding())")
    ran = elsewhere("run", mode)

    assert ran.returncode == 0, ran.stderr
    (record,) = elsewhere.runs()
    assert (record["state"], record["path"].startswith(elsewhere.environ["HPCML_HOME"])) == ("COMPLETED", True)
    for words in (["show", "@1"], ["sync", "--check"], ["show", "--files"], ["sync"]):
        done = elsewhere(*words)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    encoding = {"C": "ascii"}.get(elsewhere.environ["LC_ALL"], "iso8859-1")
    assert f"mode 0 {encoding}" in elsewhere("logs", "@1").stdout  # the program is started as ever


def test_a_home_whose_name_is_no_utf8_is_refused(hpcml: Hpcml) -> None:
    done = hpcml("runs", HPCML_HOME="/scratch/\udcff")

    assert done.returncode == 2
    assert said_in_one_line(done).startswith("hpcml: HPCML_HOME=/scratch/\\udcff is not in UTF-8, and runs in it")


def test_a_program_in_a_folder_whose_name_is_no_utf8_runs(hpcml: Hpcml, tmp_path: Path) -> None:
    project = tmp_path / "\udcff"
    project.mkdir()
    (project / "train.py").write_text("print('there')")

    ran = replace(hpcml, cwd=project)("run", "--", "python", "train.py")

    assert ran.returncode == 0, ran.stderr
    assert hpcml("logs", "@1").stdout == "there\n"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("hpcml.schedulers.requeue", ["local", "é/run.json"]),
        ("hpcml.schedulers.time_limit", ["é"]),
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
    assert without == {"__main__.py", "agent/processes.py"}
