"""Print code lines and files by room: lines that hold a token of code, without docstrings (`make lint` calls it)."""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOMS = {
    "commands, cli, api, config, root": ("commands", "cli", "api", "config", "root"),
    "agent, runs, schedulers": ("agent", "runs", "schedulers"),
    "store, interop, images": ("store", "interop", "images"),
    "analysis, report, model": ("analysis", "report", "model"),
    "hpcml_client, hpcml_train": ("hpcml_client", "hpcml_train"),
    "recipes": ("recipes",),
    "tests": ("tests",),
}
_QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """Return how many lines of *text*, Python, are code: neither blank, nor a comment, nor a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _QUIET:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def room_of(path: str) -> str | None:
    """Return the room of a file, "agent" or "recipes" say; None: it is counted nowhere (docs, benchmarks)."""
    first, *others = path.split("/")
    if first == "hpcml":
        first = others[0] if len(others) > 1 else "root"
    return next((name for name, folders in ROOMS.items() if first in folders), None)


def main() -> None:
    """Print a line for each room, and the sum of all but the tests."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    lines, files = Counter[str](), Counter[str]()
    for path in filter(lambda path: Path(path).is_file(), tracked):
        if room := room_of(path):
            lines[room] += code_lines(Path(path).read_text(encoding="utf-8"))
            files[room] += 1
    for room in ROOMS:
        print(f"{room:36}{files[room]:5} files {lines[room]:7,} code lines")
    in_all = lines.total() - lines["tests"], files.total() - files["tests"]
    print(f"{'all but the tests':36}{in_all[1]:5} files {in_all[0]:7,} code lines")


if __name__ == "__main__":
    main()
