"""The progress display of ``hpcml run``: bars on a terminal, elsewhere a line a minute and one as each run ends."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hpcml.cli.say import complain, say
from hpcml.cli.terminal import console as terminal
from hpcml.cli.terminal import warn
from hpcml.commands.cancel import cancel_run
from hpcml.commands.collect import collect, effective_precisions, opened
from hpcml.commands.follow import Glimpse, follow
from hpcml.commands.logs import last_words
from hpcml.commands.not_copied import not_copied
from hpcml.commands.submit.launch import Launched
from hpcml.commands.unread_metrics import advice
from hpcml.errors import StoreError
from hpcml.model.failure_causes import without_numbers
from hpcml.model.metric_goal import shown_metric
from hpcml.model.secrets import masked
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.report import run_end
from hpcml.report.run_end import RunEnd
from hpcml.report.runs import short_uid
from hpcml.report.text import duration, number, safe
from hpcml.runs.manifest import Manifest
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.local.waiting import is_served, why_waiting

_PERIOD_S = 0.25
_SECOND_THOUGHT_S = 5.0
_WAITS_PERIOD_S = 2.0
_ENDS_PERIOD_S = 2.0
_SAY_AFTER_S, _SAY_PERIOD_S = 5.0, 60.0  # without a terminal: a line of what goes on and what is waited for
_INTERRUPTED = 130
_MOST_NAMED = 8  # of runs that failed alike
_MOST_OF_COMMAND = 60  # characters of a command line: with the run's id and a metric it is a line
_MOST_BARS = 12  # of runs that have ended; those that run are always shown


def follow_to_the_end(launched: Sequence[Launched], places: Places) -> int:
    """Show *launched* until all have ended; return 0 if all completed, 1 if not, 130 after Ctrl-C."""
    console = terminal()
    console.print(_drawn(_heading(launched)), soft_wrap=True)
    try:
        glimpses = _show(launched, places, console)
    except KeyboardInterrupt:
        return _detach_or_cancel(launched, console)
    effective: Mapping[str, str | None] = {}
    try:
        with opened(places) as store:
            collect(store, places)
            effective = effective_precisions(store, [glimpse.uid for glimpse in glimpses])
    except StoreError as error:  # the next command reads in what this one cannot
        warn(str(error))
    return _sum_up(launched, glimpses, effective, console)


def list_submitted(launched: Sequence[Launched]) -> None:
    """Print one line for each run that a scheduler now has, and how to come back."""
    for name, item in zip(labels(launched), launched, strict=True):
        say(f"{item.run_dir.uid}  {item.ticket.scheduler} {item.ticket.spelled}  {name}")
    if launched:
        say(f"{len(launched)} submitted, below {_folder(launched)}; hpcml status | logs RUN | cancel RUN")
    else:
        say("nothing to submit")


def _heading(launched: Sequence[Launched]) -> str:
    if len(launched) == 1:
        return f"run {launched[0].run_dir.uid} in {_folder(launched)}"
    return f"{len(launched)} runs in {_folder(launched)}"


def _folder(launched: Sequence[Launched]) -> object:
    parents = {item.run_dir.path.parent for item in launched}
    return parents.pop() if len(parents) == 1 else next(iter(parents)).parent


def labels(launched: Sequence[Launched]) -> list[str]:
    """Return for each run the words in which it differs from the others; if it is alone, its command or its model."""
    counts = Counter(word for item in launched for word in set(item.overrides))
    own = [" ".join(word for word in item.overrides if counts[word] < len(launched)) for item in launched]
    return [text or _alone(item.manifest) for text, item in zip(own, launched, strict=True)]


def _alone(manifest: Manifest) -> str:
    """Return what a run is that differs from no other: its program's command line, else its model and precision."""
    if manifest.run.workload.command is None:
        return f"{manifest.run.model.name} {manifest.run.precision.name.name}"
    command = " ".join(shlex.join(masked(manifest.plan.program)).split())
    return command if len(command) <= _MOST_OF_COMMAND else f"{command[:_MOST_OF_COMMAND]}..."


class _Waits:
    """What the runs that have not started lack, looked up now and then."""

    def __init__(self, launched: Sequence[Launched], places: Places) -> None:
        self._tickets = {item.run_dir.uid: item.ticket for item in launched}
        self._places = places
        self._looked_at = float("-inf")
        self._lacking: dict[Ticket, str] = {}

    def look(self, glimpses: Sequence[Glimpse]) -> None:
        """Look again, unless that was done a moment ago."""
        if time.monotonic() - self._looked_at < _WAITS_PERIOD_S:
            return
        pending = [glimpse.uid for glimpse in glimpses if glimpse.state is State.PENDING]
        tickets = [self._tickets[uid] for uid in pending if uid in self._tickets]
        self._lacking = why_waiting(self._places.submissions, tickets) if tickets else {}
        self._looked_at = time.monotonic()

    def words(self, uid: str) -> str:
        """Return "waiting", and what for where that is known."""
        lacks = self._lacking.get(self._tickets[uid]) if uid in self._tickets else None
        return "waiting" if lacks is None else f"waiting for {lacks}"

    def line(self) -> str | None:
        """Return in a line how many wait for what; None where none is known to."""
        if not self._lacking:
            return None
        what, n = next(iter(self._lacking.values())), len(self._lacking)
        if n == 1:
            return f"1 run waiting for {what}"
        return f"{n} runs waiting for {what.replace('; no. ', '; the first is no. ')}"


class _Supervision:
    """Whether the queue of runs on this machine is alive; once it is not, ends are looked for that nobody told."""

    def __init__(self, launched: Sequence[Launched], places: Places) -> None:
        self._tickets = [item.ticket for item in launched]
        self._places = places
        self._looked_at: float | None = None

    def is_there(self) -> bool:
        if is_served(self._places.submissions, self._tickets):
            return True
        if self._looked_at is None:  # the first time, all ends are mostly told
            self._looked_at = time.monotonic()
        elif time.monotonic() - self._looked_at >= _ENDS_PERIOD_S:
            with suppress(StoreError), opened(self._places) as store:
                collect(store, self._places, is_silent=True)
            self._looked_at = time.monotonic()
        return False


def _show(launched: Sequence[Launched], places: Places, console: Console) -> list[Glimpse]:
    names = labels(launched)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    )
    bars = [
        progress.add_task(
            f"{short_uid(item.run_dir.uid)} {_drawn(name)}",
            total=_steps(item),
            note="waiting",
            visible=len(launched) <= _MOST_BARS,
            start=False,
        )
        for name, item in zip(names, launched, strict=True)
    ]
    ended: set[str] = set()
    glimpses: list[Glimpse] = []
    waits, said_at, began_at = _Waits(launched, places), float("-inf"), time.monotonic()
    with progress:
        for glimpses in follow(
            [item.run_dir for item in launched],
            period_s=_PERIOD_S,
            is_supervised=_Supervision(launched, places).is_there,
        ):
            waits.look(glimpses)
            now = time.monotonic()
            if not console.is_terminal and now - began_at > _SAY_AFTER_S and now - said_at >= _SAY_PERIOD_S:
                said_at = now
                for told in (*_lines_of_running(names, launched, glimpses), *filter(None, [waits.line()])):
                    console.print(_drawn(told), soft_wrap=True)
            for bar, name, item, glimpse in zip(bars, names, launched, glimpses, strict=True):
                _update(progress, bar, item, glimpse, waits)
                if glimpse.state.is_final and glimpse.uid not in ended:
                    ended.add(glimpse.uid)
                    if not console.is_terminal:
                        line = f"{glimpse.uid}  {_drawn(name)}  {_drawn(_note(item, glimpse))}"
                        console.print(line, soft_wrap=True)
    return glimpses


def _lines_of_running(names: Sequence[str], launched: Sequence[Launched], glimpses: Sequence[Glimpse]) -> Iterator[str]:
    """Yield a line for each run that runs, of so many at most, and how many more there are."""
    running = [
        (name, item, glimpse)
        for name, item, glimpse in zip(names, launched, glimpses, strict=True)
        if glimpse.state is State.RUNNING
    ]
    for name, item, glimpse in running[:_MOST_BARS]:
        total = _total(item, glimpse)
        step = "" if glimpse.step is None else f"step {glimpse.step}{'' if total is None else f'/{total}'}"
        yield "  ".join(filter(None, [glimpse.uid, name, "running", step, _note(item, glimpse)]))
    if len(running) > _MOST_BARS:
        yield f"... and {len(running) - _MOST_BARS} more running: hpcml top"


def _update(progress: Progress, bar: TaskID, item: Launched, glimpse: Glimpse, waits: _Waits) -> None:
    task = progress.tasks[bar]
    if glimpse.state is not State.PENDING and not task.started:
        progress.start_task(task.id)
        progress.update(task.id, visible=True)
    done: float | None = glimpse.step  # recipes count their steps from 1
    if task.total is None and (total := _total(item, glimpse)) is not None:
        progress.update(task.id, total=total)
    if glimpse.state is State.COMPLETED:
        done = task.total
    if glimpse.state.is_final and not task.finished:
        progress.stop_task(task.id)
    note = waits.words(glimpse.uid) if glimpse.state is State.PENDING else _note(item, glimpse)
    progress.update(task.id, completed=done, note=_drawn(note))


def _drawn(words: object) -> str:
    """Return *words* so that neither rich nor a terminal reads commands in them."""
    return escape(safe(words))


def _steps(item: Launched) -> int | None:
    return item.manifest.run.training.steps if item.manifest.run.workload.command is None else None


def _total(item: Launched, glimpse: Glimpse) -> int | None:
    return glimpse.steps if glimpse.steps is not None else _steps(item)


def _note(item: Launched, glimpse: Glimpse) -> str:
    value = _value(item, glimpse)
    if glimpse.state is State.RUNNING:
        pace = "" if glimpse.steps_per_s is None else f"{number(glimpse.steps_per_s, 3)} steps/s"
        left = "" if glimpse.left_s is None else f"{duration(glimpse.left_s)} left"
        return "  ".join(filter(None, [value, pace, left]))
    return "; ".join(filter(None, [" ".join(filter(None, [glimpse.state.value, value])), glimpse.reason]))


def _value(item: Launched, glimpse: Glimpse) -> str:
    """Return the last value of the metric by which the run is shown; "" before it has reported any."""
    metric = shown_metric(item.manifest.run.objective.metric, glimpse.latest)
    return "" if metric is None else f"{metric} {number(glimpse.latest[metric])}"


def _detach_or_cancel(launched: Sequence[Launched], console: Console) -> int:
    """The first Ctrl-C only stops watching; a second one within a few seconds cancels what has not ended."""
    console.print(
        f"\nStopped watching: the runs go on in the background (hpcml runs). "
        f"Press Ctrl-C again within {_SECOND_THOUGHT_S:g} s to cancel them."
    )
    try:
        time.sleep(_SECOND_THOUGHT_S)
    except KeyboardInterrupt:
        count = sum(cancel_run(item.run_dir, is_shared=item.ticket.is_shared) for item in launched)
        console.print(f"\nCancelling {count} of {len(launched)} runs.")
    return _INTERRUPTED


def _sum_up(
    launched: Sequence[Launched], glimpses: Sequence[Glimpse], effective: Mapping[str, str | None], console: Console
) -> int:
    pairs = list(zip(launched, glimpses, strict=True))
    failures = [(item, glimpse) for item, glimpse in pairs if glimpse.state is not State.COMPLETED]
    ended = [_ended(item, glimpse, effective.get(glimpse.uid)) for item, glimpse in pairs]
    _complain_of(failures)
    console.print(_drawn(_where(launched)), soft_wrap=True)
    console.print(f"{len(launched) - len(failures)} of {len(launched)} runs completed")
    if told := run_end.written(ended):
        console.print(_drawn(told), soft_wrap=True)
    mute = [item for item, one in zip(launched, ended, strict=True) if one.is_mute]
    for line in run_end.remarks(ended, advice(mute) if mute else ""):
        warn(line)
    return 1 if failures else 0


def _ended(item: Launched, glimpse: Glimpse, effective: str | None) -> RunEnd:
    run, staging = item.manifest.run, item.manifest.plan.staging
    yours = {} if staging is None else staging.shared
    return RunEnd(
        uid=glimpse.uid,
        has_completed=glimpse.state is State.COMPLETED,
        is_own=run.workload.command is not None,
        objective=run.objective.metric,
        metrics=tuple(glimpse.latest),
        requested=run.precision.name.name,
        effective=effective,
        unread=glimpse.unread,
        not_copied=None if glimpse.state is State.COMPLETED else not_copied(item),
        touched=tuple(yours.get(place, place) for place in glimpse.touched),
        left_behind=glimpse.left_behind,
        reason=glimpse.reason,
        written=glimpse.written,
    )


def _complain_of(failures: Sequence[tuple[Launched, Glimpse]]) -> None:
    """Say how runs failed and what they printed last; of those that said the same, but for numbers, only one."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for item, glimpse in failures:
        how = f"{glimpse.state.value}: {glimpse.reason or 'no reason known'}"
        words = last_words(item.run_dir)
        same = alike.setdefault(tuple(map(without_numbers, (how, *words))), [])
        if not same:
            complain(f"{glimpse.uid} {how}")
            for line in words:
                say(f"    {line}", err=True)
        same.append(short_uid(glimpse.uid))
    for (how, *_), (first, *others) in alike.items():
        if others:
            named = ", ".join(others[:_MOST_NAMED]) + ", ..." * (len(others) > _MOST_NAMED)
            complain(f"{len(others)} more as {first}, {how.partition(':')[0]} with the same words: {named}")


def _where(launched: Sequence[Launched]) -> str:
    """Return in a line how logs and files of the runs are looked at, and where they lie."""
    if len(launched) == 1:
        run_dir = launched[0].run_dir
        return f"hpcml show {short_uid(run_dir.uid)} [--files] | logs; everything of it is in {run_dir.path}"
    first, last = (short_uid(item.run_dir.uid) for item in (launched[0], launched[-1]))
    return (
        f"hpcml show RUN [--files] | logs RUN, RUN from {first} to {last}; each has its folder in {_folder(launched)}"
    )
