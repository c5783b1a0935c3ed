"""`hpcml diff`: two runs side by side, by settings, environment and outcome. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcml.model.records import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiffEntry:
    """One setting, fact or result of two runs, side by side; None is a value that the run does not have."""

    section: Literal["settings", "environment", "outcome"]
    key: str
    first: Any
    second: Any

    @property
    def differs(self) -> bool:
        """Whether the two values differ. Two nan are equal; True and 1 differ, since they are different settings."""
        if self.first != self.first and self.second != self.second:
            return False
        # True == 1 in Python, and yet it is another setting
        return isinstance(self.first, bool) is not isinstance(self.second, bool) or bool(self.first != self.second)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """The differences between two runs."""

    first: RunRecord
    second: RunRecord
    contrasts: Sequence[RunDiffEntry]  # section by section, only what differs unless all was asked for
    alike: int  # how many things are the same


_ORIGIN = ("git_commit", "git_dirty", "scheduler")
_OUTCOME = (
    "state",
    "cause",
    "reason",
    "incomplete",
    "exit_code",
    "attempt",
    "wall_s",
    "precision_effective",
    "numerics",
)


def contrast(
    first: RunRecord,
    second: RunRecord,
    *,
    codes: tuple[str | None, str | None] = (None, None),
    everything: bool = False,
) -> RunDiff:
    """Return the settings, facts and results in which the two runs differ, or with *everything* all of them.

    *codes* are the names of the code versions that they ran, in the same order; None: not recorded. A key that only one
    run has differs, with None on the other side.
    """
    found = list(_contrasts(first, second, codes))
    differing = [each for each in found if each.differs]
    return RunDiff(
        first=first,
        second=second,
        contrasts=found if everything else differing,
        alike=len(found) - len(differing),
    )


def _contrasts(first: RunRecord, second: RunRecord, codes: tuple[str | None, str | None]) -> Iterator[RunDiffEntry]:
    for key, left, right in _paired(first.params, second.params):
        yield RunDiffEntry(section="settings", key=key, first=left, second=right)
    for key in _ORIGIN:
        yield RunDiffEntry(section="environment", key=key, first=getattr(first, key), second=getattr(second, key))
    yield RunDiffEntry(section="environment", key="code", first=codes[0], second=codes[1])
    for key, left, right in _paired(first.facts, second.facts):
        yield RunDiffEntry(section="environment", key=key, first=left, second=right)
    for key in _OUTCOME:
        yield RunDiffEntry(section="outcome", key=key, first=getattr(first, key), second=getattr(second, key))
    for key, left, right in _paired(_last_values(first), _last_values(second)):
        yield RunDiffEntry(section="outcome", key=key, first=left, second=right)


def _paired(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted({*first, *second}):
        yield key, first.get(key), second.get(key)


def _last_values(run: RunRecord) -> dict[str, float | None]:
    return {f"metrics.{name}": summary.last_or_nan for name, summary in run.metrics.items()}
