from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpointing import connect, events, names, spawn, text

import hpcml_client

_LOOP = """
import pathlib, sys, time
import hpcml_client
with hpcml_client.connect() as run:
    checkpoints = run.checkpoints(by_hand=sys.argv[1] if len(sys.argv) > 1 else None)
    saved = checkpoints.latest()
    start = int(pathlib.Path(saved).read_text()) if saved else 0
    print("from", start, flush=True)
    for step in range(start + 1, 400):
        time.sleep(0.01)
        checkpoints.after(step, lambda path: pathlib.Path(path).write_text(str(step)))
"""


@pytest.fixture(autouse=True)
def handlers_as_found() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before, "a test left a handler behind"


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def catches(pid: int, number: signal.Signals) -> bool:
    (mask,) = (
        line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_makes_a_program_leave_at_a_checkpoint_from_which_it_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = spawn(_LOOP, HPCML_RUN_DIR=str(tmp_path))
    assert first_line(process) == "from 0"
    assert catches(process.pid, signal.SIGUSR1)  # what the agent looks for before it sends one

    process.send_signal(number)

    _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (75, "")
    (event,) = events(tmp_path, "checkpoint")
    step = event["step"]
    assert event == {"path": f"checkpoints/step{step}-attempt0", "step": step, "bytes": 1, "wall_s": event["wall_s"]}
    again = spawn(_LOOP, HPCML_RUN_DIR=str(tmp_path), HPCML_ATTEMPT="1")
    assert first_line(again) == f"from {step}"
    again.send_signal(number)
    again.communicate(timeout=300)
    assert again.returncode == 75


def test_a_second_signal_does_not_disturb_the_leaving(tmp_path: Path) -> None:
    process = spawn(_LOOP, HPCML_RUN_DIR=str(tmp_path))
    first_line(process)

    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.0005)

    assert process.communicate() == ("", "")
    assert process.returncode == 75


def test_by_hand_checkpoints_lie_where_the_author_says(tmp_path: Path) -> None:
    process = spawn(_LOOP, str(tmp_path / "mine"))
    first_line(process)

    process.send_signal(signal.SIGTERM)

    process.communicate(timeout=300)
    assert process.returncode == 75
    assert [path.name.partition("-")[2] for path in (tmp_path / "mine").iterdir()] == ["attempt0"]


def test_by_hand_without_a_folder_nothing_is_caught_and_nothing_is_saved(tmp_path: Path) -> None:
    with hpcml_client.connect({}) as run:
        checkpoints = run.checkpoints(every_steps=1)

        assert (checkpoints.directory, checkpoints.latest(), checkpoints.asked) == (None, None, False)
        assert not checkpoints.due(1)
        assert not checkpoints.save(1, text())
        checkpoints.after(1, text())
        checkpoints.clear()
        checkpoints.leave_if_asked()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert list(tmp_path.iterdir()) == []


def test_one_is_due_by_steps_by_seconds_and_when_asked(tmp_path: Path) -> None:
    now = 100.0
    with connect(tmp_path) as run:
        run.checkpoints()  # its folder
        made = hpcml_client.Checkpoints(run, run._checkpoints[0]._files, every_steps=10, every_s=60, now=lambda: now)

        assert [step for step in range(31) if made.due(step)] == [10, 20, 30]
        now = 160.0
        assert made.due(3)
        assert made.save(3, text())
        assert not made.due(4)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert made.asked
        assert made.due(4)
        made.close()


def test_nobody_leaves_before_what_was_asked_for_is_saved(tmp_path: Path) -> None:
    with connect(tmp_path) as run:
        checkpoints = run.checkpoints()
        assert checkpoints.save(1, text())
        os.kill(os.getpid(), signal.SIGUSR1)
        checkpoints.leave_if_asked()  # the one of step 1 was saved before

        assert checkpoints.save(2, text())
        with pytest.raises(SystemExit) as left:
            checkpoints.leave_if_asked()

        assert left.value.code == hpcml_client.EX_TEMPFAIL == 75
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def test_the_newest_are_kept_and_what_was_left_unfinished_is_removed(tmp_path: Path) -> None:
    with connect(tmp_path) as run:
        checkpoints = run.checkpoints(keep=2)
        for step in (8, 9, 10):
            checkpoints.save(step, text())
    assert names(tmp_path) == ["step10-attempt0", "step9-attempt0"]
    for name in (".step11-attempt0.rank0.new", ".step8-attempt0.rank0.old", ".step11-attempt0.rank3.new", "mine.txt"):
        (tmp_path / "checkpoints" / name).write_text("")

    with connect(tmp_path, attempt=1) as run:
        checkpoints = run.checkpoints()
        saved = checkpoints.latest()
        checkpoints.save(11, text())

    assert saved == (str(tmp_path / "checkpoints" / "step10-attempt0"), 10)
    # those of other ranks and of other people are not this process's to remove
    assert names(tmp_path) == [".step11-attempt0.rank3.new", "mine.txt", "step10-attempt0", "step11-attempt1"]


def test_an_attempt_that_starts_from_scratch_is_followed_by_one_that_goes_on_from_it(tmp_path: Path) -> None:
    with connect(tmp_path) as run:
        run.checkpoints().save(300, text())
    with connect(tmp_path, attempt=1) as run:
        run.checkpoints().save(5, text())
        saved = run.checkpoints().latest()

    assert saved is not None
    assert saved.step == 5


def test_who_goes_back_forgets_what_came_after(tmp_path: Path) -> None:
    with connect(tmp_path) as run:
        checkpoints = run.checkpoints(keep=3)
        for step in (10, 20, 30, 15):
            checkpoints.save(step, text())

    assert names(tmp_path) == ["step10-attempt0", "step15-attempt0"]


def test_a_directory_is_a_checkpoint_too_and_may_be_saved_again(tmp_path: Path) -> None:
    def write(path: str) -> None:
        (Path(path) / "deep").mkdir(parents=True)
        (Path(path) / "deep" / "a").write_bytes(b"12345")
        (Path(path) / "b").write_bytes(b"678")

    with connect(tmp_path) as run:
        checkpoints = run.checkpoints(keep=1)
        assert checkpoints.save(1, write)
        assert checkpoints.save(1, write)
        assert checkpoints.save(2, write)

    assert [event["bytes"] for event in events(tmp_path, "checkpoint")] == [8, 8, 8]
    assert names(tmp_path) == ["step2-attempt0"]
    assert (tmp_path / "checkpoints" / "step2-attempt0" / "deep" / "a").read_bytes() == b"12345"


def test_a_mistake_of_the_writer_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: str) -> None:
        Path(path).write_text("half")
        raise KeyError("model")

    with connect(tmp_path) as run:
        checkpoints = run.checkpoints()
        with pytest.raises(KeyError, match="model"):
            checkpoints.save(1, fail)
        with pytest.raises(ValueError, match=r"nothing was written to .*: a checkpoint must go exactly to the path"):
            checkpoints.save(1, lambda path: Path(path + ".npy").write_text(""))
        assert checkpoints.latest() is None
        assert checkpoints.save(2, text())

    assert names(tmp_path) == ["step2-attempt0"]


def test_other_ranks_write_nothing_and_find_what_the_first_has_written(tmp_path: Path) -> None:
    with connect(tmp_path, RANK="1", WORLD_SIZE="2") as second, connect(tmp_path, RANK="0", WORLD_SIZE="2") as first:
        theirs, ours = second.checkpoints(), first.checkpoints()
        assert theirs.save(1, lambda _: pytest.fail("called"))
        assert theirs.latest() is None
        assert ours.save(1, text())
        theirs.clear()

        assert theirs.latest() == ours.latest() == (str(tmp_path / "checkpoints" / "step1-attempt0"), 1)


def test_a_sharded_checkpoint_is_there_once_all_its_parts_are(tmp_path: Path) -> None:
    ranks = [connect(tmp_path, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    first, second = (run.checkpoints(sharded=True, keep=1) for run in ranks)

    for step in (1, 2, 3):
        first.save(step, text(f"first {step}"))
        found = first.latest()
        assert (found.step if found else 0) == step - 1
        second.save(step, text(f"second {step}"))

    assert names(tmp_path) == ["step2-attempt0-rank0of2", "step3-attempt0-rank0of2", "step3-attempt0-rank1of2"]
    for checkpoints, name in ((first, "first 3"), (second, "second 3")):
        saved = checkpoints.latest()
        assert saved is not None
        assert Path(saved).read_text() == name
    for run in reversed(ranks):
        run.close()


def test_a_handler_that_was_there_is_called_too_and_comes_back(tmp_path: Path) -> None:
    called = []
    before = signal.signal(signal.SIGTERM, lambda number, _: called.append(number))
    try:
        with connect(tmp_path) as run:
            checkpoints = run.checkpoints()
            os.kill(os.getpid(), signal.SIGTERM)
            assert checkpoints.asked
            assert called == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        assert called == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_of_the_main_thread_it_is_a_clear_error(tmp_path: Path) -> None:
    raised: list[Exception] = []

    def ask() -> None:
        try:
            run.checkpoints()
        except RuntimeError as error:
            raised.append(error)

    with connect(tmp_path) as run:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    assert [str(error) for error in raised] == [
        "checkpoints must be asked for in the main thread: Python catches signals only there"
    ]


def test_a_forked_worker_can_be_ended_by_its_parent_and_is_not_asked(tmp_path: Path) -> None:
    script = """
import multiprocessing, os, signal, time
import hpcml_client
with hpcml_client.connect() as run:
    run.checkpoints()
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    time.sleep(0.3)
    os.kill(worker.pid, signal.SIGUSR1)
    time.sleep(0.1)
    assert worker.is_alive()
    worker.terminate()
    worker.join(10)
    print(worker.exitcode, signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)
"""
    process = spawn(script, HPCML_RUN_DIR=str(tmp_path))

    stdout, stderr = process.communicate(timeout=300)

    assert (stdout, stderr) == (f"{-signal.SIGTERM} True\n", "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_steps": 0}, "every_steps=0 must be greater than 0, or None for never"),
        ({"every_s": -1.0}, "every_s=-1.0 must be greater than 0, or None for never"),
        ({"keep": 0}, "keep=0 must be at least 1: the newest checkpoint is what a run goes on from"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(tmp_path: Path, settings: dict[str, float], message: str) -> None:
    with connect(tmp_path) as run, pytest.raises(ValueError, match=message):
        run.checkpoints(**settings)  # type: ignore[arg-type]


@pytest.mark.torch
def test_a_data_loader_outlives_a_sigterm_to_all_if_its_workers_ignore_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
import os, signal, time
import hpcml_client
os.setpgid(0, 0)
def ignore(_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with hpcml_client.connect() as run:
    checkpoints = run.checkpoints()
    import torch
    numbers = torch.utils.data.TensorDataset(torch.arange(2000.0))
    loader = torch.utils.data.DataLoader(numbers, num_workers=1, worker_init_fn=ignore)
    for step, batch in enumerate(loader, 1):
        if step == 1:
            print("going", flush=True)
        time.sleep(0.02)
        checkpoints.after(step, lambda path: torch.save(batch, path))
"""
    process = spawn(script, HPCML_RUN_DIR=str(tmp_path))
    assert first_line(process) == "going"

    os.killpg(process.pid, signal.SIGTERM)

    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75, stderr  # without it: RuntimeError, DataLoader worker is killed by signal
