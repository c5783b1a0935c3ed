from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from image_runs import Recorded, config_of, read_rank0, start, start_ranks

from hpcml.runs.journal import Event, Metrics, read_journal
from tests.effort import times

pytestmark = pytest.mark.torch
STEPS = 24


def ended(ranks: list[subprocess.Popen[str]]) -> list[int]:
    ends = [process.communicate(timeout=300)[1] for process in ranks]
    assert all("Traceback" not in end for end in ends), ends
    return [process.returncode for process in ranks]


def wait_for_step(run_dir: Path, step: int, ranks: list[subprocess.Popen[str]], attempt: int = 0) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and all(process.poll() is None for process in ranks):
        for path in run_dir.glob(f"journal/{attempt}-*-rank0.jsonl"):
            if any(isinstance(r, Metrics) and r.step >= step for r in read_journal(path).records):
                return
        time.sleep(0.005)
    for process in ranks:
        process.kill()  # who waits for one that has ended would wait for half an hour
    pytest.fail(f"step {step} was not reached: {[process.communicate()[1] for process in ranks]}")


def events_of(run_dir: Path, attempt: int, name: str, rank: int = 0) -> list[dict[str, Any]]:
    (path,) = run_dir.glob(f"journal/{attempt}-*-rank{rank}.jsonl")
    return [r.details for r in read_journal(path).records if isinstance(r, Event) and r.name == name]


def train(run_dir: Path, config: dict[str, Any], count: int, attempt: int = 0) -> Recorded:
    assert ended(start_ranks(run_dir, config, count, HPCML_ATTEMPT=str(attempt))) == [0] * count
    return read_rank0(run_dir, attempt)


def interrupt(run_dir: Path, config: dict[str, Any], count: int, number: signal.Signals) -> Recorded:
    """Train until step 7, then send *number* to the last rank alone; return what rank 0 reported."""
    ranks = start_ranks(run_dir, config, count)
    wait_for_step(run_dir, 7, ranks)
    ranks[-1].send_signal(number)
    assert ended(ranks) == [75] * count
    return read_rank0(run_dir)


@pytest.mark.parametrize(
    ("precision", "count", "number"),
    [
        ("fp32", 1, signal.SIGUSR1),
        ("amp_fp16", 2, signal.SIGTERM),  # emulated products, and a real GradScaler
        ("fp32", 3, signal.SIGUSR1),  # of three addends the order matters
        ("fp32", 1, signal.SIGTERM),
        ("amp_fp16", 1, signal.SIGUSR1),
        ("fp32", 2, signal.SIGUSR1),
    ][: times(3, 6)],
)
def test_a_run_that_was_interrupted_ends_with_the_same_weights_bit_for_bit(
    tmp_path: Path, precision: str, count: int, number: signal.Signals
) -> None:
    config = config_of(precision, training__steps=STEPS, training__batch_size=48, training__eval_every=8)
    whole = train(tmp_path / "whole", config, count)

    before = interrupt(tmp_path / "run", config, count, number)
    after = train(tmp_path / "run", config, count, attempt=1)

    left_at = before.metrics[-1].step
    assert 7 <= left_at < STEPS
    assert "final" not in before.events
    assert before.events["checkpoint"]["step"] == after.events["resumed"]["step"] == left_at
    assert after.events["resumed"]["path"] == f"checkpoints/step{left_at}-attempt0"
    assert [record.step for record in after.metrics] == list(range(left_at + 1, STEPS + 1))
    for name in ("loss", "val_loss", "val_accuracy", "loss_scale", "skipped_steps"):
        assert before.series(name) + after.series(name) == whole.series(name), name
    assert after.events["final"] == whole.events["final"]
    assert after.events.get("emulated_products") == whole.events.get("emulated_products")
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_a_run_that_was_killed_goes_on_from_its_last_periodic_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = config_of("amp_fp16", training__steps=STEPS, training__eval_every=8, training__checkpoint_every=5)
    whole = train(tmp_path / "whole", config, 1)
    ranks = start_ranks(run_dir, config, 1)
    wait_for_step(run_dir, 16, ranks)
    ranks[0].kill()
    ranks[0].communicate()
    kept = sorted(path.name for path in (run_dir / "checkpoints").glob("step*"))

    after = train(run_dir, config, 1, attempt=1)

    assert kept in (["step10-attempt0", "step15-attempt0"], ["step15-attempt0", "step20-attempt0"])
    assert f"step{after.events['resumed']['step']}-attempt0" == kept[-1]
    assert after.events["final"] == whole.events["final"]


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = config_of(training__steps=STEPS)
    left_at = interrupt(run_dir, config, 1, signal.SIGUSR1).metrics[-1].step
    whole = (run_dir / "checkpoints" / f"step{left_at}-attempt0").read_bytes()
    torn = run_dir / "checkpoints" / f".step{left_at + 1}-attempt0.rank0.new"
    torn.write_bytes(whole[: len(whole) // 2])

    after = train(run_dir, config, 1, attempt=1)

    assert after.events["resumed"]["step"] == left_at
    assert not torn.exists()


def test_a_checkpoint_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "run" / "checkpoints" / "step3-attempt0"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"no checkpoint")

    process = start(tmp_path / "run", config_of(), HPCML_ATTEMPT="1")

    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 2
    assert stderr.startswith(f"image_classification: cannot go on from {bad}: ")
    assert stderr.count("\n") == 1


def test_checkpoints_of_another_precision_are_refused(tmp_path: Path) -> None:
    interrupt(tmp_path / "run", config_of(training__steps=STEPS), 1, signal.SIGUSR1)

    process = start(tmp_path / "run", config_of("amp_fp16"), HPCML_ATTEMPT="1")

    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "a checkpoint of precision=fp32 is no start for amp_fp16" in stderr


@pytest.mark.parametrize("count", [1, 2])
def test_on_a_full_disk_nobody_leaves_and_the_training_is_completed(tmp_path: Path, count: int) -> None:
    run_dir = tmp_path / "run"
    ranks = start_ranks(run_dir, config_of(training__steps=STEPS), count)
    wait_for_step(run_dir, 5, ranks)
    (run_dir / "checkpoints").symlink_to("/dev/full")  # cannot be a folder: stands for a disk that takes nothing more
    ranks[-1].send_signal(signal.SIGUSR1)

    assert ended(ranks) == [0] * count

    assert len(events_of(run_dir, 0, "checkpoint_failed")) == 1  # tried again after ten seconds only
    assert "final" in read_rank0(run_dir).events
