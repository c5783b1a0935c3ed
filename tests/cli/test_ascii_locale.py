"""Python told to take names of files for ASCII, and a home whose name is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cli.command_line import Hpcml, program


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
