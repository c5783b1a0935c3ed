"""What the page for those who come from another tool says to type works as it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from pages import commands_of, files_of, on_path


def test_the_commands_say_what_the_page_shows(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    for name, text in files_of("coming-from.md").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    commands = commands_of("coming-from.md")
    assert set(commands) == {"sbatch", "array", "hydra", "wandb", "compared"}

    for shown in commands.values():
        done = subprocess.run(
            ["bash", "-c", shown.command],
            cwd=tmp_path,
            env=on_path(hpcml_environ),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = re.sub(r"[^\S\n]+", " ", done.stdout)
        for line in shown.lines:
            assert line in said, said
