"""What a real bash makes of the TAB key, with the completion that the docs say how to switch on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import HPCML, Hpcml

# hpcml as a program on PATH, and a line as bash divides it: = is a word of its own.
_TAB = """
eval "$(_HPCML_COMPLETE=bash_source hpcml)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
compopt() { echo "files: $*"; }
_hpcml_completion hpcml
printf '%s\\n' "${COMPREPLY[@]}"
"""


def after_tab(hpcml: Hpcml, *words: str) -> list[str]:
    folder = hpcml.cwd / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "hpcml"
    program.write_text(f"#!{sys.executable}\n{HPCML[-1]}\n", encoding="utf-8")
    program.chmod(0o755)
    environ = {**hpcml.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", "-c", _TAB, "bash", "hpcml", *words]
    done = subprocess.run(command, cwd=hpcml.cwd, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["stat"], ["status"]),
        (["run", "prec"], ["precision=fp32", "precision=tf32"]),
        (["run", "-m", "precision", "="], ["fp32", "tf32"]),
        (["run", "-m", "precision", "=", "tf"], ["tf32", "tf32x3"]),
        (["run", "+cluster", "=", "jupi"], ["jupiter"]),
        (["plan", "--time", "strategy", "=", "dd"], ["ddp"]),
    ],
)
def test_a_tab_finds_commands_and_choices(words: list[str], found: list[str], hpcml: Hpcml) -> None:
    assert set(found) <= set(after_tab(hpcml, *words))


def test_a_tab_finds_options_of_the_users_own_project(hpcml: Hpcml) -> None:
    (hpcml.cwd / "conf" / "cluster").mkdir(parents=True)
    (hpcml.cwd / "conf" / "cluster" / "workshop.yaml").touch()

    assert after_tab(hpcml, "run", "cluster", "=", "works") == ["workshop"]


def test_behind_the_dashes_a_tab_finds_files(hpcml: Hpcml, tmp_path: Path) -> None:
    assert after_tab(hpcml, "run", "-m", "--", "python", str(tmp_path)[:4])[:2] == ["files: -o", "default"]


def test_a_tab_finds_nothing_for_what_nobody_knows(hpcml: Hpcml) -> None:
    assert after_tab(hpcml, "run", "seed", "=", "1") == [""]
