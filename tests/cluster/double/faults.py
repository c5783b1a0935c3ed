"""What a double does wrong or differently, on demand: a file that tests write and its server reads at each call."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Settings and faults; programs are named, as submit, ask, cancel and change: `Dialect.kind_of` sorts them."""

    down: tuple[str, ...] = ()  # no server is reached
    hung: tuple[str, ...] = ()  # not even heard, and no answer for ever
    hung_after: tuple[str, ...] = ()  # done, but no answer for ever
    fail_next: dict[str, int] = field(default_factory=dict)  # the first n calls are not heard
    banner: str = ""  # what a site prints before every answer
    mute: bool = False  # a submission does not print its id, and succeeds
    refusal: str = ""  # the site's own words against a submission
    closed: bool = False  # nothing starts
    forgotten: tuple[str, ...] = ()  # ids that the scheduler no longer knows
    states: dict[str, str] = field(default_factory=dict)  # shown instead of the true one, by id


def write_faults(state: Path, faults: Faults) -> None:
    fresh = state / "faults.new"
    fresh.write_text(json.dumps(asdict(faults)))
    os.replace(fresh, state / "faults.json")  # noqa: PTH105


def read_faults(state: Path) -> Faults:
    try:
        return Faults(**json.loads((state / "faults.json").read_text()))
    except FileNotFoundError:
        return Faults()
