"""The parts of these pages that are made from the program: ``python docs/generate.py`` writes them anew.

tests/docs holds them equal to the program, so a changed option or capability cannot leave its page behind.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import click
from published_tables import PublishedTable, published_tables

from hpcml.cli.main import COMMANDS, cli
from hpcml.model.precision import CAPABILITIES, PrecisionName, environment
from hpcml_client.precisions import Precision

DOCS = Path(__file__).resolve().parent
_SIXTEEN_BITS = "16-bit tensors, FP32 arithmetic inside each product"


def help_text(*command: str) -> str:
    """Return what ``hpcml COMMAND --help`` prints, on a terminal of 80 columns, away from any ./conf."""
    hpcml = Path(sys.executable).with_name("hpcml")
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [str(hpcml), *command, "--help"],
            check=True,
            capture_output=True,
            text=True,
            cwd=empty,
            env={**os.environ, "COLUMNS": "80", "HPCML_HOME": empty},
        )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def help_of_all() -> str:
    """Return a section for each command, with what its ``--help`` prints: conf.py adds them to reference/cli.md."""
    parts = (f"\n## {' '.join(['hpcml', *words])}\n\n```text\n{help_text(*words)}\n```\n" for words in _commands())
    return "".join(parts)


def _commands() -> Iterator[tuple[str, ...]]:
    yield ()
    context = click.Context(cli)
    for name in COMMANDS:
        yield (name,)
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((name, below) for below in command.list_commands(context))


def capability_table() -> str:
    """Return precision.md's table of what is native, emulated and refused."""
    lines = ["| precision | on a GPU | on a CPU | emulated as | why not native on a CPU |", "|---|---|---|---|---|"]
    for name, row in CAPABILITIES.items():
        cpu = "native" if row.on_cpu else "emulated" if row.emulation else "refused"
        cpu += "" if row.trains else ", in inference only"
        emulation = _SIXTEEN_BITS if row.emulation == "half" else row.emulation or "-"
        lines.append(f"| `{name.name}` | {_on_gpu(row)} | {cpu} | {emulation} | {row.why_not or '-'} |")
    return "\n".join(lines)


def _on_gpu(row: Precision) -> str:
    if row.min_compute_capability is None:
        return "refused"
    least = ".".join(map(str, row.min_compute_capability))
    only = "" if row.trains else ", in inference only"
    return f"native from compute capability {least}{only}"


def switches_table() -> str:
    """Return precision.md's table of the variables that a precision sets."""
    names = sorted({name for precision in CAPABILITIES for name in environment(precision)})
    usual = environment(PrecisionName.fp32)
    own = [precision for precision in CAPABILITIES if environment(precision) != usual]
    heads = [*(f"`{precision.name}`" for precision in own), "all others"]
    lines = [f"| variable | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name in names:
        values = (*(environment(precision)[name] for precision in own), usual[name])
        shown = ["unset" if value is None else f"`{value}`" for value in values]
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def published_section(table: PublishedTable) -> str:
    """Return the section of reference/published.md on *table*, headed by its key, to which other pages link."""
    heads = [f"{column.title} ({column.unit})" if column.unit else column.title for column in table.columns]
    rules = ["---:" if column.is_number else "---" for column in table.columns]
    rows = [[cell.replace("|", r"\|") for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in (heads, rules, *rows)]
    notes = [f"- {note}" for note in (*_differences(table), *table.notes, f"source: {table.source}")]
    heading = table.key.replace("_", " ")
    return "\n".join([f"## {heading}", "", f"{table.title}.", "", *lines, "", *notes])


def _differences(table: PublishedTable) -> Iterator[str]:
    """Yield a line on the computed differences that are all in one unit."""
    for column in table.columns:
        if column.is_derived and column.unit == "%":
            known = [float(value) for value in table.numbers(column.title) if value is not None]
            span = f"from {min(known):+.2f} to {max(known):+.2f}"
            yield f"{column.title}: mean {fmean(known):+.3f}, {span} (computed; {len(known)} rows)"


def with_part(page: str, name: str, text: str) -> str:
    """Return *page* with *text* between its two comments called *name*."""
    marks = re.compile(rf"(<!-- made by generate\.py: {name} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
    replaced, count = marks.subn(lambda match: f"{match[1]}{text}{match[2]}", page)
    if count != 1:
        raise ValueError(f"the part {name} occurs {count} times")
    return replaced


def pages() -> dict[Path, str]:
    """Return every page that has something made in it, as it should be."""
    precision = (DOCS / "precision.md").read_text(encoding="utf-8")
    precision = with_part(precision, "capabilities", capability_table())
    published = DOCS / "reference" / "published.md"
    sections = "\n\n".join(map(published_section, published_tables()))
    return {
        DOCS / "precision.md": with_part(precision, "switches", switches_table()),
        published: with_part(published.read_text(encoding="utf-8"), "tables", sections),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
