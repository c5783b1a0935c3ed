"""The `hpcml` command on a real Slurm, as an ordinary user types it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.schedulers.slurm.user import Hpcml

pytestmark = pytest.mark.slurm


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    return Hpcml(slurm, folder)


def program(code: str) -> str:
    return f"workload.command=\"python3 -c '{code}'\""


@pytest.mark.story
def test_a_sweep_is_one_array_and_every_run_is_recorded_with_its_result(hpcml: Hpcml) -> None:
    report = (
        "import hpcml_client, os; hpcml_client.connect()"
        '.metrics(dict(loss=0.5 * int(os.environ[\\"SLURM_ARRAY_TASK_ID\\"])), step=1)'
    )

    done = hpcml.run("-m", "seed=range(10)", "precision=fp32,bf16", program(report))

    assert done.returncode == 0, done.stderr.decode()
    runs = hpcml.runs_once_ended()
    assert [run["state"] for run in runs] == ["COMPLETED"] * 20
    assert len({run["job_id"] for run in runs}) == 1
    losses = {run["array_index"]: run["metrics"]["loss"]["first"] for run in runs}
    assert losses == {index: 0.5 * index for index in range(20)}


def test_a_run_that_fails_on_the_cluster_is_recorded_as_failed(hpcml: Hpcml) -> None:
    done = hpcml.run(program("raise SystemExit(3)"))

    assert done.returncode == 0, done.stderr.decode()  # it was submitted
    assert [run["state"] for run in hpcml.runs_once_ended()] == ["FAILED"]


def test_a_run_that_dies_with_its_agent_has_slurms_word_for_it(hpcml: Hpcml) -> None:
    done = hpcml.run(program("import os, signal; os.kill(os.getppid(), signal.SIGKILL)"))

    assert done.returncode == 0, done.stderr.decode()
    assert [run["state"] for run in hpcml.runs_once_ended()] == ["FAILED"]


@pytest.mark.story
def test_a_run_that_waits_is_seen_and_cancelled(hpcml: Hpcml) -> None:
    done = hpcml.run("resources.extra_directives=['--begin=now+1hour']", program("pass"))
    assert done.returncode == 0, done.stderr.decode()
    (waiting,) = hpcml.runs()

    cancelled = hpcml("cancel", waiting["uid"], "-y")

    assert waiting["state"] == "PENDING"
    assert cancelled.returncode == 0, cancelled.stderr.decode()
    (run,) = hpcml.runs_once_ended()
    assert run["state"] == "CANCELLED"


def test_a_refused_submission_is_one_line_and_exit_status_three(hpcml: Hpcml) -> None:
    done = hpcml.run("resources.partition=nosuch", program("pass"))

    assert done.returncode == 3
    line = done.stderr.decode().splitlines()[-1]
    assert line.startswith("hpcml: Slurm refused the job: invalid partition specified: nosuch")


def test_a_dry_run_shows_a_script_that_slurm_itself_would_take(hpcml: Hpcml) -> None:
    shown = hpcml.run("--dry-run=script", "resources.gpus_per_node=1", "resources.partition=qgpu", program("pass"))
    script = hpcml.project / "shown.sh"
    script.write_bytes(shown.stdout)

    tested = hpcml.account.run(["sbatch", "--test-only", str(script)], cwd=hpcml.project)

    assert shown.returncode == 0, shown.stderr
    assert tested.returncode == 0, tested.stderr
    assert b"in partition qgpu" in tested.stderr
    assert [path.name for path in hpcml.project.iterdir()] == ["shown.sh"]


def test_a_dry_run_of_a_sweep_shows_its_array(hpcml: Hpcml) -> None:
    shown = hpcml.run("-m", "--dry-run", "seed=0,1,2", "resources.array_parallelism=2", program("pass"))

    assert shown.returncode == 0, shown.stderr
    assert b"#SBATCH --array=0-2%2\n" in shown.stdout
    assert b"$ sbatch " in shown.stdout
    assert not list(hpcml.project.iterdir())


def test_nodes_that_do_not_see_the_run_directory_are_told_of(hpcml: Hpcml) -> None:
    done = hpcml.run("resources.extra_directives=['--begin=now+3', --no-requeue]", program("pass"))
    assert done.returncode == 0, done.stderr.decode()
    home, away = hpcml.project / "hpcml", hpcml.project / "away"
    home.rename(away)  # as if this were a file system that the node does not mount

    time.sleep(8)
    away.rename(home)

    (run,) = hpcml.runs_once_ended()
    assert run["state"] == "FAILED"
    assert "it never started: does the node see the run directory?" in run["reason"]


def test_ranks_on_two_nodes_know_each_other(hpcml: Hpcml) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "MASTER_ADDR")
    code = f"import os; print(*map(os.environ.get, {names}))".replace("'", '\\"')
    words = ["strategy=ddp", "strategy.processes_per_node=2", "resources.nodes=2", "resources.partition=qgpu"]

    done = hpcml.run(*words, program(code))

    assert done.returncode == 0, done.stderr.decode()
    (run,) = hpcml.runs_once_ended()
    assert run["state"] == "COMPLETED", run
    said = [hpcml("logs", run["uid"], "--rank", str(rank)).stdout.decode().split() for rank in range(4)]
    assert [line[:6] for line in said] == [[str(rank), "4", str(rank % 2)] * 2 for rank in range(4)]
    assert {line[6] for line in said} == {"gpu1"}


def test_one_process_is_told_of_no_others_and_of_its_job(hpcml: Hpcml) -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NODELIST")

    done = hpcml.run(program(f"import os; print(*map(os.environ.get, {names}))".replace("'", '\\"')))

    assert done.returncode == 0, done.stderr.decode()
    (run,) = hpcml.runs_once_ended()
    assert hpcml("logs", run["uid"]).stdout.decode().split()[:5] == ["None"] * 5
    assert "None" not in hpcml("logs", run["uid"]).stdout.decode().split()[5:]


def test_two_nodes_share_the_working_directory_of_their_run(hpcml: Hpcml) -> None:
    hpcml.write("part.py", "")
    hpcml.write("train.py", "import os, part; open('rank' + os.environ['RANK'], 'w').close()")
    words = ["strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2", "resources.partition=qgpu"]

    done = hpcml.run(*words, "workload.command=python3 train.py")

    assert done.returncode == 0, done.stderr.decode()
    (run,) = hpcml.runs_once_ended()
    assert run["state"] == "COMPLETED", run
    work = Path(run["path"]) / "work" / hpcml.project.name
    assert sorted(path.name for path in work.iterdir()) == ["rank0", "rank1"]
    assert not (hpcml.project / "rank0").exists()


def test_a_script_submitted_again_by_hand_is_another_attempt_that_can_be_watched_and_cancelled(hpcml: Hpcml) -> None:
    done = hpcml.run("workload.command=bash -c 'test ! -e $HPCML_RUN_DIR/again || sleep 60'")
    assert done.returncode == 0, done.stderr.decode()
    (first,) = hpcml.runs_once_ended()
    run_dir = Path(first["path"])
    (run_dir / "again").touch()

    by_hand = hpcml.account.run(
        ["sbatch", "--parsable", "--export=ALL,HPCML_RUN_AGAIN=1", str(run_dir / "job.sh")], cwd=hpcml.project
    )

    deadline = time.monotonic() + 300
    while hpcml.runs()[0]["state"] != "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert hpcml("status").returncode == 0
    (again,) = hpcml.runs()
    assert (again["state"], again["attempt"], again["job_id"]) == ("RUNNING", 1, by_hand.stdout.decode().strip())
    assert b"cancelling" in hpcml("cancel", again["uid"], "-y").stdout
    assert [run["state"] for run in hpcml.runs_once_ended()] == ["CANCELLED"]
