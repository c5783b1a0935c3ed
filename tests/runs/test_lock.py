from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.runs.lock import Lock, Owner, Patience, kept_alive, owners, try_lock, wait_for

QUICK = Patience(heartbeat_s=0.05, silence_s=0.3, poll_s=0.02)


def taken(folder: Path, name: str = "x") -> Lock:
    lock = try_lock(folder, name)
    assert isinstance(lock, Lock)
    return lock


def leave(folder: Path, owner: Owner, *, age_s: float = 0.0) -> None:
    """Lay the lock of *owner* there, last touched some time ago."""
    folder.mkdir(exist_ok=True)
    (folder / "x").write_text(json.dumps({**owner.process.as_details(), "token": owner.token}))
    os.utime(folder / "x", (time.time() - age_s,) * 2)


def elsewhere() -> Owner:
    return by(host="another-host")


def by(**of: object) -> Owner:
    ours = Owner.ourselves()
    return replace(ours, process=replace(ours.process, **of))


def test_a_lock_is_for_one(tmp_path: Path) -> None:
    first = taken(tmp_path)

    assert isinstance(try_lock(tmp_path, "x"), Owner)
    assert isinstance(try_lock(tmp_path, "y"), Lock)
    first.release()
    assert isinstance(try_lock(tmp_path, "x"), Lock)


def test_a_process_that_died_here_holds_nothing(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from hpcml.runs.lock import try_lock; try_lock(Path({str(tmp_path)!r}), 'x')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(owners(tmp_path)) == ["x"]

    assert isinstance(try_lock(tmp_path, "x"), Lock)


def test_a_process_with_the_number_of_a_dead_one_is_another(tmp_path: Path) -> None:
    leave(tmp_path, by(start_ticks=1))

    assert isinstance(try_lock(tmp_path, "x"), Lock)


def test_silence_on_another_host_is_waited_out(tmp_path: Path) -> None:
    leave(tmp_path, elsewhere(), age_s=3600)
    assert isinstance(try_lock(tmp_path, "x"), Owner)
    began = time.monotonic()

    outcomes = list(wait_for(tmp_path, "x", patience=QUICK))

    assert isinstance(outcomes[-1], Lock)
    assert time.monotonic() - began > QUICK.silence_s


def test_an_owner_on_another_host_that_is_heard_of_keeps_its_lock(tmp_path: Path) -> None:
    leave(tmp_path, elsewhere())
    deadline = time.monotonic() + 1.0

    for outcome in wait_for(tmp_path, "x", patience=QUICK):
        assert isinstance(outcome, Owner)
        os.utime(tmp_path / "x")
        if time.monotonic() > deadline:
            break


def test_an_owner_whose_clock_is_behind_is_believed_while_it_beats(tmp_path: Path) -> None:
    leave(tmp_path, elsewhere(), age_s=3600)
    deadline = time.monotonic() + 1.0

    for beats, outcome in enumerate(wait_for(tmp_path, "x", patience=QUICK)):
        assert isinstance(outcome, Owner)
        os.utime(tmp_path / "x", (time.time() - 3600 + beats,) * 2)
        if time.monotonic() > deadline:
            break


def test_an_owner_says_that_it_lives(tmp_path: Path) -> None:
    lock = taken(tmp_path)
    file = tmp_path / "x"
    os.utime(file, (0, 0))

    with kept_alive(lock, QUICK):
        deadline = time.monotonic() + 10
        while file.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert file.stat().st_mtime > 0

    assert owners(tmp_path) == {}


def test_an_owner_that_was_declared_dead_knows_it_and_takes_nothing_away(tmp_path: Path) -> None:
    lock = taken(tmp_path)
    (tmp_path / "x").rename(tmp_path / "y")
    second = taken(tmp_path)

    assert not lock.is_ours
    lock.release()
    assert second.is_ours


def _work(folder: str, busy: str, turns: int) -> None:
    for _ in range(turns):
        for outcome in wait_for(Path(folder), "x", patience=replace(QUICK, poll_s=0.001)):
            if isinstance(outcome, Lock):
                os.close(os.open(busy, os.O_CREAT | os.O_EXCL))  # fails if somebody else is inside
                time.sleep(0.001)
                Path(busy).unlink()
                outcome.release()


def test_of_many_at_once_one_is_inside_even_when_they_find_a_dead_one_s_lock(tmp_path: Path) -> None:
    leave(tmp_path / "locks", by(start_ticks=1))
    words = (str(tmp_path / "locks"), str(tmp_path / "busy"), 20)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=words) for _ in range(6)]

    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)

    assert [worker.exitcode for worker in workers] == [0] * 6
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_process_that_is_ended_while_it_takes_a_lock_leaves_none(tmp_path: Path) -> None:
    code = (
        "import resource; from pathlib import Path; from hpcml.runs.lock import try_lock\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n"
        f"try_lock(Path({str(tmp_path)!r}), 'x')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0

    assert isinstance(try_lock(tmp_path, "x"), Lock)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(NotADirectoryError):
        try_lock(tmp_path / "file" / "locks", "x")


def test_a_file_in_place_of_the_folder_holds_no_locks(tmp_path: Path) -> None:
    (tmp_path / "queues").write_text("")

    assert owners(tmp_path / "queues") == {}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
@pytest.mark.parametrize(
    ("above", "folder", "file"),
    [(0o700, 0o700, 0o600), (0o755, 0o755, 0o644), (0o1777, 0o1777, 0o644)],
)
def test_a_lock_is_as_open_as_the_folder_above_whatever_the_umask(
    tmp_path: Path, umask: int, above: int, folder: int, file: int
) -> None:
    tmp_path.chmod(above)
    before = os.umask(umask)
    try:
        taken(tmp_path / "locks")
    finally:
        os.umask(before)

    found = [tmp_path / "locks", tmp_path / "locks" / "x"]
    assert [oct(path.stat().st_mode & 0o7777) for path in found] == [oct(folder), oct(file)]
