"""Standard output that takes nothing: a full disk behind ``>``, or none at all."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tests.cli.command_line import HPCML, Hpcml


def under_shell(hpcml: Hpcml, words: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """Run hpcml, which has a store, as a shell does that redirects its output."""
    (hpcml.home / "runs").mkdir(mode=0o700, parents=True)
    hpcml("sync")
    line = f"exec {shlex.join(HPCML)} {words} {redirection}"
    return subprocess.run(
        ["bash", "-c", line], env=hpcml.environ, cwd=hpcml.cwd, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("words", ["recipes", "runs --json", "--help"])
def test_a_full_disk_behind_the_output_is_one_line(hpcml: Hpcml, words: str) -> None:
    done = under_shell(hpcml, words, "> /dev/full")

    assert done.returncode == 1
    assert done.stderr == "hpcml: standard output takes no more: No space left on device\n"


@pytest.mark.parametrize("words", ["recipes", "runs --json", "--help"])
def test_a_closed_output_is_no_trouble(hpcml: Hpcml, words: str) -> None:
    done = under_shell(hpcml, words, ">&-")

    assert (done.returncode, done.stderr) == (0, "")
