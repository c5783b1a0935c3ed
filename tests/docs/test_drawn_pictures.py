"""The pictures of the pages: they exist, load nothing, show commands that there are, and the script draws them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import click
import pytest
from pages import DOCS, ROOT, all_pages, files_of

from hpcml.cli.main import cli
from tests.cli.command_line import Hpcml

sys.path.insert(0, str(DOCS))
try:
    from pictures import SHOWN, as_left
finally:
    sys.path.remove(str(DOCS))

PICTURE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
MOST = 600 << 10  # bytes of all pictures


def named() -> set[Path]:
    return {(page.parent / name).resolve() for page in all_pages() for name in PICTURE.findall(page.read_text("utf-8"))}


def test_every_picture_of_a_page_is_there_and_every_picture_is_on_a_page() -> None:
    there = {path.resolve() for path in (DOCS / "pictures").iterdir()}

    plots = {path.resolve() for path in DOCS.glob("*.png")}  # of benchmarks, beside their page
    assert named() == there | plots
    assert {path.stem for path in there} == set(SHOWN)
    assert sum(path.stat().st_size for path in there) < MOST


@pytest.mark.parametrize("path", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_loads_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert ET.fromstring(text).tag.endswith("svg")  # noqa: S314 - our own file
    assert re.findall(r"(?:href|src)=|@import|url\((?!#)|<script", text) == []


@pytest.mark.parametrize("name", ["run", "compare"])
def test_a_drawn_terminal_shows_the_commands_of_the_script(name: str) -> None:
    drawn = "".join(ET.parse(DOCS / "pictures" / f"{name}.svg").getroot().itertext())  # noqa: S314 - our own file

    for words in SHOWN[name]:
        assert re.sub(r"\s", "", f"$ hpcml {words}") in re.sub(r"\s", "", drawn), words


def commands(*, of_run: bool) -> list[str]:
    shown = sorted({words for of in SHOWN.values() for words in of})
    return [words for words in shown if words.startswith("run ") is of_run]


@pytest.mark.parametrize("words", commands(of_run=False))
def test_the_commands_that_are_shown_exist_with_their_options(words: str) -> None:
    name, *typed = shlex.split(words)
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert [word for word in typed if word.startswith("-") and word not in known] == []


@pytest.mark.parametrize("words", commands(of_run=True))
def test_the_runs_that_are_shown_would_be_submitted(words: str, hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(files_of("pictures.md")["train.py"], encoding="utf-8")
    typed = shlex.split(words)

    done = Hpcml(environ=hpcml_environ, cwd=tmp_path)(typed[0], "-n", *typed[1:])

    assert done.returncode == 0, done.stderr


def test_a_line_that_is_written_again_replaces_the_earlier_one() -> None:
    assert as_left("begin\n0 %\r\x1b[2K50 %\n\x1b[1A\r\x1b[2K99 %\x1b[?25h\nend\n") == ["begin", "99 %", "end"]


def test_the_script_draws_what_commands_print(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HPCML_")}
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "pictures.py", "run", "path", "--out", tmp_path],
        env=kept,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    run = "".join(ET.parse(tmp_path / "run.svg").getroot().itertext())  # noqa: S314 - drawn by ours just now
    assert "1\xa0of\xa01\xa0runs\xa0completed" in run
    way = "".join(ET.parse(tmp_path / "path.svg").getroot().itertext())  # noqa: S314
    for word in ("run.json", "Slurm", "precision", "hpcml.agent.main", "better:"):
        assert word in way, word
