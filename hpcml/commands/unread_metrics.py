"""What is advised where a program reported no metric: a table that it wrote, or numbers that it printed with a name."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.agent.metrics.printed import Headings
from hpcml.agent.metrics.sources import is_wanted_by
from hpcml.commands.logs import last_printed
from hpcml.commands.submit.launch import Launched
from hpcml.errors import HpcmlError
from hpcml.model.failure_causes import printed_lines
from hpcml.model.metric_goal import goal_by_name, is_duration_or_rate, most_telling
from hpcml.model.metric_sources import number_behind
from hpcml.runs.working_directory import written_files

_LONGEST = 400  # characters of a line, the last ones
_MOST_SHOWN = 6  # numbers, or, where it is clear which one is read:
_MOST_WITH_ONE = 3
_TABLE = re.compile(r"\.(?:csv|tsv|jsonl)$|(?:result|metric|score|history|progress|eval)[^/]*\.json$", re.IGNORECASE)
_MOST_OF_HEADING = 1 << 16  # bytes
_NAMEABLE = re.compile(r"[\w./ +,=@()&-]+")  # what neither a shell, nor Hydra, nor a pattern reads as something else
_NUMBERED = re.compile(r"\d+(?:[-_.T]?\d+)*")
_MOMENT = re.compile(r"20\d\d[-_.]?[01]\d[-_.]?[0-3]\d|\d\d[-_.]\d\d[-_.]\d\d|1\d{9}")  # the next run's is another
_NAME = r"(?:[A-Za-z][\w./@-]* +){0,3}[A-Za-z][\w./@-]*"
_PAIR = re.compile(
    rf"(?<![\w.])(?P<name>{_NAME})(?P<between>[^\w.+-]{{1,60}})(?:[A-Za-z][\w.]*\(\[?)?"
    r"(?P<value>[-+]?(?:\d{1,3}(?:,\d{3})+|\d+/\d+|(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?(?: ?%)?))"
    r"(?![\w.:/]|,\d| ?(?:m?s|sec|min|h|[KMG]i?B)\b)"
)
_WHOLE = re.compile(r"[-+]?\d+(?:/\d+)?(?P<share> ?%)?")
_DATA = re.compile(r".*\b(?P<data>val|valid|validation|test|eval|dev|train|training)\b", re.IGNORECASE)
_HELD_OUT = re.compile(r"(?<![A-Za-z])(?:val|valid|validation|test|eval|dev)(?![A-Za-z])", re.IGNORECASE)
_NO_RESULT = re.compile(  # what it counts and uses, and settings
    r"(?<![A-Za-z])(?:epochs?|steps?|version|memory|mem|tol|eps|dt|lr|learning.rate|momentum|decay|seed|params?)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A number that was printed with a name; *is_clear*: `number_behind` finds it, and in lines of one kind alone."""

    name: str
    value: str
    is_clear: bool


def advice(mute: Sequence[Launched]) -> str:
    """Return in words what would make hpcml read a metric of the runs *mute*, whose program reported none."""
    launched, *others = mute
    which = f"--submission {launched.manifest.provenance.submission}" if others else launched.run_dir.uid
    tables = dict(sorted(_written_tables(launched), key=lambda table: re.search("train|learn", table[0]) is not None))
    telling = [file for file, names in tables.items() if any(map(_tells_of_quality, names))]
    printed = [] if telling else named_numbers(last_printed(launched.run_dir))
    if printed:
        name, shown = shlex.quote(printed[0].name), [f"{one.name} {one.value}" for one in printed]
        if printed[0].is_clear:
            said = ", ".join(shown[:_MOST_WITH_ONE])
            return (
                f"it printed {said}: hpcml read {which} --metric {name}, and next time hpcml run --metric {name} -- ..."
            )
        return (
            f"it printed {', '.join(shown)}, and lines of several kinds have such names: let it print what counts "
            "under a name of its own, or tell them apart by a pattern of workload.metrics"
        )
    if tables:
        file = next(iter(telling or tables))
        is_everybodys = all(file in dict(_written_tables(other)) for other in others) and not _MOMENT.search(file)
        pattern = file if is_everybodys else _NUMBERED.sub("*", file)
        files = f"workload.metrics_from='[auto,{_quoted(pattern)}]'"
        return f"hpcml read {which} {files} reads the file that it wrote; the next hpcml run takes the same"
    return "hpcml run --metric loss -- ... reads the number that a program prints behind loss, and hpcml_client any"


def named_numbers(printed: str) -> list[Printed]:
    """Return at most six numbers of what was *printed*, each the last of its name, the most telling first.

    These are of data that was held out, if there are any, and no times or rates where there is anything else.
    """
    named = Headings()
    lines = [named(line[-_LONGEST:]) for line in printed_lines(printed)]
    found = {_label(pair): pair for line in lines for pair in _PAIR.finditer(line) if _may_be_result(pair)}
    telling = {label: at for at, label in enumerate(most_telling(found))}
    by = {label: (is_duration_or_rate(label), _HELD_OUT.search(label) is None, at) for label, at in telling.items()}
    return [_printed(label, found[label], lines) for label in sorted(found, key=by.__getitem__)[:_MOST_SHOWN]]


def _printed(label: str, pair: re.Match[str], lines: Sequence[str]) -> Printed:
    number = pair["value"].rstrip(" %")
    names = ["_".join(words.split()) for words in (label, pair["name"])]
    for name in names:
        matches = [found for line in lines for found in re.finditer(number_behind(name), line)]
        if number in [found["value"] for found in matches] and len({_kind(found) for found in matches}) == 1:
            return Printed(name=name, value=pair["value"], is_clear=True)
    return Printed(name=names[0], value=pair["value"], is_clear=False)


def _kind(found: re.Match[str]) -> tuple[str, ...]:
    """Return the words in front of the number that was *found*, which tell apart lines of the same numbers."""
    return tuple(re.findall(r"[^\W\d_]{3,}", found.string[: found.start("value")]))


def _may_be_result(pair: re.Match[str]) -> bool:
    """Whether it is no count, such as the 5 of "loss after 5 steps", and no setting."""
    whole = _WHOLE.fullmatch(pair["value"])
    is_said = (
        whole is not None and (whole["share"] or goal_by_name(pair["name"])) and re.search("[:=|│┃]", pair["between"])
    )
    return bool(whole is None or is_said) and not _NO_RESULT.search(pair["name"])


def _label(pair: re.Match[str]) -> str:
    return " ".join(filter(None, (_data_of(pair), pair["name"])))


def _data_of(pair: re.Match[str]) -> str | None:
    """Return the word in front of a name that says of which data it is, where that was held out."""
    data = _DATA.match(pair.string, 0, pair.start())
    is_held_out = data is not None and _HELD_OUT.fullmatch(data["data"]) and not _HELD_OUT.search(pair["name"])
    return data["data"] if data is not None and is_held_out else None


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w./*-]+", name, re.ASCII) else f'"{name}"'  # Hydra asks for quotes


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
        head = file.read(_MOST_OF_HEADING).decode("utf-8", "replace")
    if table.suffix in (".json", ".jsonl"):
        return re.findall(r'"([^"\n]+)"\s*:', head)
    first = next((line for line in head.splitlines() if line.strip() and not line.startswith("#{")), "")
    cells = [cell.strip(" \"'") for cell in re.split(r"[,;\t]", first.lstrip("# "))]
    return cells if all(re.match(r"[^\W\d]", cell) for cell in cells) else []
