"""The agent on a run directory, as a job starts it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.node import MakeRun, agent, environ, is_gone, told
from tests.agent.test_packs import ROOT, batch


def test_an_agent_without_standard_files_runs_its_program_and_leaves_a_run_that_is_done(make_run: MakeRun) -> None:
    run_dir = make_run("print('done')")
    script = 'exec "$0" -P -m hpcml.agent.main "$1" <&- >&- 2>&-'
    words = ["/bin/sh", "-c", script, sys.executable, str(run_dir.path)]

    statuses = [subprocess.run(words, env=environ(), check=False).returncode for _ in range(2)]

    assert statuses == [0, 0]
    assert run_dir.stdout(0, 0).read_text() == "done\n"
    assert told(run_dir, "telemetry")[0]["samples"] >= 2
    assert told(run_dir, "attempt_left")[0]["reason"] == "attempt 0 has COMPLETED"


def test_the_program_sees_its_run_and_none_of_what_must_not_be_set(make_run: MakeRun) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    run_dir = make_run(code, "precision=tf32", "workload.env.MINE=1")

    agent(str(run_dir.path), NVIDIA_TF32_OVERRIDE="0", TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="0")

    seen = json.loads(run_dir.stdout(0, 0).read_text())
    assert "NVIDIA_TF32_OVERRIDE" not in seen
    assert seen["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] == "1"
    assert (seen["MINE"], seen["HPCML_RUN_ID"]) == ("1", run_dir.uid)


OF_RANKS = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
}
AROUND = {  # what the shell, the step of a job and MPI may have set around the agent
    **dict.fromkeys(OF_RANKS | {"TORCHELASTIC_USE_AGENT_STORE"}, "7"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"), "7"),
    "PMI_RANK": "7",
    "PMI_SIZE": "9",
    "PMIX_RANK": "7",
    "OMPI_COMM_WORLD_SIZE": "9",
    "SLURM_JOB_NODELIST": "cn1",
}
SAYS = "import json, os; print(json.dumps(dict(os.environ)))"


def test_one_process_of_a_program_of_ones_own_is_told_of_no_others(make_run: MakeRun) -> None:
    run_dir = make_run(SAYS)

    agent(str(run_dir.path), **AROUND)

    seen = json.loads(run_dir.stdout(0, 0).read_text())
    assert AROUND.keys() & seen.keys() == {"SLURM_JOB_NODELIST"}


def test_several_processes_of_a_program_find_all_that_torchrun_sets_and_slurms_words_agree(make_run: MakeRun) -> None:
    run_dir = make_run(SAYS, "strategy=ddp", "strategy.processes_per_node=2")

    agent(str(run_dir.path), SLURM_JOB_ID="5", **AROUND)

    seen = [json.loads(run_dir.stdout(0, rank).read_text()) for rank in (0, 1)]
    assert seen[0].keys() >= OF_RANKS
    assert not seen[0].keys() & {"TORCHELASTIC_USE_AGENT_STORE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"}
    assert [(one["RANK"], one["ROLE_RANK"], one["SLURM_PROCID"], one["SLURM_LOCALID"]) for one in seen] == [
        ("0", "0", "0", "0"),
        ("1", "1", "1", "1"),
    ]
    assert {(one["WORLD_SIZE"], one["SLURM_NTASKS"], one["SLURM_NTASKS_PER_NODE"]) for one in seen} == {("2",) * 3}
    assert {one["TORCHELASTIC_RUN_ID"] for one in seen} == {run_dir.uid}


def test_a_launcher_finds_what_the_scheduler_gave_and_nothing_of_torchruns(make_run: MakeRun) -> None:
    run_dir = make_run(SAYS, "workload.command=torchrun train.py")

    agent(str(run_dir.path), **AROUND)

    seen = json.loads(run_dir.stdout(0, 0).read_text())
    assert not seen.keys() & OF_RANKS
    assert (seen["SLURM_NTASKS"], seen["PMI_SIZE"]) == ("7", "9")


def test_the_ranks_of_one_node_find_each_other(make_run: MakeRun) -> None:
    code = "import os; print(os.environ['RANK'], os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])"
    run_dir = make_run(code, "strategy=ddp", "strategy.processes_per_node=2")

    agent(str(run_dir.path))

    first, second = (run_dir.stdout(0, rank).read_text().split() for rank in (0, 1))
    assert (first[0], second[0]) == ("0", "1")
    assert first[1:] == second[1:]


def test_each_start_after_a_failure_is_another_attempt(make_run: MakeRun) -> None:
    run_dir = make_run("raise SystemExit(1)")

    agent(str(run_dir.path))
    agent(str(run_dir.path))

    assert sorted(path.name[0] for path in run_dir.journal_files()) == ["0", "1"]


def test_a_run_that_was_cancelled_does_not_start_unless_it_is_asked_for_again(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run_dir = make_run("open('ran', 'w')")
    run_dir.cancel_mark.touch()

    for _ in range(2):
        assert agent(str(run_dir.path)).returncode == 1
    assert not (tmp_path / "ran").exists()
    assert {end["state"] for end in told(run_dir, "attempt_ended")} == {"CANCELLED"}
    assert agent(str(run_dir.path), HPCML_RUN_AGAIN="1").returncode == 0
    assert (tmp_path / "ran").exists()
    assert not run_dir.cancel_mark.exists()


def test_trouble_of_our_own_is_journalled_and_the_program_goes_on(make_run: MakeRun) -> None:
    code = "import os, time; os.remove(os.environ['HPCML_RUN_DIR'] + '/logs/0-rank0.out'); time.sleep(1.5)"
    rule = 'workload.metrics=[{pattern: "=(?P<value>[0-9]+)", name: x}]'
    run_dir = make_run(code, rule)

    assert agent(str(run_dir.path)).returncode == 0
    assert [trouble["what"] for trouble in told(run_dir, "agent_trouble")] == ["metrics from what is printed"]
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
    listed = [["/nowhere/run.json"], ["/nowhere/run.json"]]
    if index is not None:
        listed[index] = [str(run_dir.manifest)]
    batch.write_text(json.dumps({"format": 1, "jobs": listed}))

    done = agent("--batch", str(batch), **variables)

    assert (done.returncode == 0) == (index is not None), done.stderr
    assert bool(told(run_dir, "attempt_ended")) == (index is not None)


@pytest.mark.parametrize("words", [[], ["a", "b", "c"], ["/nowhere"], ["--batch", "/nowhere"]])
def test_a_run_that_is_not_there_is_one_line(words: list[str]) -> None:
    done = agent(*words)

    assert done.returncode == 2
    assert done.stderr.startswith("hpcml agent: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_program_that_a_nameless_signal_ends_has_failed_by_it(make_run: MakeRun) -> None:
    run_dir = make_run("import os; os.kill(os.getpid(), 40)")

    done = agent(str(run_dir.path))

    (end,) = told(run_dir, "attempt_ended")
    assert (done.returncode, end["state"], end["signal"]) == (168, "FAILED", 40)
    assert end["reason"] == "killed by signal 40"


def test_an_error_of_our_own_ends_the_program_and_is_how_the_attempt_ended(make_run: MakeRun, tmp_path: Path) -> None:
    copy = tmp_path / "hpcml"
    shutil.copytree(ROOT / "hpcml", copy / "hpcml", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "hpcml_client", copy / "hpcml_client")
    supervise = copy / "hpcml" / "agent" / "supervise.py"
    supervise.write_text(supervise.read_text().replace("if number in ENDING:", "if number in ENDING[0]:"))
    program = "import os, time; open('pid', 'w').write(str(os.getpid())); os.kill(os.getppid(), 12); time.sleep(60)"
    runs = [make_run(program), make_run("pass", uid="b")]
    words = [sys.executable, "-P", "-m", "hpcml.agent.main", "--batch", batch(tmp_path, runs)]

    done = subprocess.run(
        words, env=environ(PYTHONPATH=str(copy)), capture_output=True, text=True, timeout=60, check=False
    )

    ends = [told(run_dir, "attempt_ended") for run_dir in runs]
    assert [[end["state"] for end in each] for each in ends] == [["FAILED"], ["COMPLETED"]]
    assert ends[0][0]["reason"] == "hpcml's own error: TypeError: 'frozenset' object is not subscriptable"
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_run_on_this_machine_has_one_node_wherever_in_an_allocation_it_is(make_run: MakeRun) -> None:
    run_dir = make_run("pass")

    assert agent(str(run_dir.path), SLURM_NODEID="1").returncode == 0
    assert told(run_dir, "attempt_started")[0]["node"] == 0
