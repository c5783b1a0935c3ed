"""What a builder that is killed leaves working: nothing, whenever it is killed; and who cleans up waits for that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from hpcml.images.guard import await_end, guarded
from tests.images.user import LONGEST_S

# A builder that is killed before it has given the word, and one that is killed while its program works.
BEFORE = """
import os, signal, sys
from pathlib import Path
from hpcml.images.guard import behind_a_gate
process = behind_a_gate(["touch", "began"], folder=Path(sys.argv[1]), environ=os.environ)
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
WHILE = """
import os, signal, sys
from pathlib import Path
from hpcml.images.guard import guarded
with guarded(["sh", "-c", "echo begun; sleep 600"], folder=Path(sys.argv[1]), environ=os.environ) as process:
    process.stdout.readline()
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(program: str, folder: Path) -> int:
    """Return the process that *program* has started before it killed itself."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    assert done.returncode < 0, done.stderr
    return int(done.stdout)


def await_the_end_of(pid: int) -> None:
    deadline = time.monotonic() + LONGEST_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_program_whose_builder_dies_before_it_is_guarded_never_begins(tmp_path: Path) -> None:
    pid = killed(BEFORE, tmp_path)

    await_the_end_of(pid)

    assert not (tmp_path / "began").exists()


def test_a_program_is_ended_after_its_builder_and_waited_for_by_who_cleans_up(tmp_path: Path) -> None:
    group = killed(WHILE, tmp_path)
    waits: list[None] = []

    await_end(tmp_path, on_wait=lambda: waits.append(None), patience_s=LONGEST_S)

    assert not Path(f"/proc/{group}").exists()


def test_who_cleans_up_waits_as_long_as_something_works_there(tmp_path: Path) -> None:
    worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (tmp_path / "group").write_text(f"{worker.pid} {os.uname().nodename}")
    waiting = threading.Event()
    over = threading.Thread(target=lambda: await_end(tmp_path, on_wait=waiting.set, patience_s=LONGEST_S))
    over.start()
    began = waiting.wait(LONGEST_S)
    was_waiting = over.is_alive()

    worker.kill()
    worker.wait(LONGEST_S)
    over.join(LONGEST_S)

    assert began
    assert was_waiting
    assert not over.is_alive()


def test_nobody_waits_for_another_host_or_for_what_says_nothing(tmp_path: Path) -> None:
    waits: list[None] = []
    for words in (f"{os.getpid()} elsewhere", "", "x y", f"{2**70} {os.uname().nodename}"):
        (tmp_path / "group").write_text(words)
        await_end(tmp_path, on_wait=lambda: waits.append(None))
    (tmp_path / "group").unlink()
    await_end(tmp_path, on_wait=lambda: waits.append(None))

    assert waits == []


def test_what_a_program_prints_is_read_and_its_status_is_its_own(tmp_path: Path) -> None:
    with guarded(["sh", "-c", "echo out; echo err >&2; cat; exit 3"], folder=tmp_path, environ=os.environ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        code = process.wait(LONGEST_S)

    assert said == "out\nerr\n"  # cat has had nothing to read
    assert code == 3
