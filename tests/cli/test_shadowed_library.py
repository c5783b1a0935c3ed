"""Modules of the user's on PYTHONPATH that bear the names of Python's own: for the program, and not for hpcml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.command_line import Hpcml

START = "from hpcml.__main__ import main; main()"
NAMES = ("queue", "logging", "random", "secrets", "dataclasses", "json")


def test_a_queue_py_of_the_users_is_the_programs_and_keeps_no_command_queue_or_agent_from_its_work(
    hpcml: Hpcml, tmp_path: Path
) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"MINE = {name!r}\n")
    program = "import queue, logging; print(queue.MINE, logging.MINE)"
    words = ["run", "--", sys.executable, "-c", program]

    done = subprocess.run(
        [sys.executable, "-c", START, *words],
        env={**hpcml.environ, "PYTHONPATH": str(folder)},
        cwd=hpcml.cwd,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert run["state"] == "COMPLETED"
    assert (Path(run["path"]) / "logs" / "0-rank0.out").read_text() == "queue logging\n"
