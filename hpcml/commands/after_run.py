"""What is said after runs: of numbers that were printed and not read, and of a file that a copy lacks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hpcml.agent.metrics.printed import Headings
from hpcml.agent.metrics.sources import is_wanted_by
from hpcml.commands.logs import last_printed
from hpcml.commands.submit.launch import Launched
from hpcml.errors import HpcmlError
from hpcml.model.failure_causes import printed_lines
from hpcml.model.metric_goal import goal_by_name, is_duration_or_rate, most_telling
from hpcml.model.metric_sources import number_behind
from hpcml.runs.working_directory import was_there, written_files

_MOST = 3  # numbers that are named
_LONGEST = 400  # characters of a line, the last ones
_NUMBER = re.compile(  # with at most four words in front
    r"(?<![\w.])(?P<name>(?:[A-Za-z][\w./@-]* +){0,3}[A-Za-z][\w./@-]*)(?P<between>[^\w.+-]{1,60})"
    r"(?:[A-Za-z][\w.]*\(\[?)?(?P<value>[-+]?(?:\d[\d,/]*\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?)(?P<share> ?%)?"
    r"(?![\w.:/]|,\d| ?(?:m?s|sec|min|h|[KMG]i?B)\b)"
)
_HELD_OUT = re.compile(r"(?<![A-Za-z])(?:val|valid|validation|test|eval|dev)(?![A-Za-z])", re.IGNORECASE)
_NO_RESULT = re.compile(  # what it counts and uses, and settings
    r"(?<![A-Za-z])(?:epochs?|steps?|version|memory|mem|tol|eps|dt|lr|learning.rate|momentum|decay|seed|params?)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_TABLE = re.compile(r"\.(?:csv|tsv|jsonl)$|(?:result|metric|score|history|progress|eval)[^/]*\.json$", re.IGNORECASE)
_HEADING_BYTES = 1 << 16
_NAMEABLE = re.compile(r"[\w./ +,=@()&-]+")  # what neither a shell, nor Hydra, nor a pattern reads as something else


def advice(mute: Sequence[Launched]) -> str:
    """Return in words what would make hpcml read a metric of the runs *mute*, whose program reported none."""
    launched, *others = mute
    which = f"--submission {launched.manifest.provenance.submission}" if others else launched.run_dir.uid
    tables = dict(_written_tables(launched))
    telling = [file for file, names in tables.items() if any(map(_tells_of_quality, names))]
    if not telling and (numbers := named_numbers(last_printed(launched.run_dir))):
        printed = ", ".join(f"{name} {value}" for name, value in numbers.items())
        words = " ".join(f"--metric {shlex.quote(name)}" for name in numbers)
        return f"it printed {printed}: hpcml read {which} {words}, and next time hpcml run {words} -- ..."
    if tables:
        file = next(iter(telling or tables))
        quoted = file if re.fullmatch(r"[\w./-]+", file, re.ASCII) else f'"{file}"'  # Hydra asks for quotes
        files = f"workload.metrics_from='[auto,{quoted}]'"
        return f"hpcml read {which} {files} reads the file that it wrote; the next hpcml run takes the same"
    return "hpcml run --metric loss -- ... reads the number that a program prints behind loss, and hpcml_client any"


def named_numbers(printed: str) -> dict[str, str]:
    """Return at most three numbers of what was *printed*, the last of each name, by names that ``--metric`` takes.

    Those of data that was held out come first, then the most telling; times and rates come last.
    """
    named = Headings()
    lines = [named(line[-_LONGEST:]) for line in printed_lines(printed)]
    found = {
        "_".join(number["name"].split()): number
        for line in lines
        for number in _NUMBER.finditer(line)
        if _may_be_result(number)
    }
    names = [name for name in most_telling(found) if _is_read_as(name, found[name]["value"], lines)]
    names.sort(key=lambda name: (is_duration_or_rate(name), not _is_of_held_out_data(found[name])))
    return {name: found[name]["value"] for name in names[:_MOST]}


def _is_of_held_out_data(number: re.Match[str]) -> bool:
    return _HELD_OUT.search(number.string, 0, number.end("name")) is not None


def _may_be_result(number: re.Match[str]) -> bool:
    """Whether it is no count, such as the 5 of "loss after 5 steps", and no setting."""
    if _NO_RESULT.search(number["name"]):
        return False
    is_whole = re.fullmatch(r"[-+]?\d+(?:/\d+)?", number["value"]) is not None
    is_named = re.search("[:=|│┃]", number["between"]) and (number["share"] or goal_by_name(number["name"]))
    return not is_whole or bool(is_named)


def _is_read_as(name: str, value: str, lines: Sequence[str]) -> bool:
    """Whether ``--metric NAME`` finds *value*, and in lines of one kind alone, not of several data sets."""
    found = [match for line in lines for match in re.finditer(number_behind(name), line)]
    kinds = {tuple(re.findall(r"[^\W\d_]{3,}", match.string[: match.start("value")])) for match in found}
    return value in [match["value"] for match in found] and len(kinds) == 1


def _tells_of_quality(name: str) -> bool:
    return goal_by_name(name) is not None and not is_duration_or_rate(name)


def _written_tables(launched: Launched) -> Iterator[tuple[str, list[str]]]:
    """Yield the tables that the program wrote and nobody has named, from where it starts, with the names in them."""
    with suppress(OSError, HpcmlError):  # it is advice: what cannot be read gives none
        for file in written_files(launched.run_dir):
            path = launched.run_dir.work / file.path
            place = os.path.relpath(path, launched.manifest.plan.cwd)
            is_read = is_wanted_by(launched.manifest.run.workload.metrics_from, place)
            if _TABLE.search(place) and _NAMEABLE.fullmatch(place) and not place.startswith("..") and not is_read:
                with suppress(OSError):
                    if names := _names_in(path):
                        yield place, names


def _names_in(table: Path) -> list[str]:
    """Return the names that *table* begins with; none of numbers without a heading, which are data."""
    with table.open("rb") as file:
        head = file.read(_HEADING_BYTES).decode("utf-8", "replace")
    if table.suffix in (".json", ".jsonl"):
        return re.findall(r'"([^"\n]+)"\s*:', head)
    first = next((line for line in head.splitlines() if line.strip() and not line.startswith("#{")), "")
    cells = [cell.strip(" \"'") for cell in re.split(r"[,;\t]", first.lstrip("# "))]
    return cells if all(re.match(r"[^\W\d]", cell) for cell in cells) else []


_WORDS = "No such file or directory"
_MISSED = re.compile(rf"{_WORDS}: '([^'\n]+)'|([^\s:'\"]+)['\"]?: {_WORDS}")


def not_copied(item: Launched) -> str | None:
    """Return in words the file of the user's that the run of *item* said last that it did not find; None for none."""
    staging, cwd, run_dir = item.manifest.plan.staging, item.manifest.plan.cwd, item.run_dir
    if staging is None or staging.original is None:
        return None
    with suppress(OSError, ValueError, HpcmlError):  # it is advice: what cannot be read gives none
        if found := _MISSED.findall(last_printed(run_dir)):
            path = Path(os.path.normpath(Path(cwd) / (found[-1][0] or found[-1][1])))
            theirs = os.path.normpath(Path(staging.original) / os.path.relpath(path, run_dir.work / staging.project))
            is_ours = path.is_relative_to(run_dir.work)
            if is_ours and os.path.lexists(theirs) and not was_there(run_dir, os.path.relpath(path, run_dir.work)):
                return f"{theirs}, which is no part of the copy that a run starts in: give its absolute path"
    return None
