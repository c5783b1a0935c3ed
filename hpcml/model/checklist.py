"""What a reviewer asks of a comparison, with the answers that records give (``hpcml compare --checklist``).

hpcml/analysis answers, hpcml/report renders; nothing here is computed. The questions are those of the NeurIPS Paper
Checklist (https://neurips.cc/public/guides/PaperChecklist) and of MLPerf's training rules
(https://github.com/mlcommons/training_policies/blob/master/training_rules.adoc) that recorded runs can answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcml.model.state import State

NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTime:
    """One attempt of a run that started: how long its program ran, and whether its work led to the run's outcome."""

    number: int
    state: State
    wall_s: float | None  # None: it goes on, or nobody lived to see its end
    counts: bool  # False: a later attempt began anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """The time that runs held nodes and GPUs, by the program's own time, over all of their attempts.

    `lost_*` are those of it that led to no completed run: failed, cancelled, begun anew. GPU-hours are None where the
    number of GPUs of a run is not known.
    """

    n_runs: int
    n_attempts: int
    node_h: float
    gpu_h: float | None
    lost_node_h: float
    lost_gpu_h: float | None
    n_unknown: int  # attempts that are over, and nobody knows for how long they ran: they are in no sum
    n_running: int  # attempts that go on: they are in no sum


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistAnswer:
    """One question of a reviewer; `lines` is empty where the records do not say it."""

    key: str
    question: str
    lines: tuple[str, ...]
    asked_by: tuple[str, ...]  # items of the checklist, sections of the rules

    @property
    def is_recorded(self) -> bool:
        """Whether the records answer it."""
        return bool(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """All questions, in the order in which they are asked, and the hours as numbers."""

    answers: tuple[ChecklistAnswer, ...]
    hours: Hours  # of the compared runs
    all_hours: Hours  # of all runs of their experiments


Attempts = Mapping[str, tuple[AttemptTime, ...]]  # by uid
