from __future__ import annotations

import random
import time
from pathlib import Path

from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.query import find_runs
from tests import warm
from tests.store.building import Journal, contents, make_run_dir
from tests.store.test_ingest import fresh
from tests.warm import Process

INGESTER = """
import sys
from pathlib import Path
from hpcml.store.opening import open_store
from hpcml.store.ingest import ingest_all
store = open_store(sys.argv[1])
print("ready", flush=True)
for _ in sys.stdin:
    print(ingest_all(store, Path(sys.argv[2])), flush=True)
"""


def start_ingester(store_url: str, runs: Path) -> Process:
    process = warm.start(INGESTER, store_url, str(runs), stderr=None)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def write_some(journals: list[Journal], step: int, rng: random.Random) -> None:
    for journal in journals:
        for at in range(step, step + 60):
            journal.metrics(at - rng.randrange(3), at / 10, loss=rng.random(), accuracy=rng.random())
        journal.event("note", text="x" * rng.randrange(200))


def make_journals(runs: Path) -> list[Journal]:
    journals = []
    for name in "abcd":
        run_dir = make_run_dir(runs, f"20260528-202640-aaaaa{name}")
        agent = Journal(run_dir, writer="agent")
        agent.event("attempt_started")
        agent.event("attempt_ended", 5.0, state="COMPLETED", exit_code=0, wall_s=4.0)
        journals += [Journal(run_dir), Journal(run_dir, attempt=2)]
    return journals


def test_killed_at_any_point_it_leaves_a_store_that_the_next_one_completes(
    store: Database, store_url: str, runs: Path, tmp_path: Path
) -> None:
    rng = random.Random(7)  # noqa: S311
    journals = make_journals(runs)
    killed_at_work = 0
    for trial in range(12):
        write_some(journals, trial * 60, rng)
        victim = start_ingester(store_url, runs)
        go(victim)
        time.sleep(rng.random() * 0.12)
        victim.kill()
        out, _ = victim.communicate()
        killed_at_work += not out
        find_runs(store)  # readers are never disturbed

    ingest_all(store, runs)

    assert killed_at_work >= 3
    assert contents(store) == fresh(tmp_path, runs)


def test_several_ingesters_at_once_take_each_line_once(
    store: Database, store_url: str, runs: Path, tmp_path: Path
) -> None:
    rng = random.Random(8)  # noqa: S311
    journals = make_journals(runs)
    ingesters = [start_ingester(store_url, runs) for _ in range(3)]
    for trial in range(5):
        write_some(journals, trial * 60, rng)
        for process in ingesters:
            go(process)
    for process in ingesters:
        out, _ = process.communicate()
        assert process.returncode == 0
        assert out.count("problems=()") == 5

    ingest_all(store, runs)

    assert contents(store) == fresh(tmp_path, runs)
