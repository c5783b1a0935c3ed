"""How the runs of ``hpcml run`` are doing, as in ``hpcml top``, and in the end how they did."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from rich.console import Console

from hpcml.cli.say import complain, say
from hpcml.cli.terminal import console as terminal
from hpcml.cli.terminal import redrawn, warn
from hpcml.commands.after_run import advice, not_copied
from hpcml.commands.cancel import cancel_run
from hpcml.commands.collect import collect, effective_precisions, opened
from hpcml.commands.follow import Glimpse
from hpcml.commands.logs import last_words
from hpcml.commands.submit.launch import Launched
from hpcml.commands.top import follow
from hpcml.errors import StoreError
from hpcml.model.failure_causes import without_numbers
from hpcml.model.live import RunNow
from hpcml.model.secrets import masked
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.report import run_end
from hpcml.report.run_end import RunEnd
from hpcml.report.runs import short_uid
from hpcml.report.top import run_line, runs_frame
from hpcml.runs.manifest import Manifest
from hpcml.schedulers.local.waiting import is_served

_PERIOD_S = 0.25
_SECOND_THOUGHT_S = 5.0
_ENDS_PERIOD_S = 2.0
_SAY_AFTER_S, _SAY_PERIOD_S = 5.0, 60.0  # without a terminal: a line of what goes on and what is waited for
_INTERRUPTED = 130
_MOST_NAMED = 8  # of runs that failed alike
_MOST_OF_COMMAND = 60  # characters of a command line: with the run's id and a metric it is a line
_MOST_LINES = 12  # of runs that go on


def follow_to_the_end(launched: Sequence[Launched], places: Places) -> int:
    """Show *launched* until all have ended; return 0 if all completed, 1 if not, 130 after Ctrl-C."""
    console = terminal()
    say(_heading(launched))
    try:
        glimpses = _show(launched, places, console)
    except KeyboardInterrupt:
        return _detach_or_cancel(launched)
    effective: Mapping[str, str | None] = {}
    try:
        with opened(places) as store:
            collect(store, places)
            effective = effective_precisions(store, [glimpse.uid for glimpse in glimpses])
    except StoreError as error:  # the next command reads in what this one cannot
        warn(str(error))
    return _sum_up(launched, glimpses, effective)


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


class _Supervision:
    """Whether the queue of runs on this machine is alive; once it is not, ends are looked for that nobody told."""

    def __init__(self, launched: Sequence[Launched], places: Places) -> None:
        self._tickets = [item.ticket for item in launched]
        self._places = places
        self._look_at = math.inf

    def is_there(self) -> bool:
        is_alive, now = is_served(self._places.submissions, self._tickets), time.monotonic()
        if not is_alive and now >= self._look_at:
            with suppress(StoreError), opened(self._places) as store:
                collect(store, self._places, is_silent=True)
        if not is_alive and (now >= self._look_at or math.isinf(self._look_at)):
            self._look_at = now + _ENDS_PERIOD_S  # the first time, all ends are mostly told
        return is_alive


def _show(launched: Sequence[Launched], places: Places, console: Console) -> list[Glimpse]:
    """Show the runs until they have ended; return the last that was seen of each."""
    run_dirs, is_supervised = [item.run_dir for item in launched], _Supervision(launched, places).is_there
    names = labels(launched)
    glimpses: list[Glimpse] = []
    lines = _Lines()
    with redrawn(console) if console.is_terminal else nullcontext() as draw:
        for looks in follow(run_dirs, period_s=_PERIOD_S, is_supervised=is_supervised):
            glimpses = [glimpse for _, glimpse in looks]
            runs = [replace(run, name=name) for name, (run, _) in zip(names, looks, strict=True)]
            if draw is None:
                lines.say_news(runs)
            else:
                draw(runs_frame(runs, now=time.time(), console=console))
    return glimpses


class _Lines:
    """What is said without a terminal: a line as each run ends, and now and then one for each that goes on."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._said_at = time.monotonic() + _SAY_AFTER_S - _SAY_PERIOD_S

    def say_news(self, runs: Sequence[RunNow]) -> None:
        """Say what is new of *runs*."""
        for run in runs:
            if run.state.is_final and run.uid not in self._ended:
                self._ended.add(run.uid)
                say(run_line(run))
        if time.monotonic() - self._said_at >= _SAY_PERIOD_S:
            self._said_at = time.monotonic()
            going_on = [run for run in runs if not run.state.is_final]
            for run in going_on[:_MOST_LINES]:
                say(run_line(run))
            if len(going_on) > _MOST_LINES:
                say(f"... and {len(going_on) - _MOST_LINES} more: hpcml top")


def _detach_or_cancel(launched: Sequence[Launched]) -> int:
    """The first Ctrl-C only stops watching; a second one within a few seconds cancels what has not ended."""
    say(
        f"\nStopped watching: the runs go on in the background (hpcml runs). "
        f"Press Ctrl-C again within {_SECOND_THOUGHT_S:g} s to cancel them."
    )
    try:
        time.sleep(_SECOND_THOUGHT_S)
    except KeyboardInterrupt:
        count = sum(cancel_run(item.run_dir, is_shared=item.ticket.is_shared) for item in launched)
        say(f"\nCancelling {count} of {len(launched)} runs.")
    return _INTERRUPTED


def _sum_up(launched: Sequence[Launched], glimpses: Sequence[Glimpse], effective: Mapping[str, str | None]) -> int:
    pairs = list(zip(launched, glimpses, strict=True))
    failures = [(item, glimpse) for item, glimpse in pairs if glimpse.state is not State.COMPLETED]
    ended = [_ended(item, glimpse, effective.get(glimpse.uid)) for item, glimpse in pairs]
    _complain_of(failures)
    say(_where(launched))
    say(f"{len(launched) - len(failures)} of {len(launched)} runs completed")
    if left := run_end.written(ended):
        say(left)
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
