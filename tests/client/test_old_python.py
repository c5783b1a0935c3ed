from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcml_client
from hpcml.runs.journal import Event, Metrics, read_journal

_PACKAGE = Path(hpcml_client.__file__).parent
_SCRIPT = """
import sys
import hpcml_client
assert sys.version_info[:2] == (3, 10), sys.version
with hpcml_client.connect() as run:
    run.metrics({"loss": 0.5, "bad": float("nan")}, step=1)
    run.note("old")
    import pathlib
    checkpoints = run.checkpoints(every_steps=2)
    assert checkpoints.due(2) and checkpoints.save(2, lambda path: pathlib.Path(path).write_text("state"))
    assert checkpoints.latest().step == 2 and pathlib.Path(checkpoints.latest()).read_text() == "state"
foreign = {name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "hpcml", "hpcml_train", "sklearn"}
assert not foreign, foreign
"""


def find_python(version: str) -> str | None:
    # pyenv's versions first: its python3.10 on PATH is a shim that may lead nowhere
    here = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    return next((path for path in (*map(str, here), shutil.which(f"python{version}")) if path), None)


def find_python310() -> str | None:
    return find_python("3.10")


def test_the_writer_of_journals_is_still_read_by_python_3_8(tmp_path: Path) -> None:
    python = find_python("3.8")  # of old images on dgx2 and bridges, which report by this file alone
    if python is None:
        pytest.skip("no python3.8 on this machine")
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from journal import JournalWriter
with JournalWriter.open(sys.argv[2], run="r", writer="rank0") as journal:
    journal.metrics(1, {"loss": 0.5})
"""

    subprocess.run([python, "-W", "error", "-c", script, _PACKAGE, tmp_path], check=True)

    (path,) = tmp_path.iterdir()
    assert [type(record) for record in read_journal(path).records] == [Metrics]


def test_the_client_runs_on_python_3_10_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    python = find_python310()
    if python is None:
        pytest.skip("no python3.10 on this machine")
    env = {"PYTHONPATH": str(_PACKAGE.parent), "HPCML_RUN_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    subprocess.run([python, "-W", "error", "-c", _SCRIPT], env=env, check=True)

    (path,) = (tmp_path / "journal").iterdir()
    chunk = read_journal(path)
    assert chunk.header is not None
    assert [type(record) for record in chunk.records] == [Metrics, Event, Event, Event]


def test_every_module_compiles_on_python_3_10() -> None:
    python = find_python310()
    if python is None:
        pytest.skip("no python3.10 on this machine")
    script = "import ast, sys; [ast.parse(open(name, encoding='utf-8').read(), name) for name in sys.argv[1:]]"

    subprocess.run([python, "-c", script, *map(str, _PACKAGE.glob("*.py"))], check=True)


def test_importing_the_client_imports_no_framework_and_no_hpcml() -> None:
    script = "import hpcml_client, sys; print(*sorted({n.partition('.')[0] for n in sys.modules}))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert not {"torch", "numpy", "hpcml", "hpcml_train", "sklearn", "tensorflow"} & set(done.stdout.split())
