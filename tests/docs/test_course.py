"""Each lab of the course, typed from top to bottom by a student with an empty home; what it says must come."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from pages import DOCS, commands_of, files_of, on_path

LABS = {
    "precisions": ("sweep", "compare"),
    "gemm": ("sweep", "runs", "curves"),
    "scaling": ("sweep", "scaling"),
    "containers": ("definition", "pip"),
    "own-program": ("sweep", "compare", "slurm", "pbs"),
}
_TRAINS = {"precisions", "scaling"}  # with torch


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_says_what_it_shows(lab: str, tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    if lab in _TRAINS:
        pytest.importorskip("torch", reason="the lab trains with torch")
    page = f"course/{lab}.md"
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    commands = commands_of(page)
    assert tuple(commands) == LABS[lab]

    for name, shown in commands.items():
        done = subprocess.run(
            ["bash", "-c", shown.command],
            cwd=tmp_path,
            env=on_path(hpcml_environ),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, (name, done.stderr)
        came = re.sub(r"[^\S\n]+", " ", done.stdout + done.stderr)
        for line in shown.lines:
            assert re.sub(r"\s+", " ", line) in came, f"{name}: {line!r} is not in:\n{came}"


def test_every_lab_is_in_the_course() -> None:
    pages = {path.stem for path in (DOCS / "course").glob("*.md")} - {"index"}

    assert pages == set(LABS)
    index = (DOCS / "course" / "index.md").read_text(encoding="utf-8")
    assert all(f"({lab}.md)" in index for lab in LABS)
