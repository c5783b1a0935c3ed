from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpcml.runs.liveness import Liveness, ProcessIdentity, boot_id, liveness_of, pid_here
from tests.runs.namespaces import inside

OURS = ProcessIdentity.of_this_process()
ASKS = (
    "import json, sys; from hpcml.runs.liveness import ProcessIdentity, liveness_of, pid_here; "
    "process = ProcessIdentity.from_details(json.loads(sys.argv[1])); "
    "print(liveness_of(process).name, pid_here(process))"
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def seen_from_inside(process: ProcessIdentity, *more: str) -> str:
    words = [*inside(), *more, sys.executable, "-c", ASKS, json.dumps(process.as_details())]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def test_a_process_is_alive_until_it_ends(child: subprocess.Popen[bytes]) -> None:
    process = ProcessIdentity.of_process(child.pid)
    assert liveness_of(process) is Liveness.ALIVE
    assert pid_here(process) == child.pid

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert liveness_of(process) is Liveness.DEAD  # a zombie: nobody has waited for it yet
    child.wait()
    assert liveness_of(process) is Liveness.DEAD
    assert pid_here(process) is None
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of_process(child.pid)


def test_a_recycled_number_is_another_process() -> None:
    assert OURS.start_ticks is not None
    assert liveness_of(replace(OURS, start_ticks=OURS.start_ticks - 1)) is Liveness.DEAD


def test_nothing_is_said_of_another_host() -> None:
    assert liveness_of(replace(OURS, host="login9", pid=2**22 + 1)) is Liveness.UNKNOWN


def test_what_ran_before_this_machine_was_started_is_dead() -> None:
    assert liveness_of(replace(OURS, boot_id="0" * 32, created_at=1.0)) is Liveness.DEAD


def test_what_began_in_another_boot_after_this_one_is_on_another_machine_of_the_same_name() -> None:
    assert liveness_of(replace(OURS, boot_id="0" * 32, created_at=time.time())) is Liveness.UNKNOWN


def test_a_process_of_another_namespace_is_not_looked_for_by_its_number(child: subprocess.Popen[bytes]) -> None:
    process = ProcessIdentity.of_process(child.pid)

    assert seen_from_inside(process) == "UNKNOWN None"
    assert seen_from_inside(replace(process, pid=1)) == "UNKNOWN None"
    assert seen_from_inside(replace(process, pid=2**22 + 1)) == "UNKNOWN None"


def test_where_proc_shows_another_namespace_its_numbers_are_not_ours(child: subprocess.Popen[bytes]) -> None:
    process = ProcessIdentity.of_process(child.pid)
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", sys.executable, "-c", ASKS]
    inside()

    done = subprocess.run([*words, json.dumps(process.as_details())], capture_output=True, text=True, check=True)

    assert done.stdout.split()[1] == "None"  # it could be sent no signal
    assert done.stdout.split()[0] != "DEAD"


@pytest.mark.parametrize("details", [{}, {"pid": 1}, {"hostname": "node1"}, {"pid": "1", "hostname": "node1"}])
def test_details_without_a_process_name_none(details: dict[str, object]) -> None:
    assert ProcessIdentity.from_details(details) is None


def test_an_identity_survives_being_written_down() -> None:
    assert ProcessIdentity.from_details(json.loads(json.dumps(OURS.as_details()))) == OURS
    found = ProcessIdentity.at(OURS.place, OURS.pid, start_ticks=OURS.start_ticks)
    assert liveness_of(found) is Liveness.ALIVE
    assert OURS.place.count("@") == 2
    assert not set(OURS.place) & set("./")
    assert boot_id().startswith(OURS.place.split("@")[1])
