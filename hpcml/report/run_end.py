"""What ``hpcml run`` remarks on once its runs have ended: metrics, precisions, files that changed, what was left."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcml.model.failure_causes import without_numbers
from hpcml.model.metric_goal import most_telling
from hpcml.model.precision import PrecisionName, contradicts
from hpcml.model.run import DEFAULT_METRIC
from hpcml.report.files import written_words
from hpcml.report.runs import short_uid

_MOST_NAMES = 6
_MOST_PROBLEMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """One run that has ended, as far as there is something to remark on."""

    uid: str
    has_completed: bool
    is_own: bool  # a program of the user's own, and no recipe
    objective: str  # the metric that comparisons judge by
    metrics: tuple[str, ...]  # that it reported
    requested: str = PrecisionName.own.name  # precision
    effective: str | None = None  # what it computed in; None: nothing tells it
    unread: tuple[str, ...] = ()  # what was not read of metrics that it wrote or printed
    not_copied: str | None = None  # a file of the user's that it looked for and that was not in its copy, and why
    touched: tuple[str, ...] = ()  # places of the user's that runs share, and that changed meanwhile
    left_behind: str | None = None  # what was still at work when its program had ended, and was killed
    reason: str | None = None  # of its end; of one that completed, what may be wrong with it
    written: tuple[int, int] | None = None  # files that it left in its working directory, and their bytes

    @property
    def is_mute(self) -> bool:
        """Whether a program of the user's own completed and no metric of it was found."""
        return self.is_own and self.has_completed and not self.metrics


def remarks(runs: Sequence[RunEnd], advice: str) -> Iterator[str]:
    """Yield a line for each thing that looks wrong with *runs*; *advice* is what finds metrics of mute ones."""
    yield from _completed_with_reason(runs)
    yield from _not_found(runs)
    yield from _unread(runs)
    if n_mute := sum(run.is_mute for run in runs):
        which = f"{n_mute} of {len(runs)} runs"
        yield f"{which} reported no metric, so hpcml compare has nothing to judge them by: {advice}"
    yield from _without_objective(runs)
    yield from _in_another_precision(runs)
    yield from _changed(runs)
    yield from _left_behind(runs)


def written(runs: Sequence[RunEnd]) -> str | None:
    """Return in a line what the programs left in their working directories; None where that is nothing."""
    wrote = [(run.uid, run.written) for run in runs if run.written is not None and run.written[0]]
    if not wrote:
        return None
    words = written_words(sum(count for _, (count, _) in wrote), sum(size_bytes for _, (_, size_bytes) in wrote))
    who = "" if len(runs) == 1 else f"{len(wrote)} run{'s' if len(wrote) != 1 else ''} "
    return f"{who}{words}: hpcml show --files {wrote[0][0]}"


def _completed_with_reason(runs: Sequence[RunEnd]) -> Iterator[str]:
    """Yield a line for each reason to doubt that completed runs did all of their work; numbers in it do not count."""
    told: dict[str, list[RunEnd]] = {}
    for run in runs:
        if run.has_completed and run.reason is not None:
            told.setdefault(without_numbers(run.reason), []).append(run)
    for first, *others in list(told.values())[:_MOST_PROBLEMS]:
        yield f"{1 + len(others)} of {len(runs)} runs completed, but {first.reason}; hpcml show {short_uid(first.uid)}"
    if n_more := sum(len(doubtful) for doubtful in list(told.values())[_MOST_PROBLEMS:]):
        yield f"{n_more} more completed with other reasons to look at them: hpcml runs --columns state,reason"


def _not_found(runs: Sequence[RunEnd]) -> Iterator[str]:
    """Yield in a line which file of the user's runs did not find in their copy of the user's folder."""
    lacking = [run.not_copied for run in runs if run.not_copied is not None]
    if lacking:
        yield f"{len(lacking)} of {len(runs)} runs did not find {lacking[0]}; hpcml run -n lists what is copied"


def _unread(runs: Sequence[RunEnd]) -> Iterator[str]:
    """Yield a line for each rule and file of metrics of which completed runs could not be read, with where to look."""
    told: dict[str, list[str]] = {}
    for run in runs:
        if run.has_completed:
            for problem in run.unread:
                told.setdefault(problem, []).append(run.uid)
    for problem, uids in list(told.items())[:_MOST_PROBLEMS]:
        yield (
            f"in {len(uids)} of {len(runs)} runs {problem}: hpcml logs {short_uid(uids[0])} shows what was "
            "printed, hpcml read takes another rule or file"
        )
    if (n_more := len(told) - _MOST_PROBLEMS) > 0:
        uid = list(told.values())[_MOST_PROBLEMS][0]
        yield f"{n_more} more such problem{'s' if n_more > 1 else ''} of metrics: hpcml show {uid}"


def _without_objective(runs: Sequence[RunEnd]) -> Iterator[str]:
    """Yield in a line how many programs of the user's own reported something, but not the metric to compare by."""
    silent = [
        run
        for run in runs
        if run.is_own and run.has_completed and run.metrics and run.objective not in run.metrics
        if len(run.metrics) > 1 or run.objective != DEFAULT_METRIC  # else its only metric judges it
    ]
    if silent:
        names = most_telling(silent[0].metrics)
        listed = ", ".join([*names[:_MOST_NAMES], *(["..."] if len(names) > _MOST_NAMES else [])])
        name = shlex.quote(names[0]) if len(names) == 1 else "NAME"
        lacks = f"no {silent[0].objective}, their objective.metric, but " * (silent[0].objective != DEFAULT_METRIC)
        yield (
            f"{len(silent)} of {len(runs)} runs reported {lacks}{listed}: objective.metric={name} says which counts, "
            f"and --metric {name} judges these"
        )


def _in_another_precision(runs: Sequence[RunEnd]) -> Iterator[str]:
    """Yield a line for each precision in which completed runs did not compute although they were to."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for run in runs:
        if run.has_completed and contradicts(run.requested, run.effective):
            found.setdefault((run.requested, run.effective), []).append(run.uid)
    told = list(found.items())
    for (requested, effective), uids in told[:_MOST_PROBLEMS]:
        yield (
            f"{len(uids)} of {len(runs)} runs were to compute in {requested}, and effective is {effective}: "
            f"hpcml show {short_uid(uids[0])}"
        )
    if others := sum(len(uids) for _, uids in told[_MOST_PROBLEMS:]):
        yield f"{others} more did not compute in the precision that was asked for: hpcml runs"


def _changed(runs: Sequence[RunEnd]) -> Iterator[str]:
    """Yield a line for each file and folder of the user's own that the runs share, and that changed meanwhile."""
    during: dict[str, list[str]] = {}
    for run in runs:
        for place in run.touched:
            during.setdefault(place, []).append(run.uid)
    for place, uids in sorted(during.items()):
        yield (
            f"{place} changed while {len(uids)} of these runs, which share it, went on: it is your own, and one run "
            f"may have read what another wrote; hpcml show {uids[0]}"
        )


def _left_behind(runs: Sequence[RunEnd]) -> Iterator[str]:
    """Yield a line where programs ended while something that they had started was at work, with what to do."""
    left = [run for run in runs if run.left_behind is not None]
    if left:
        yield (
            f"{len(left)} of {len(runs)} runs ended with their program while it had left {left[0].left_behind} "
            "at work, which was killed then: let it wait for what it starts (wait, no daemon); "
            f"hpcml show {left[0].uid}"
        )
