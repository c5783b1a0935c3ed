"""What is advised where a program reported no metric: a table that it wrote, or numbers that it printed with a name."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpcml.agent.metrics.sources import is_wanted_by
from hpcml.commands.logs import last_printed
from hpcml.commands.submit.launch import Launched
from hpcml.errors import HpcmlError
from hpcml.model.failure_causes import printed_lines
from hpcml.model.metric_goal import goal_by_name, is_duration_or_rate, most_telling
from hpcml.runs.working_directory import written_files

_LONGEST = 400  # characters of a line, the last ones
_MOST_SHOWN = 3  # numbers
_TABLE = re.compile(r"\.(?:csv|tsv|jsonl)$|(?:result|metric|score|history|progress|eval)[^/]*\.json$", re.IGNORECASE)
_MOST_OF_HEADING = 1 << 16  # bytes
_NAMEABLE = re.compile(r"[\w./ +,=@()&-]+")  # what neither a shell, nor Hydra, nor a pattern reads as something else
_NUMBERED = re.compile(r"\d+(?:[-_.T]?\d+)*")
_MOMENT = re.compile(r"20\d\d[-_.]?[01]\d[-_.]?[0-3]\d|\d\d[-_.]\d\d[-_.]\d\d|1\d{9}")  # the next run's is another
_NAME = r"(?:[A-Za-z][\w./@'-]* +){0,3}[A-Za-z][\w./@'-]*"
_PAIR = re.compile(
    rf"(?<![\w.])(?P<name>{_NAME})(?P<between>[^\w.+-]{{1,60}})(?:[A-Za-z][\w.]*\(\[?)?"
    r"(?P<value>[-+]?(?:\d{1,3}(?:,\d{3})+|\d+/\d+|(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?(?: ?%)?))"
    r"(?![\w.:/]|,\d| ?(?:m?s|sec|min|h|[KMG]i?B)\b)"
)
_WHOLE = re.compile(r"[-+]?\d+(?P<share> ?%)?")
_DATA = re.compile(r".*\b(?P<data>val|valid|validation|test|eval|dev|train|training)\b", re.IGNORECASE)
_HELD_OUT = re.compile(r"(?<![A-Za-z])(?:val|valid|validation|test|eval|dev)(?![A-Za-z])", re.IGNORECASE)
_NO_RESULT = re.compile(  # what it counts and uses, and settings
    r"(?<![A-Za-z])(?:epochs?|steps?|version|memory|mem|tol|eps|dt|lr|learning.rate|momentum|decay|seed|params?)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_STEP = r"\b(?:[Ss]tep|[Ii]ter|[Ii]teration|[Ee]poch)\b\W+(?P<step>\d+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A number that was printed with a name, and the regular expression that finds it."""

    name: str
    value: str
    pattern: str

    @property
    def rule(self) -> str:
        """The rule, as `workload.metrics` takes it."""
        return f'{{pattern: "{self.pattern}", name: {_quoted(self.name)}}}'


def advice(mute: Sequence[Launched]) -> str:
    """Return in words what would make hpcml read a metric of the runs *mute*, whose program reported none."""
    launched, *others = mute
    which = f"--submission {launched.manifest.provenance.submission}" if others else launched.run_dir.uid
    tables = dict(sorted(_written_tables(launched), key=lambda table: re.search("train|learn", table[0]) is not None))
    telling = [file for file, names in tables.items() if any(map(_tells_of_quality, names))]
    printed = [] if telling else named_numbers(last_printed(launched.run_dir))
    if printed:
        first, shown = printed[0], ", ".join(f"{one.name} {one.value}" for one in printed)
        is_asked_for = first.name == launched.manifest.run.objective.metric
        judged = "" if is_asked_for else f", and objective.metric={shlex.quote(first.name)} judges by it"
        reads = f"it printed {shown}: {_reading(which, 'workload.metrics', f'[{first.rule}]', f'{first.name} from it')}"
        return f"{reads}{judged}"
    if tables:
        file = next(iter(telling or tables))
        is_everybodys = all(file in dict(_written_tables(other)) for other in others) and not _MOMENT.search(file)
        pattern = file if is_everybodys else _NUMBERED.sub("*", file)
        return _reading(which, "workload.metrics_from", f"[auto,{_quoted(pattern)}]", "the file that it wrote")
    rule = r'[{pattern: "loss (?P<value>\S+)", name: loss}]'
    return f"workload.metrics='{rule}' reads one from what a program prints, and hpcml_client reports any"


def named_numbers(printed: str) -> list[Printed]:
    """Return at most three numbers of what was *printed*, each the last of its name, the most telling first.

    These are of data that was held out, if there are any, and no times or rates where there is anything else.
    """
    lines = [line[-_LONGEST:] for line in printed_lines(printed)]
    found = {_label(pair): pair for line in lines for pair in _PAIR.finditer(line) if _may_be_result(pair)}
    telling = {label: at for at, label in enumerate(most_telling(found))}
    by = {label: (is_duration_or_rate(label), _HELD_OUT.search(label) is None, at) for label, at in telling.items()}
    chosen = sorted(found, key=by.__getitem__)[:_MOST_SHOWN]
    return [
        Printed(name=_spoken(label), value=found[label]["value"], pattern=_pattern(found[label], lines))
        for label in chosen
    ]


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


def _spoken(label: str) -> str:
    per = re.sub(r"/(?=s(?:ec|econd)?\b|gpu\b)", "_per_", label, flags=re.IGNORECASE)
    return re.sub(r"\W+", "_", per).strip("_").lower()


def _pattern(pair: re.Match[str], lines: Sequence[str]) -> str:
    """Return what finds the numbers with the name of *pair* in *lines*, with their steps where these grow."""
    words = " +".join(re.escape(word.rstrip("'")).replace("'", ".") for word in pair["name"].split())
    grouped = r"(?:,\d{3})*" if "," in pair["value"] else ""
    pattern = rf"\b{words}[^\w.+-]+(?P<value>[^\s|,}}]+{grouped})"
    is_all = re.search("[A-Za-z] $", pair.string[: pair.start()]) is None  # of its name
    if is_all and any(re.search(f"[A-Za-z] {pattern}", line) for line in lines):  # the end of another, too
        pattern = rf"(?<![A-Za-z] ){pattern}"
    if data := _data_of(pair):
        pattern = rf"\b{data}\b.*?{pattern}"
    stepped = rf"{_STEP}.*?{pattern}"
    values = [found["value"] for found in map(re.compile(pattern).search, lines) if found]
    steps = [(int(found["step"]), found["value"]) for found in map(re.compile(stepped).search, lines) if found]
    grow = all(former < later for (former, _), (later, _) in pairwise(steps))
    return stepped if grow and [value for _, value in steps] == values else pattern


def _reading(which: str, key: str, value: str, what: str) -> str:
    return f"hpcml read {which} {key}='{value}' reads {what}; the next hpcml run takes the same {key}"


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
