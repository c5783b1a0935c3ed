"""What a scheduler answers to the question for the walltime."""

from __future__ import annotations

import shlex
import time

import pytest
from hpcml.runs.orders import read_orders

from hpcml.agent.time_limit import AskedLimit
from tests.agent.node import ON_SLURM, MakeRun


def asked(make_run: MakeRun, says: str) -> tuple[int | None, list[tuple[str, dict[str, object]]]]:
    """Return after how long the program would be stopped by the answer *says*, and what was journalled."""
    told: list[tuple[str, dict[str, object]]] = []
    orders = read_orders(make_run("pass", *ON_SLURM, "resources.walltime=10m").manifest)

    def tell(name: str, **details: object) -> None:
        told.append((name, details))

    limit = AskedLimit(shlex.join(["sh", "-c", says]), {"PATH": "/usr/bin:/bin"}, orders, tell, spent_s=None)
    limit.ask()
    end = time.monotonic() + 60
    while limit.is_awaited() and time.monotonic() < end:
        limit.deadlines()
        time.sleep(0.01)
    found = limit.deadlines()
    return None if found is None else found.stop_after_s, told


@pytest.mark.parametrize("more", ["", "; echo goodbye", "; echo '[1]'; echo 7"])
def test_lines_of_the_sites_own_beside_the_answer_change_nothing(make_run: MakeRun, more: str) -> None:
    stop_after_s, told = asked(make_run, f"""echo hello; echo '{{"limit_s": 1200, "left_s": null}}'{more}""")

    assert stop_after_s == 1140
    assert told == [("time_limit", {"limit_s": 1200, "before_s": 600})]


@pytest.mark.parametrize(
    ("says", "why"),
    [("echo hello", "hello"), ("true", "exit status 0"), ("echo out; echo no server >&2; exit 4", "no server")],
)
def test_what_is_no_answer_is_told_and_leaves_the_limit_as_planned(make_run: MakeRun, says: str, why: str) -> None:
    assert asked(make_run, says) == (None, [("agent_trouble", {"what": "time limit", "error": why})])
