"""Ctrl-C while a command is only being loaded."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.command_line import Hpcml

SLOW = """
import sys, time
from hpcml.cli.start import main

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            print("loading", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
module = sys.argv.pop(1)
main()
"""


@pytest.mark.parametrize("module", ["hpcml.bundled_commands", "hpcml.cli.main"])
def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_traceback(hpcml: Hpcml, module: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, module, "runs"],
        env=hpcml.environ,
        cwd=hpcml.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"

    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)

    assert (process.returncode, stderr) == (-signal.SIGINT, "")
