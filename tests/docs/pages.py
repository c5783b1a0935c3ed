"""The pages of docs/ as tests read them: their links, the files they show, the commands they say to type."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)\n```", re.DOTALL)
_COMMAND = re.compile(r"<!-- run: (\S+) -->\n```console\n\$ (.*?)\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command that a page says to type, and lines that it says will come."""

    command: str
    lines: tuple[str, ...]


def all_pages() -> list[Path]:
    """Return every page, those beside docs/ too; never what Sphinx has built."""
    pages = [path for path in DOCS.rglob("*.md") if "_build" not in path.parts]
    return [*sorted(pages), *sorted(ROOT.glob("*.md"))]


def files_of(page: str) -> dict[str, str]:
    """Return the files that *page* says to save, by name."""
    return {name: f"{text}\n" for name, text in _FILE.findall((DOCS / page).read_text(encoding="utf-8"))}


def commands_of(page: str) -> dict[str, Shown]:
    """Return the commands that *page* says to type, by the name in the comment before them."""
    found = _COMMAND.findall((DOCS / page).read_text(encoding="utf-8"))
    return {name: Shown(command=command, lines=tuple(lines.splitlines())) for name, command, lines in found}


def links_of(path: Path) -> list[str]:
    """Return the targets of all links in *path* that stay in the repository."""
    prose = _CODE.sub("", path.read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(prose) if "://" not in target]


def on_path(environ: dict[str, str]) -> dict[str, str]:
    """Return *environ* as it is in an activated virtual environment, in a terminal wide enough for every table."""
    return {**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}", "COLUMNS": "160"}
