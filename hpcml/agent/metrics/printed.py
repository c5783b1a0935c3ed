"""Metrics of programs that do not report them: from what they print, by the rules of `workload.metrics`, and files.

`hpcml.agent.metrics.follow` reads the files.
"""

from __future__ import annotations

import os
import re
import select
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hpcml.agent.child import CONTROL, METRICS, Child
from hpcml.agent.metrics.follow import MetricsFollower
from hpcml.agent.metrics.numbers import COLUMN, looks_like_number, number_of, number_or_share, plain
from hpcml.agent.outcome import Unharmed, how
from hpcml.model.failure_causes import TO_ANOTHER_LINE, printed_lines
from hpcml.model.metric_goal import is_loss
from hpcml.model.metric_sources import IN_CALL, NONFINITE, PRINTED_LOSS, MetricRule
from hpcml.runs.journal import Metrics, read_journal
from hpcml.runs.layout import attempt_of
from hpcml.runs.state import PRINTED, EventName
from hpcml_client.journal import JournalWriter

_TICK_S = 0.5
_LAST_WORDS_S = 1.0  # to journal them
_LOOKED_AT_BYTES = 64 << 10  # of what was printed, at its end
_LOSS_AND_VALUE = re.compile(
    rf"""(?ix)
    (?<![\w.]) (?P<name>(?:[a-z]{{1,20}}[ ])? [a-z_/-]{{0,40}} (?:loss(?:_[a-z]{{1,20}})?|nll|perplexity|ppl)) ["']?
    (?:\s?[:=]\s{{0,9}}|\s(?:is\s|of\s)?) (?:{IN_CALL}\[?)?
    (?P<value>[-+]?(?:nan|inf(?:inity)?|\d+\.?\d*(?:e[-+]?\d+)?)) (?!\w)"""
)
_OF_NO_STEP = re.compile(r"(?:^|[\W_])(?:best|min|minimum|lowest|if)(?=[\W_])")
_PASSED_OVER = re.compile(r"\bskip", re.IGNORECASE)
_CHUNK_BYTES = 4 << 20  # a tick's work: signals must not wait for a hundred megabytes
_LONGEST_LINE_BYTES = 1 << 20
_MOST_IN_A_LINE = 1000  # matches of a rule: (?P<value>\d) finds thousands
_LONGEST_MATCHED = 16 << 10  # characters: a pattern that looks from each number to the end of the line is quadratic
_DRAWN_OVER = re.compile(TO_ANOTHER_LINE.pattern.encode())
_COUNTED_ON = frozenset(  # 3/10 is no share of them
    {
        *("epoch", "fold", "round", "stage", "phase", "cycle", "task", "episode", "split"),
        *("batch", "step", "iter", "iteration", "trial", "update"),
    }
)
_CELL = re.compile(r"[-+]?(?:(?i:nan|inf)|[\d.]+(?:[eE][-+]?\d+)?)?")
_DIGIT = re.compile(r"\d")
_WITH_COMMA = re.compile(r"[-+]?\d+,\d+\W*")
_OF_COMMAS = ": one was printed with a comma for the decimal point"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """One value that was found; where the line gives no step, the values of a name are numbered from 0."""

    name: str
    value: float
    step: int
    is_counted: bool = False  # the line gave no step


@dataclass(slots=True)
class Headings:
    """Names the numbers of rows between commas by the line of names above them: `epoch,loss`, then `1,0.5`."""

    _names: Sequence[str] = ()

    def __call__(self, line: str) -> str:
        """Return *line*, a row as epoch=1 loss=0.5."""
        if line.count(",") == 0:
            return line
        cells = [cell.strip() for cell in line.split(",")]
        if all(map(COLUMN.fullmatch, cells)):
            self._names = cells
        elif len(cells) == len(self._names) and all(map(_CELL.fullmatch, cells)):
            return " ".join(f"{name}={cell}" for name, cell in zip(self._names, cells, strict=True))
        return line


@dataclass(slots=True)
class StdoutScanner:
    """Follows a growing file and applies the rules to each new complete line (`MetricRule` says how).

    What a bar of progress prints over itself are lines, too. A value that is drawn over itself is one: tqdm draws its
    bar when a value comes and, with the same value, when it has gone on.

    *counts* is how many values of each name there were; scanners that share it number on.
    """

    path: Path
    rules: Sequence[MetricRule]
    counts: Counter[str] = field(default_factory=Counter)
    matched: set[int] = field(default_factory=set)  # rules that gave a value, by their places
    is_cut: bool = False  # no rule was tried on the rest of a line of more than _LONGEST_MATCHED characters
    unread: dict[tuple[int, str], str] = field(
        default_factory=dict
    )  # by rule and name a text that is no number, and looks like one if any did
    _next: dict[str, int] = field(default_factory=dict)  # by name what stands behind the last step
    _offset: int = 0
    _drawn: dict[str, float] = field(default_factory=dict)  # by name what was drawn last on the line that has not ended
    _named: Headings = field(default_factory=Headings)
    _compiled: list[tuple[re.Pattern[str], str | None]] = field(init=False)

    def __post_init__(self) -> None:
        self._compiled = [(re.compile(rule.regex), rule.name) for rule in self.rules]

    def scan(self, *, to_the_end: bool = False) -> Iterator[Picked]:
        """Yield the values in the new lines: of at most 4 MiB, or of everything that is left with *to_the_end*.

        Colours are left out before. A match whose value or step is no number is skipped. Raises `OSError` where the
        file cannot be read.
        """
        if not self._compiled:
            return
        with self.path.open("rb") as file:
            while True:
                file.seek(self._offset)
                data = file.read(_CHUNK_BYTES)
                end = _end_of_lines(data)
                if not end and len(data) >= _LONGEST_LINE_BYTES:
                    end = len(data)  # no line is that long: step over it
                if not end and to_the_end:
                    end = len(data)  # a last line without its newline
                if not end:
                    return
                self._offset += end
                lines = data[:end].decode("utf-8", "replace").splitlines(keepends=True)
                for line in lines:
                    yield from self._pick_drawn(line)
                if not to_the_end:
                    return

    def _pick_drawn(self, line: str) -> Iterator[Picked]:
        for drawn in printed_lines(line):
            found = list(self._pick(drawn))
            yield from found
            self._drawn |= {each.name: each.value for each in found if each.is_counted}
        if line.endswith("\n"):
            self._drawn.clear()

    def _pick(self, line: str) -> Iterator[Picked]:
        self.is_cut = self.is_cut or len(line) > _LONGEST_MATCHED
        line = line[:_LONGEST_MATCHED]
        named = self._named(line)
        for place, (pattern, name) in enumerate(self._compiled):
            for match in islice(
                pattern.finditer(named if self.rules[place].pattern is None else line), _MOST_IN_A_LINE
            ):
                groups = match.groupdict()
                found = {name or groups.get("name"): groups["value"]} if "value" in groups else groups
                for called, number in found.items():
                    if called and number and (called not in ("step", "name") or "value" in groups):
                        yield from self._picked(place, called, number, groups.get("step"))

    def _picked(self, place: int, name: str, text: str, step_text: str | None) -> Iterator[Picked]:
        stripped = plain(text, name)
        try:
            value = number_of(stripped) if name.lower() in _COUNTED_ON else number_or_share(stripped)
        except ValueError:
            if (place, name) not in self.unread or looks_like_number(text):
                self.unread[place, name] = text
            return  # the words matched, the number did not: not ours to guess
        try:
            step = int(plain(step_text)) if step_text else max(self.counts[name], self._next.get(name, 0))
        except ValueError:
            return
        if not step_text and self._drawn.get(name) == value:
            return  # drawn again
        self.matched.add(place)
        self.counts[name] += 1
        self._next[name] = step + 1
        yield Picked(name=name, value=value, step=step, is_counted=not step_text)


def problems_of(
    rules: Sequence[MetricRule], scanners: Sequence[StdoutScanner], *, elsewhere: Collection[str] = ()
) -> Iterator[str]:
    """Yield what *scanners* with these *rules*, which share their counts, could not read, a line each.

    Metrics *elsewhere* need not be printed.
    """
    matched = {place for scanner in scanners for place in scanner.matched}
    for place, rule in enumerate(rules):
        unread = {
            name: text
            for scanner in scanners
            for (of, name), text in scanner.unread.items()
            if of == place and name.lower() not in _COUNTED_ON
        }
        never = {name: text for name, text in unread.items() if not scanners[0].counts[name] and _DIGIT.search(text)}
        some = {name: text for name, text in unread.items() if scanners[0].counts[name] and looks_like_number(text)}
        commas = _OF_COMMAS if any(map(_WITH_COMMA.fullmatch, never.values())) else ""
        if place not in matched and not (rule.pattern is None and rule.name in elsewhere):
            yield f"no line matched {rule}, or none with a number{commas}"
        elif never:
            yield f"{rule} found no number for {', '.join(never)}{commas}"
        if some:
            shown = ", ".join(f"{name} ({text})" for name, text in some.items())
            yield f"{rule} found values that are no numbers, and were left out, of {shown}"
    if rules and any(scanner.is_cut for scanner in scanners):
        yield f"a line has more than {_LONGEST_MATCHED} characters: the rest of it was left out"


def loss_that_ended(lines: Iterable[str]) -> str | None:
    """Return the name of a loss of which the last value in *lines* is no number; None where there is none.

    One that has come back from as many such values is none, as that of a validation in every fifth epoch; nor is the
    best one before the first, or that of a batch that the line says was skipped.

    >>> loss_that_ended(["epoch 1 loss 0.5", "epoch 2 loss nan", "accuracy 0.1"])
    'loss'
    >>> loss_that_ended(["loss=inf", "loss=0.5", "loss scale inf", "{'val_loss': 0.4}"]) is None
    True
    """
    # Values in a row that are no number, by name: the last ones, and the most that a number came after
    ended, came_back = Counter[str](), Counter[str]()
    for found in (found for line in lines if not _PASSED_OVER.search(line) for found in _LOSS_AND_VALUE.finditer(line)):
        name = found["name"].lower()
        if _OF_NO_STEP.search(name):
            continue
        if found["value"].lower().lstrip("+-")[:3] in ("nan", "inf"):
            ended[name] += 1
        else:
            came_back[name] = max(came_back[name], ended[name])
            ended[name] = 0
    return next((name for name, n in ended.items() if n > came_back[name] and is_loss(name)), None)


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOOKED_AT_BYTES))
        return file.read(_LOOKED_AT_BYTES).decode("utf-8", "replace")


def _end_of_lines(data: bytes) -> int:
    """Return where the last line of *data* ends that is complete: what draws over it has begun; 0 where none is."""
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1  # a bar of progress begins with a carriage return
    moves = _DRAWN_OVER.finditer(data, end) if b"\x1b[" in data[end:] else ()
    return max((move.start() for move in moves), default=end)


@dataclass(slots=True)
class FoundMetrics:
    """All metrics that are found rather than reported: `look`, `start`, and once the program has ended `end`.

    A child of the agent reads them, since a pattern of a user's may take for ever. What is printed is journalled under
    the agent's name. Where a rule and a file name the same metric, the rule counts: somebody wrote it.
    """

    rules: Sequence[MetricRule]
    printed: Sequence[Path]
    journal: JournalWriter
    files: MetricsFollower
    is_again: bool = False  # an attempt went before this one
    _scanners: list[StdoutScanner] = field(init=False)
    _child: Child | None = None

    def __post_init__(self) -> None:
        counts: Counter[str] = Counter()
        self._scanners = [StdoutScanner(path=path, rules=self.rules, counts=counts) for path in self.printed]
        self.files.picked = lambda: counts

    def look(self) -> None:
        """Note which files are there already; to be called before the program starts."""
        self.files.look()

    def start(self) -> None:
        """Begin to read; raise `OSError` where no process can be started for it."""
        if self.rules or self.files.wanted:
            self._child = Child.of_this(self._read, METRICS)

    def end(self, *, within_s: float, has_completed: bool) -> None:
        """Have all read that is left, within so many seconds; the program has ended, and well or not."""
        if self._child is not None:
            words = f"{within_s} {int(has_completed)}\n"
            code = self._child.end(words, within_s=within_s + _LAST_WORDS_S)
            if code != 0:
                why = f"took longer than {within_s:g} s" if code is None else f"failed ({how(code)})"
                problem = f"what was left was not read: reading it {why}"
                self.journal.event(EventName.METRICS_TROUBLE, {"file": PRINTED, "problem": problem})
            self._child.close()
        if all(path.exists() for path in self.printed):  # else it could not be started
            self._tell_of_losses()

    def _read(self) -> int:
        """Be the child: read until the agent says that the program has ended, then what is left."""
        unharmed = Unharmed(self.journal.event)
        while not select.select([CONTROL], [], [], _TICK_S)[0]:
            with unharmed("metrics from what is printed"):
                self._pick()
            self.files.read_new()
        if words := os.read(CONTROL, 4096).split():
            within_s, has_completed = float(words[0]), words[1] == b"1"
            is_there = all(path.exists() for path in self.printed)
            if is_there:
                self._pick(to_the_end=True)
            self.files.end(within_s=within_s, has_completed=has_completed)
            if is_there:
                self._tell_of_rules()
                self._tell_of_earlier()
        self.files.journal.close()
        self.journal.close()
        return 0

    def _pick(self, *, to_the_end: bool = False) -> None:
        for scanner in self._scanners:
            for found in scanner.scan(to_the_end=to_the_end):
                self.journal.metrics(found.step, {found.name: found.value}, is_counted=found.is_counted)

    def _tell_of_rules(self) -> None:
        elsewhere = self.files.names()
        for problem in problems_of(self.rules, self._scanners, elsewhere=elsewhere):
            self.journal.event(EventName.METRICS_TROUBLE, {"file": PRINTED, "problem": problem})

    def _tell_of_earlier(self) -> None:
        """Tell of values of attempts before, whose places those take that are numbered from 0 again in this one."""
        earlier = Counter[tuple[int, str]]()
        for path in self.files.journals.glob("*-agent*.jsonl") if self.is_again else ():
            attempt = attempt_of(path.name)
            counted = [one for one in read_journal(path).records if isinstance(one, Metrics) and one.is_counted]
            if attempt is not None and attempt < self.files.attempt:
                earlier.update((attempt, name) for one in counted for name in one.values if name in self.files.picked())
        for (attempt, name), n in sorted(earlier.items()):
            problem = (
                f"{n} values of {name} of attempt {attempt} are not counted: printed without a step, values are "
                "numbered from 0 in each attempt"
            )
            self.journal.event(EventName.METRICS_TROUBLE, {"file": PRINTED, "problem": problem})

    def _tell_of_losses(self) -> None:
        """Make a fact of it where the last value of a loss that was printed is no number, whoever reads it or not."""
        text = "\n".join(_end_of(path) for path in self.printed)
        name = loss_that_ended(printed_lines(text))
        if name is not None or self.is_again:  # which takes back what an earlier attempt has said
            self.journal.event("facts", {PRINTED_LOSS: "" if name is None else name + NONFINITE})
