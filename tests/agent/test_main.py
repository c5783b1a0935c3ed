"""The agent on a run directory, as a job starts it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcml.journal import Event, read_journal
from hpcml.manifest import FORMAT, Manifest, write_manifest
from hpcml.precision import CPU
from hpcml.rundir import RunDir
from hpcml.spec import spec_hash
from hpcml.workload import Software, build_plan
from tests.conftest import ORIGIN, ComposeOne

MakeRun = Callable[..., RunDir]


@pytest.fixture
def make_run(compose_one: ComposeOne, tmp_path: Path) -> MakeRun:
    """Write the directory of a run whose program is *code*."""

    def make(code: str, *overrides: str) -> RunDir:
        run = compose_one("workload.command=replaced", *overrides)
        software = Software(python=sys.executable, recipes=tmp_path, cwd=tmp_path)
        plan = build_plan(run, CPU, software, cpus_per_task=1)
        plan.argv[:] = [sys.executable, "-c", code]
        run_dir = RunDir(tmp_path / "runs" / "20261121-083015-222abcde")
        run_dir.journals.mkdir(parents=True)
        manifest = Manifest(
            format=FORMAT, uid=run_dir.uid, spec_hash=spec_hash(run), run=run, plan=plan, provenance=ORIGIN
        )
        write_manifest(run_dir.manifest, manifest)
        return run_dir

    return make


def agent(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpcml.agent.main", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(run_dir: RunDir, name: str) -> list[dict[str, Any]]:
    records = [record for path in run_dir.journal_files() for record in read_journal(path).records]
    return [record.details for record in records if isinstance(record, Event) and record.name == name]


def test_the_exit_status_of_the_agent_is_that_of_the_program(make_run: MakeRun) -> None:
    run_dir = make_run("raise SystemExit(3)")

    assert agent(str(run_dir.path)).returncode == 3
    assert told(run_dir, "attempt_ended")[0]["reason"] == "exit status 3"


def test_the_program_sees_its_run_and_none_of_what_must_not_be_set(make_run: MakeRun) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    run_dir = make_run(code, "precision=tf32", "workload.env.MINE=1")

    agent(str(run_dir.path), NVIDIA_TF32_OVERRIDE="0", TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="0")

    seen = json.loads(run_dir.stdout(0, 0).read_text())
    assert "NVIDIA_TF32_OVERRIDE" not in seen
    assert seen["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] == "1"
    assert (seen["MINE"], seen["HPCML_RUN_ID"], seen["RANK"], seen["WORLD_SIZE"]) == ("1", run_dir.uid, "0", "1")


def test_the_ranks_of_one_node_find_each_other(make_run: MakeRun) -> None:
    code = "import os; print(os.environ['RANK'], os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])"
    run_dir = make_run(code, "strategy=ddp", "strategy.processes_per_node=2")

    agent(str(run_dir.path))

    first, second = (run_dir.stdout(0, rank).read_text().split() for rank in (0, 1))
    assert (first[0], second[0]) == ("0", "1")
    assert first[1:] == second[1:]


def test_each_start_is_another_attempt(make_run: MakeRun) -> None:
    run_dir = make_run("pass")

    agent(str(run_dir.path))
    agent(str(run_dir.path))

    assert sorted(path.name[0] for path in run_dir.journal_files()) == ["0", "1"]


def test_a_run_that_was_cancelled_does_not_start_and_may_be_started_again(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("open('ran', 'w')")
    run_dir.cancel_mark.touch()

    assert agent(str(run_dir.path)).returncode == 1
    assert not (tmp_path / "ran").exists()
    assert told(run_dir, "attempt_ended")[0]["state"] == "CANCELLED"
    assert agent(str(run_dir.path)).returncode == 0
    assert (tmp_path / "ran").exists()


def test_trouble_of_our_own_is_journalled_and_the_program_goes_on(make_run: MakeRun) -> None:
    code = "import os, time; os.remove(os.environ['HPCML_RUN_DIR'] + '/logs/0-rank0.out'); time.sleep(1.5)"
    rule = 'workload.metrics=[{pattern: "=(?P<value>[0-9]+)", name: x}]'
    run_dir = make_run(code, rule)

    assert agent(str(run_dir.path)).returncode == 0
    assert [trouble["what"] for trouble in told(run_dir, "agent_trouble")] == ["metrics from stdout"]
    assert told(run_dir, "attempt_ended")[0]["state"] == "COMPLETED"


@pytest.mark.parametrize(
    ("variables", "index"),
    [
        ({"SLURM_ARRAY_TASK_ID": "1"}, 1),
        ({"PBS_ARRAY_INDEX": "0"}, 0),
        ({"SLURM_ARRAY_TASK_ID": "7"}, None),
        ({}, None),
    ],
)
def test_in_an_array_the_index_chooses_the_run(
    make_run: MakeRun, tmp_path: Path, variables: dict[str, str], index: int | None
) -> None:
    run_dir = make_run("pass")
    batch = tmp_path / "batch.json"
    listed = ["/nowhere", "/nowhere"]
    if index is not None:
        listed[index] = str(run_dir.path)
    batch.write_text(json.dumps({"run_dirs": listed}))

    done = agent("--batch", str(batch), **variables)

    assert (done.returncode == 0) == (index is not None), done.stderr
    assert bool(told(run_dir, "attempt_ended")) == (index is not None)


@pytest.mark.parametrize("words", [[], ["a", "b", "c"], ["/nowhere"], ["--batch", "/nowhere"]])
def test_a_run_that_is_not_there_is_one_line(words: list[str]) -> None:
    done = agent(*words)

    assert done.returncode == 2
    assert done.stderr.startswith("hpcml agent: ")
    assert len(done.stderr.splitlines()) == 1
