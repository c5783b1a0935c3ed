"""A file system that answers with an error where nothing else than an answer is expected."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import HPCML, Hpcml

LOOPS = "Too many levels of symbolic links (hpcml sync finishes what was begun, once that is put right)"
SOURCE = Path(__file__).parents[1] / "cluster" / "disk" / "unlisted.c"


@pytest.mark.parametrize("words", ["status", "wait", "sync", "run --detach -- true"])
def test_what_the_file_system_refuses_is_one_line_with_the_place(hpcml: Hpcml, words: str) -> None:
    queues = hpcml.home / "submissions" / "queues"
    hpcml("runs")
    queues.parent.mkdir(mode=0o700)
    queues.symlink_to("queues")

    done = hpcml(*words.split())

    assert (done.returncode, done.stderr) == (1, f"hpcml: {queues}: {LOOPS}\n")

    queues.unlink()
    assert hpcml("run", "--", "true").returncode == 0


@pytest.fixture(scope="session")
def unlisted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that keeps a folder from being listed."""
    if shutil.which("cc") is None:
        pytest.skip("needs cc")
    library = tmp_path_factory.mktemp("disk") / "unlisted.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


@pytest.mark.parametrize("below", ["", "default"])
def test_runs_that_the_file_system_does_not_list_are_not_passed_over(hpcml: Hpcml, unlisted: Path, below: str) -> None:
    hpcml("run", "--", "true")
    for path in hpcml.home.glob("store.db*"):
        path.unlink()
    folder = hpcml.home / "runs" / below
    environ = {**hpcml.environ, "LD_PRELOAD": str(unlisted), "UNLISTED": str(folder)}

    def without(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HPCML, *words], env=environ, cwd=hpcml.cwd, capture_output=True, text=True, timeout=300, check=False
        )

    done = without("runs", "--json")
    removed = without("rm", "--unused-code", "--yes")

    assert json.loads(done.stdout) == []
    assert done.stderr == f"hpcml: warning: not read for this answer: the runs in {folder}: Input/output error\n"
    assert removed.returncode == 1
    assert f"{folder}: Input/output error" in removed.stderr
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED"]
