"""What is known of runs by their files alone, and that no more of these is read than it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hpcml.commands.follow import Reported
from hpcml.commands.selection import Selection
from hpcml.commands.top import RunTop, Sampled, find_runs, follow
from hpcml.errors import StoreError
from hpcml.model.live import RunNow
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.journal import Event, Metrics
from hpcml.runs.layout import RunDir
from hpcml_client.journal import JournalWriter
from tests.store.building import make_run_dir

UID = "20261121-083015-222abcde"
Write = Callable[..., JournalWriter]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(home=tmp_path, store_url=str(tmp_path / "store.db"))


def make(places: Places, uid: str = UID, name: str | None = None, submission: str = "s", **run: Any) -> RunDir:  # noqa: ANN401
    run_dir = RunDir(places.runs / "default" / uid)
    run_dir.journals.mkdir(parents=True)
    said = {
        "format": 1,
        "run": {"name": name, "experiment": "default", **run},
        "provenance": {"submission": submission},
    }
    run_dir.manifest.write_text(json.dumps(said))
    return run_dir


@pytest.fixture
def run_dir(places: Places) -> RunDir:
    return make(places, objective={"metric": "val_accuracy"})


@pytest.fixture
def write(run_dir: RunDir) -> Iterator[Write]:
    """Open journals as their writers do."""
    with ExitStack() as stack:

        def begin(writer: str, attempt: int = 0) -> JournalWriter:
            folder = run_dir.telemetry if writer.startswith("node") else run_dir.journals
            folder.mkdir(exist_ok=True)
            return stack.enter_context(JournalWriter.open(str(folder), run=run_dir.uid, attempt=attempt, writer=writer))

        yield begin


def seen(top: RunTop, *, later_s: float = 0.0) -> RunNow:
    return top.look(time.time() + later_s)[0]


def sample(at_s: float, **values: float) -> dict[str, float]:
    gpu = {f"gpu0.{name}": value for name, value in values.items()}
    return {"gpu0.at_s": at_s, **gpu, "host.at_s": at_s, "host.cpu_s": 3 * at_s, "host.load1": 1.5}


def test_a_run_that_waits_says_as_which_job(run_dir: RunDir, write: Write) -> None:
    write("launch").event("submitted", {"scheduler": "slurm", "job_id": "4711", "array_index": 3})

    run = seen(RunTop(run_dir))

    assert (run.state, run.job) == (State.PENDING, "slurm 4711_3")
    assert run.notes == ["waits in the queue as slurm 4711_3: hpcml status asks what for"]


def test_a_run_is_seen_from_its_beginning_to_its_end_as_files_appear(run_dir: RunDir, write: Write) -> None:
    top = RunTop(run_dir)
    agent, rank = write("agent"), write("rank0")
    agent.event("attempt_started", {"node": 0})
    begun = seen(top)
    rank.event("training", {"steps": 300})
    rank.metrics(7, {"loss": 0.5, "val_accuracy": 0.25})
    node = write("node0")
    node.event("devices", {"gpus": [{"gpu": "gpu0", "model": "H100", "power_limit_w": 700.0}], "interval_s": 1.0})
    node.metrics(0, sample(10.0, power_w=250.0, energy_j=1000.0))
    running = seen(top)
    rank.metrics(8, {"loss": 0.4})
    node.metrics(1, sample(12.0, power_w=300.0, energy_j=1500.0))
    node.event("sampler_ended", {"ticks": 2})
    agent.event("attempt_ended", {"state": "FAILED", "reason": "exit status 3"})
    ended = seen(top)

    assert (begun.state, begun.step, begun.notes) == (State.RUNNING, None, ["no samples yet"])
    assert (running.step, running.steps, running.metrics["loss"].value) == (7, 300, 0.5)
    assert running.gpus[0].values["power_w"] == 250.0
    assert running.notes == []
    assert (ended.state, ended.reason, ended.step) == (State.FAILED, "exit status 3", 8)
    assert (ended.metrics["val_accuracy"].value, ended.metrics["val_accuracy"].step) == (0.25, 7)
    (last,) = ended.nodes
    assert (last.gpus[0].energy_j, last.cores_busy, last.ended) == (500.0, 3.0, "sampling has ended")
    assert ended.ended_at is not None
    assert ended.left_s is None


def test_a_new_attempt_forgets_the_samples_and_the_pace_of_the_one_before(run_dir: RunDir, write: Write) -> None:
    top = RunTop(run_dir)
    write("agent").event("attempt_started", {"node": 0})
    write("rank0").metrics(90, {"loss": 0.1, "val_accuracy": 0.9})
    write("node0").metrics(0, sample(1.0, power_w=250.0))
    assert seen(top).nodes

    again = write("agent", 1)
    again.event("submitted", {"job_id": "12"})
    waiting = seen(top)
    again.event("attempt_started", {"node": 0})
    write("rank0", 1).metrics(41, {"loss": 0.3})
    running = seen(top)

    assert (waiting.state, waiting.attempt, waiting.nodes) == (State.PENDING, 1, ())
    assert (running.state, running.step, running.nodes, running.notes) == (State.RUNNING, 41, (), ["no samples yet"])
    assert {name: latest.value for name, latest in running.metrics.items()} == {"loss": 0.3, "val_accuracy": 0.9}


def test_why_there_are_no_samples_is_said(places: Places, run_dir: RunDir, write: Write) -> None:
    off = make(places, "20261121-083015-222zzzzz", telemetry={"enabled": False})
    agent = write("agent")
    agent.event("attempt_started", {"node": 0})
    write("node0").metrics(0, sample(1.0))
    agent.event("telemetry_lost", {"node": 0, "reason": "the sampler has ended: killed by signal 9"})

    assert seen(RunTop(off)).notes[-1] == "telemetry is off (telemetry.enabled=false): there are no samples"
    assert seen(RunTop(run_dir)).nodes[0].ended == "the sampler has ended: killed by signal 9"


def test_a_run_that_has_fallen_silent_is_doubted(run_dir: RunDir, write: Write) -> None:
    write("agent").event("attempt_started", {"node": 0})

    assert not any("status" in note for note in seen(RunTop(run_dir)).notes)
    assert any("hpcml status finds out" in note for note in seen(RunTop(run_dir), later_s=3600.0).notes)


def test_a_run_that_is_removed_ends_the_watch(run_dir: RunDir, write: Write) -> None:
    write("agent").event("attempt_started", {"node": 0})
    looks = follow([run_dir], period_s=0.01)
    next(looks)
    run_dir.path.rename(run_dir.being_removed)

    ((run, _),) = list(looks)[-1]

    assert "is gone" in run.notes[0]


def test_the_watch_ends_with_the_last_run(places: Places, run_dir: RunDir, write: Write) -> None:
    other = make(places, "20261121-083015-222zzzzz")
    write("agent").event("attempt_ended", {"state": "COMPLETED"})
    looks = follow([run_dir, other], period_s=0.01)
    assert [run.state for run, _ in next(looks)] == [State.COMPLETED, State.PENDING]
    with JournalWriter.open(str(other.journals), run=other.uid, writer="agent") as journal:
        journal.event("attempt_ended", {"state": "TIMEOUT", "reason": "walltime"})

    assert [run.state for run, _ in list(looks)[-1]] == [State.COMPLETED, State.TIMEOUT]


def test_runs_are_found_by_id_its_ends_name_and_submission(places: Places) -> None:
    one = make_run_dir(places.runs, UID, name="base", submission="s1")
    two = make_run_dir(places.runs, "20261121-083015-223xyzzy", submission="s2")

    assert find_runs(places, Selection(references=[UID, "ABCDE", "base"])) == [one]
    assert find_runs(places, Selection(submission="s2")) == [two]
    for word in ("20261121", "nothing"):
        with pytest.raises(StoreError, match=word):
            find_runs(places, Selection(references=[word]))


def test_of_long_telemetry_both_ends_are_read_and_then_what_is_added(run_dir: RunDir, write: Write) -> None:
    write("agent").event("attempt_started", {"node": 0})
    node = write("node0")
    node.event("devices", {"gpus": [{"gpu": "gpu0", "model": "H100"}], "interval_s": 1.0})
    for at in range(2_000):
        node.metrics(at, sample(float(at), power_w=250.0, energy_j=1000.0 + at))
    top = RunTop(run_dir)

    (before,) = seen(top).nodes
    node.metrics(2_000, sample(2_000.0, power_w=300.0, energy_j=5000.0))
    (after,) = seen(top).nodes

    assert (before.gpus[0].model, before.gpus[0].energy_j) == ("H100", 1999.0)
    assert (after.gpus[0].values["power_w"], after.gpus[0].energy_j) == (300.0, 4000.0)


# --- what follows from records


def metrics(t_s: float, step: int, **values: float) -> Metrics:
    return Metrics(seq=0, t_s=t_s, step=step, values=values or {"loss": 1.0})


def test_the_pace_is_that_of_the_last_minute_and_gives_the_time_left() -> None:
    reported = Reported()
    reported.take(0, 100.0, [Event(seq=0, t_s=0.0, name="training", details={"steps": 1000})])
    reported.take(0, 100.0, [metrics(float(t), t) for t in range(100)])  # one step a second
    reported.take(0, 100.0, [metrics(100.0 + t, 99 + 10 * t) for t in range(1, 62)])  # then ten

    assert reported.steps_per_s() == pytest.approx(10.0)
    assert reported.left_s() == pytest.approx((1000 - 709) / 10)


def test_steps_slower_than_a_minute_have_a_pace_too() -> None:
    reported = Reported()
    reported.take(0, 0.0, [metrics(0.0, 1)])
    assert reported.steps_per_s() is None
    reported.take(0, 0.0, [metrics(300.0, 2)])

    assert reported.steps_per_s() == pytest.approx(1 / 300)
    assert reported.left_s() is None  # nobody said how many there are


def test_values_that_were_numbered_have_no_pace_of_steps() -> None:
    def counted(at: float, step: int) -> Metrics:
        return Metrics(seq=0, t_s=at, step=step, values={"test_loss": 1.0}, is_counted=True)

    reported, ending = Reported(), Reported()
    reported.take(0, 0.0, [counted(10.0 * n, n) for n in range(4)])
    ending.take(0, 0.0, [Event(seq=0, t_s=0.0, name="training", details={"steps": 9})])
    ending.take(0, 0.0, [counted(10.0 * n, n) for n in range(4)])
    assert (reported.step, reported.steps_per_s()) == (3, None)
    assert (ending.steps_per_s(), ending.left_s()) == (pytest.approx(0.1), pytest.approx(60.0))

    reported.take(0, 0.0, [metrics(40.0, 2), metrics(41.0, 3), counted(50.0, 9)])  # the program's own number is less

    assert (reported.step, reported.steps_per_s()) == (3, pytest.approx(1.0))


def gpu_of(*records: Metrics | Event) -> Any:  # noqa: ANN401
    node = Sampled(node=0, host="h", t0=1000.0)
    node.take(records)
    return node.now().gpus[0]


def test_clocks_are_lowered_now_where_a_counter_rose_or_the_sample_says_so() -> None:
    def counted(at_s: float, **values: float) -> Metrics:
        return metrics(at_s, int(at_s), **sample(at_s, power_w=1.0, **values))

    first = counted(0.0, throttle_power_s=5.0, throttle_sw_thermal_s=0.0)
    rose = counted(1.0, throttle_power_s=5.5)

    assert gpu_of(first).throttled == ()
    assert gpu_of(first, rose).throttled == ("power",)
    assert gpu_of(first, rose, counted(2.0)).throttled == ()
    assert gpu_of(counted(0.0, throttled_hw_percent=100.0, throttled_power_percent=0.0)).throttled == ("hw",)


def test_energy_is_by_the_integral_where_the_counter_fell() -> None:
    first = metrics(0.0, 0, **sample(0.0, energy_j=900.0, power_integral_j=0.0))

    assert gpu_of(first, metrics(1.0, 1, **sample(1.0, energy_j=1200.0))).energy_j == 300.0
    assert gpu_of(first, metrics(1.0, 1, **sample(1.0, energy_j=10.0, power_integral_j=290.0))).energy_j == 290.0


def test_errors_and_losses_of_a_gpu_are_its_own() -> None:
    xid = Event(seq=0, t_s=1.0, name="xid", details={"gpu": "gpu0", "code": 79})
    lost = Event(seq=0, t_s=1.0, name="gpu_lost", details={"gpu": "gpu0", "reason": "GPU is lost"})

    found = gpu_of(metrics(0.0, 0, **sample(0.0, power_w=1.0)), xid, lost)

    assert (found.xids, found.lost, found.sampled_at) == ((79,), "GPU is lost", 1000.0)
