"""Telemetry in the store: read in beside the journals, as often as one likes, and the same from nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcml.errors import StoreError
from hpcml.model.query_results import Timeline
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.news import IngestReport
from hpcml.store.opening import open_store
from hpcml.store.query import get_run
from hpcml.store.rows import forget_run
from hpcml.store.sql import ask
from hpcml.store.telemetry import timelines
from tests.store.building import T0, Journal, contents, make_run_dir
from tests.store.test_ingest import UID, fresh
from tests.store.test_kills import killed_after, read_until_killed
from tests.store.test_news import long_ago, opened, refuse_to_write

__all__ = ["opened"]  # a fixture


def sampled(run_dir: RunDir, *, node: int = 0, attempt: int = 1, t0: float = T0 + 60, gpus: int = 1) -> Journal:
    """A file of telemetry with nothing but its beginning."""
    journal = Journal(run_dir, writer=f"node{node}", attempt=attempt, t0=t0, folder="telemetry")
    named = [{"gpu": f"gpu{at}", "uuid": f"GPU-{node}-{at}"} for at in range(gpus)]
    journal.event("devices", gpus=named, mapping="all shown")
    return journal


def tick(journal: Journal, at_s: float, *, gpus: int = 1) -> None:
    values: dict[str, float] = {}
    for gpu in range(gpus):
        of_gpu = {"at_s": at_s, "power_w": 200.0 + at_s, "energy_j": 100 * at_s, "util_percent": 90.0}
        values |= {f"gpu{gpu}.{name}": value for name, value in of_gpu.items()}
    values |= {"host.at_s": at_s, "host.cpu_s": at_s / 2, "host.memory_mb": 50.0, "sampler.tick_us": 30.0}
    journal.metrics(int(at_s), at_s, **values)


def started(run_dir: RunDir, *, attempt: int = 1, t0: float = T0 + 60) -> Journal:
    agent = Journal(run_dir, writer="agent", attempt=attempt, t0=t0)
    agent.event("attempt_started", node=0)
    return agent


def ended(agent: Journal, at_s: float) -> None:
    told: dict[str, Any] = {"node": 0, "mapping": "all shown", "wall_s": at_s, "data_until_s": at_s, "host_cpu_s": 3.0}
    gpu = {"uuid": "GPU-0-0", "scope": "gpu", "energy_j": 100 * at_s, "energy_method": "counter"}
    gpu |= {"energy_covered_s": at_s, "energy_uncertainty_j": 20.0, "samples": int(at_s)}
    agent.event("telemetry", at_s, **told, energy_j=100 * at_s, **{f"gpu0_{key}": v for key, v in gpu.items()})
    agent.event("attempt_ended", at_s, state="COMPLETED", exit_code=0, wall_s=at_s)


def one_run(runs: Path) -> RunDir:
    """A run of 25 s on one GPU that was sampled from its beginning to its end."""
    run_dir = make_run_dir(runs)
    agent, telemetry = started(run_dir), sampled(run_dir)
    for at in range(26):
        tick(telemetry, float(at))
    ended(agent, 25.0)
    return run_dir


def test_a_run_has_a_timeline_for_each_gpu_and_node_on_its_own_clock(store: Database, runs: Path) -> None:
    one_run(runs)
    ingest_all(store, runs)

    gpu, host = timelines(store, UID)

    assert (gpu.attempt, gpu.node, gpu.host, gpu.device, gpu.uuid) == (1, 0, "node7", "gpu0", "GPU-0-0")
    assert [(span.t_s, span.samples, span.covered_s) for span in gpu.spans] == [(0, 11, 10), (10, 10, 10), (20, 5, 5)]
    assert [span.energy_j for span in gpu.spans] == [1000, 1000, 500]
    assert [span.mean_power_w for span in gpu.spans] == [205.0, 215.5, 223.0]
    assert (host.device, host.uuid, [span.cpu_s for span in host.spans]) == ("host", None, [5.0, 5.0, 2.5])
    assert [span.max_memory_mb for span in host.spans] == [50.0] * 3


def test_usage_comes_with_the_record(store: Database, runs: Path) -> None:
    one_run(runs)
    make_run_dir(runs, UID[:-1] + "b")
    ingest_all(store, runs)

    usage = get_run(store, UID).usage

    assert usage is not None
    assert (usage.gpus, usage.gpu_s, usage.energy_j, usage.cpu_s) == (1, 25.0, 2500.0, 3.0)
    assert (usage.co2_g, usage.energy_disagrees) == (None, False)
    assert get_run(store, UID[:-1] + "b").usage is None


def test_views_answer_in_sql_what_python_answers(store: Database, runs: Path) -> None:
    one_run(runs)
    ingest_all(store, runs)

    usage = ask(store, "SELECT uid, energy_j, energy_disagrees FROM usage", limit_s=300).rows
    spans = ask(store, "SELECT t_s, energy_j FROM timelines WHERE device = 'gpu0' ORDER BY t_s", limit_s=300).rows

    assert usage == [(UID, 2500.0, 0)]
    assert spans == [(span.t_s, span.energy_j) for span in timelines(store, UID)[0].spans]


def test_what_comes_little_by_little_is_what_comes_at_once(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = make_run_dir(runs)
    agent, telemetry = started(run_dir), sampled(run_dir, gpus=2)
    for at in range(40):
        tick(telemetry, at * 0.7, gpus=2)
        if at % 3 == 0:
            ingest_all(store, runs)
    ended(agent, 28.0)
    ingest_all(store, runs)

    assert contents(store) == fresh(tmp_path, runs)
    assert sum(span.samples for span in timelines(store, UID)[0].spans) == 40


def test_small_batches_and_torn_lines_change_nothing(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = make_run_dir(runs)
    started(run_dir)
    telemetry = sampled(run_dir)
    for at in range(20):
        tick(telemetry, float(at))
    telemetry.write('{"k":"m","s":21,"t":20.0,"i"')  # killed in the middle of a line
    ingest_all(store, runs)
    before = timelines(store, UID)
    telemetry.write('\n{"nonsense": 1}\n')
    tick(telemetry, 21.0)
    ingest_all(store, runs)

    assert sum(span.samples for span in before[0].spans) == 20
    assert sum(span.samples for span in timelines(store, UID)[0].spans) == 21
    assert contents(store) == fresh(tmp_path, runs)


def test_attempts_and_nodes_stay_apart_in_order(store: Database, runs: Path) -> None:
    run_dir = make_run_dir(runs)
    for attempt in (1, 2):
        started(run_dir, attempt=attempt, t0=T0 + 100 * attempt)
        for node in (0, 1):
            telemetry = sampled(run_dir, node=node, attempt=attempt, t0=T0 + 100 * attempt, gpus=11)
            tick(telemetry, 1.0, gpus=11)
    ingest_all(store, runs)

    found = timelines(store, UID)

    names = [*(f"gpu{at}" for at in range(11)), "host"]
    wanted = [(attempt, node, name) for attempt in (1, 2) for node in (0, 1) for name in names]
    assert [(line.attempt, line.node, line.device) for line in found] == wanted
    assert {line.spans[0].t_s for line in found if line.attempt == 2} == {101.0}


def test_a_file_that_became_shorter_is_read_from_its_beginning(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = make_run_dir(runs)
    started(run_dir)
    telemetry = sampled(run_dir)
    for at in range(15):
        tick(telemetry, float(at))
    ingest_all(store, runs)
    lines = telemetry.path.read_text().splitlines(keepends=True)
    telemetry.path.write_text("".join(lines[:5]))
    ingest_all(store, runs)

    assert [span.samples for span in timelines(store, UID)[0].spans] == [3]
    assert contents(store) == fresh(tmp_path, runs)


def test_a_foreign_file_is_named_and_left_out(store: Database, runs: Path) -> None:
    run_dir = make_run_dir(runs)
    started(run_dir)
    run_dir.telemetry.mkdir()
    (run_dir.telemetry / "9-foreign.jsonl").write_text("nobody knows\n")

    first, again = ingest_all(store, runs), ingest_all(store, runs)

    assert len(first.problems) == 1
    assert "9-foreign.jsonl begins with no header" in first.problems[0]
    assert again == IngestReport(runs=1, problems=first.problems)
    assert timelines(store, UID) == []


def test_samples_alone_are_news_while_the_run_goes_on(store: Database, runs: Path) -> None:
    run_dir = make_run_dir(runs)
    started(run_dir)
    telemetry = sampled(run_dir)
    ingest_all(store, runs)
    tick(telemetry, 1.0)
    ingest_all(store, runs)

    assert [line.device for line in timelines(store, UID)] == ["gpu0", "host"]


def test_a_run_that_ended_is_looked_at_no_more(
    store: Database, runs: Path, opened: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = one_run(runs)
    long_ago(run_dir)
    ingest_all(store, runs)
    before = timelines(store, UID)
    shutil.rmtree(run_dir.telemetry)  # to make room
    opened.clear()
    refuse_to_write(store, monkeypatch)

    assert ingest_all(store, runs) == IngestReport(runs=1)
    assert [path for path in opened if path.suffix == ".jsonl"] == []
    assert timelines(store, UID) == before


def test_a_run_that_goes_on_is_looked_at_again(store: Database, runs: Path, tmp_path: Path) -> None:
    run_dir = one_run(runs)
    ingest_all(store, runs)
    started(run_dir, attempt=2, t0=T0 + 200)
    ingest_all(store, runs)
    tick(sampled(run_dir, attempt=2, t0=T0 + 200), 1.0)
    ingest_all(store, runs)

    assert [line.attempt for line in timelines(store, UID)] == [1, 1, 2, 2]
    assert contents(store) == fresh(tmp_path, runs)


def test_a_reader_killed_at_any_point_takes_each_sample_once(runs: Path, tmp_path: Path) -> None:
    rng = random.Random(4)  # noqa: S311
    url = str(tmp_path / "store.db")
    open_store(url).close()
    run_dir = make_run_dir(runs)
    agent, telemetry = started(run_dir), sampled(run_dir, gpus=2)
    for at in range(300):
        tick(telemetry, at / 2, gpus=2)
        if at % 10 == 0:
            killed_after(rng.random() * 0.04, read_until_killed(url, runs))
    ended(agent, 150.0)

    store = open_store(url)
    ingest_all(store, runs)
    found = contents(store)
    store.close()

    assert found == fresh(tmp_path, runs)
    assert len(found["sample"]) == 3 * 15


def test_a_run_that_is_forgotten_leaves_nothing(store: Database, runs: Path) -> None:
    shutil.rmtree(one_run(runs).path)
    one_run(runs)
    ingest_all(store, runs)

    assert forget_run(store, UID)

    assert {name: rows for name, rows in contents(store).items() if rows} == {}
    with pytest.raises(StoreError, match="no run has the uid"):
        timelines(store, UID)


def test_a_run_without_telemetry_has_no_timeline(store: Database, runs: Path) -> None:
    started(make_run_dir(runs))
    ingest_all(store, runs)

    found: list[Timeline] = timelines(store, UID)

    assert found == []
