"""What the double does wrong or differently, on demand: a file that tests write and the server reads at each call."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

ALL = ("qsub", "qstat", "qdel", "qsig", "qalter", "qrerun", "qselect", "pbsnodes")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Settings and faults; programs are named."""

    down: tuple[str, ...] = ()  # "Connection refused"
    hung: tuple[str, ...] = ()  # not even heard, and no answer for ever
    hung_after: tuple[str, ...] = ()  # done, but no answer for ever
    fail_next: dict[str, int] = field(default_factory=dict)  # the first n calls find no server
    history: bool = True
    json: str = "first"  # first: git master shows one job only; all; invalid
    banner: str = ""  # what a site's wrapper prints around the id
    mute: bool = False  # qsub does not print the id
    refusal: str = ""  # a hook's own words
    queue_disabled: bool = False
    queue_stopped: bool = False
    queue_limits: dict[str, str] = field(default_factory=dict)  # resources_max of every queue
    no_queues: tuple[str, ...] = ()  # names that are none; any other is a queue
    account_wanted: bool = False
    forgotten: tuple[int, ...] = ()  # job numbers that the server no longer knows
    qdel_ignored: bool = False  # accepted, without effect
    closed: bool = False  # nothing starts
    all_running: bool = False  # what waits is shown as running, without a process
    operator: bool = False  # the user may use qrerun, and change the walltime of a job that runs
    next_number: int | None = None  # the server skipped ids
    array_limit: int = 10_000
    queue_array_limit: int | None = None  # of every queue
    kill_delay_s: float = 1.0  # PBS: 10


def write_faults(state: Path, faults: Faults) -> None:
    fresh = state / "faults.new"
    fresh.write_text(json.dumps(asdict(faults)))
    os.replace(fresh, state / "faults.json")  # noqa: PTH105


def read_faults(state: Path) -> Faults:
    try:
        return Faults(**json.loads((state / "faults.json").read_text()))
    except FileNotFoundError:
        return Faults()
