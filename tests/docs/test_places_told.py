"""The page on the first run names every folder that hpcml makes in its home."""

from __future__ import annotations

from pathlib import Path

from pages import DOCS

from hpcml.paths import locate


def test_every_folder_of_the_home_is_told(tmp_path: Path) -> None:
    told = (DOCS / "first-run.md").read_text(encoding="utf-8").partition("## Where files lie")[2].partition("## ")[0]

    names = {path.name for path in locate({"HOME": str(tmp_path)}).own}
    assert {name for name in names if f"`{name}/" not in told} == set()
