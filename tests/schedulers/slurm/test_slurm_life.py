"""What a real Slurm does to runs, and what hpcml then says of them: the truth, nothing twice, nothing lost."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.schedulers.slurm import as_user
from tests.schedulers.slurm.user import Hpcml, events, torch_folder

pytestmark = pytest.mark.slurm

SLEEP_ONCE = """workload.command=bash -c 'echo began; test "$HPCML_ATTEMPT" != 0 || sleep 120'"""
SLEEP = "workload.command=bash -c 'echo began; sleep 120'"
COUNT = '''
"""Counts to the number given, a tenth of a second each, and goes on from its checkpoint."""
import sys, time
import hpcml_client

with hpcml_client.connect() as run:
    checkpoints = run.checkpoints()
    found = checkpoints.latest()
    done = int(open(found).read()) if found else 0
    print("from", done, flush=True)
    for step in range(done + 1, int(sys.argv[1]) + 1):
        time.sleep(0.1)
        run.metric("count", step, step=step)
        if checkpoints.asked:
            checkpoints.save(step, lambda path: open(path, "w").write(str(step)))
            checkpoints.leave()
'''
WHOLE_GPU_NODE = (
    *("strategy=ddp", "strategy.processes_per_node=4", "resources.gpus_per_node=4", "resources.mem=6G"),
    "resources.nodelist=gpu2",
)


@pytest.fixture
def hpcml(slurm: Account, folder: Path) -> Hpcml:
    return Hpcml(slurm, folder)


@pytest.fixture
def hpcml_alone(slurm_alone: Account, folder: Path) -> Hpcml:
    """For tests that stop a part of the cluster."""
    return Hpcml(slurm_alone, folder)


def scancel(hpcml: Hpcml, *words: str) -> None:
    done = hpcml.account.run(["scancel", *words], cwd=hpcml.project)
    assert done.returncode == 0, done.stderr


def wait_for_lines(run_dir: Path, count: int) -> None:
    """Wait until the first rank has reported so much; the files are looked at, since a command takes a second."""
    end = time.monotonic() + 300
    while sum(len(path.read_bytes().splitlines()) for path in run_dir.glob("journal/*-rank0.jsonl")) < count:
        assert time.monotonic() < end, "the first rank reports nothing"
        time.sleep(0.02)


def job_of(run: dict[str, object]) -> str:
    return f"{run['job_id']}" if run["array_index"] is None else f"{run['job_id']}_{run['array_index']}"


def jobs_below(hpcml: Hpcml) -> list[str]:
    """Return the names of all jobs, ended or not, that were submitted for this project."""
    shown = hpcml.account.run(
        ["squeue", "--noheader", "--states=all", "--array", "--format=%j %Z"], cwd=hpcml.project
    ).stdout.decode()
    return [line.split()[0] for line in shown.splitlines() if str(hpcml.project) in line]


def until_gate(hpcml: Hpcml) -> str:
    """Return a workload that lasts until `hpcml.write("gate", "")`, however slow this machine is."""
    return f"workload.command=bash -c 'until [ -e {hpcml.project}/gate ]; do sleep 0.1; done'"


def test_a_run_that_is_cancelled_from_outside_is_told_in_slurms_words(hpcml: Hpcml) -> None:
    hpcml.submit(SLEEP)
    (run,) = hpcml.until_running()

    scancel(hpcml, job_of(run))

    run = hpcml.until(lambda runs: "slurm says CANCELLED" in str(runs[0]["reason"]))[0]
    assert (run["state"], run["cause"]) == ("CANCELLED", "cancelled")


def test_one_element_of_an_array_cancelled_before_it_starts_leaves_the_others_alone(hpcml: Hpcml) -> None:
    hpcml.submit("-m", "seed=0,1,2", "resources.array_parallelism=1", until_gate(hpcml))
    waiting = next(run for run in hpcml.runs() if run["array_index"] == 2)

    scancel(hpcml, job_of(waiting))
    hpcml.write("gate", "")

    states = {run["array_index"]: run["state"] for run in hpcml.runs_once_ended()}
    assert states == {0: "COMPLETED", 1: "COMPLETED", 2: "CANCELLED"}


def test_a_run_out_of_memory_says_so_and_its_retry_gets_more(hpcml: Hpcml) -> None:
    hog = hpcml.write("hog.py", "held = bytearray(220 * 2**20)\nfor at in range(0, len(held), 4096): held[at] = 1\n")
    hpcml.submit("resources.mem=200M", f"workload.command=python3 {hog}")
    (run,) = hpcml.runs_once_ended()
    assert (run["state"], run["cause"]) == ("OUT_OF_MEMORY", "host_memory"), run["reason"]

    done = hpcml("retry", run["uid"], "--yes")

    assert done.returncode == 0, done.stderr.decode()
    (run,) = hpcml.runs_once_ended()
    assert (run["state"], run["attempt"]) == ("COMPLETED", 1), run["reason"]


def test_a_preempted_run_waits_is_not_submitted_again_and_completes(hpcml: Hpcml) -> None:
    victim = (*WHOLE_GPU_NODE, "resources.partition=qgpu", SLEEP_ONCE, "experiment=victim")
    hpcml.submit(*victim)
    hpcml.until_running()

    hpcml.submit(*WHOLE_GPU_NODE, "resources.partition=qgpu_exp", until_gate(hpcml), "experiment=other")
    seen = hpcml.until(lambda runs: runs[0]["attempt"] == 1)[0]
    again = hpcml.run("--missing", *victim)
    hpcml.write("gate", "")

    assert seen["state"] == "PENDING", seen
    assert b"nothing to submit" in again.stdout, again.stderr
    runs = hpcml.runs_once_ended()
    assert {run["state"] for run in runs} == {"COMPLETED"}
    (requeued,) = [event for event in events(runs[0], "submitted") if event["attempt"] == 1]
    assert requeued["by"] == "collect"


def test_a_run_that_is_out_of_time_without_a_checkpoint_is_a_timeout(hpcml: Hpcml) -> None:
    hpcml.submit("resources.walltime=1m", SLEEP)

    (run,) = hpcml.runs_once_ended()

    assert (run["state"], run["cause"], run["attempt"]) == ("TIMEOUT", "time_limit", 0)


def test_a_run_whose_agent_hangs_is_a_timeout_in_slurms_words(hpcml: Hpcml) -> None:
    stopped = "trap '' TERM USR1; while :; do kill -STOP $PPID; sleep 0.1; done"  # Slurm's signals let a process go on
    hpcml.submit("resources.walltime=1m", f'workload.command=bash -c "{stopped}"')

    (run,) = hpcml.until(lambda runs: runs[0]["cause"] is not None)  # what Slurm says of it comes last

    assert (run["state"], run["cause"]) == ("TIMEOUT", "time_limit"), run["reason"]
    (end,) = events(run, "ended_by_scheduler")
    assert end["wall_s"] >= 60
    assert run["wall_s"] == pytest.approx(end["wall_s"], abs=10)  # the agent may have had a moment to say it first
    assert {"exit_status", "cpu_s"} <= end.keys()


def test_a_time_limit_that_was_changed_before_the_job_ran_is_kept(hpcml: Hpcml) -> None:
    (run,) = hpcml.submit("resources.walltime=10m", "resources.extra_directives=['--hold']", SLEEP)
    for words in (["update", f"JobId={run['job_id']}", "TimeLimit=1"], ["release", str(run["job_id"])]):
        done = hpcml.account.run(["scontrol", *words], cwd=hpcml.project)
        assert done.returncode == 0, done.stderr

    (run,) = hpcml.runs_once_ended()

    assert (run["state"], run["reason"]) == ("TIMEOUT", "walltime of 60 s reached but for the last 30 s")
    assert events(run, "time_limit") == [{"attempt": 0, "limit_s": 60, "before_s": 600}]


def test_a_suspended_job_has_the_rest_of_its_walltime_when_it_goes_on(hpcml: Hpcml) -> None:
    ticks = "import time\nprint('began', flush=True)\nfor _ in range(200): time.sleep(0.1)"  # stops when it is stopped
    (job,) = hpcml.submit("resources.walltime=1m", f"workload.command=python3 {hpcml.write('ticks.py', ticks)}")
    hpcml.until_running()

    for verb, pause_s in (("suspend", 40), ("resume", 0)):  # the agent stops the program 30 s before the walltime ends
        argv = ["scontrol", verb, str(job["job_id"])]
        subprocess.run(argv, env=hpcml.account.cluster.environ, check=True)  # operators may
        time.sleep(pause_s)
    (run,) = hpcml.runs_once_ended()

    assert (run["state"], run["attempt"]) == ("COMPLETED", 0)
    (limit,) = events(run, "time_limit")
    assert 30 <= limit["suspended_s"] <= 45


@pytest.mark.story
def test_a_checkpointed_run_is_requeued_and_goes_on_as_the_same_run(hpcml: Hpcml) -> None:
    count = hpcml.write("count.py", COUNT)
    hpcml.submit(f"workload.command=python3 {count} 250")
    (run,) = hpcml.runs()
    wait_for_lines(Path(run["path"]), 20)

    scancel(hpcml, "--signal=USR1", "--batch", job_of(run))  # as Slurm warns of the end of the walltime

    (run,) = hpcml.runs_once_ended()
    assert (run["state"], run["attempt"]) == ("COMPLETED", 1), run["reason"]
    assert run["metrics"]["count"]["n"] == 250  # every step once
    assert Counter(jobs_below(hpcml)).most_common(1)[0][1] == 1
    first = (Path(run["path"]) / "logs" / "0-rank0.out").read_text()
    second = (Path(run["path"]) / "logs" / "1-rank0.out").read_text()
    assert first == "from 0\n"
    assert int(second.removeprefix("from ")) > 0
    assert [event["state"] for event in events(run, "attempt_ended")] == ["TIMEOUT", "COMPLETED"]


def test_a_warning_that_comes_before_the_agent_listens_ends_nothing(hpcml: Hpcml) -> None:
    """Slurm's --signal may come a minute early; the modules of a site take their time."""
    waits = f"until [ -e {hpcml.project}/gate ]; do touch {hpcml.project}/up; sleep 0.1; done"
    hpcml.submit(f"cluster.prelude=['{waits}']", "workload.command=true")
    (run,) = hpcml.runs()
    end = time.monotonic() + 300
    while not (hpcml.project / "up").exists():
        assert time.monotonic() < end, "the job does not begin"
        time.sleep(0.05)

    scancel(hpcml, "--signal=USR1", "--batch", job_of(run))
    hpcml.write("gate", "")

    (run,) = hpcml.runs_once_ended()
    assert (run["state"], run["attempt"]) == ("COMPLETED", 0), run["reason"]


def test_requeues_come_to_an_end(hpcml: Hpcml) -> None:
    leave = "workload.command=bash -c 'exit 75'"
    hpcml.submit("schedule.max_requeues=1", leave)

    (run,) = hpcml.runs_once_ended()

    assert (run["state"], run["attempt"]) == ("TIMEOUT", 1)
    assert "max_requeues=1" in run["reason"]


def test_a_recipe_that_was_requeued_ends_with_the_same_weights(hpcml: Hpcml) -> None:
    environ = {"PYTHONPATH": f"{hpcml.account.sources}:{torch_folder(hpcml.account)}"}
    words = ["model=mnist_cnn", "precision=amp", "training.steps=400", "training.eval_every=400", "resources.mem=2G"]
    hpcml.submit(*words, "experiment=whole", **environ)
    hpcml.submit(*words, "experiment=broken", **environ)
    broken = hpcml.runs()[1]
    wait_for_lines(Path(broken["path"]), 30)

    scancel(hpcml, "--signal=USR1", "--batch", job_of(broken))

    whole, broken = hpcml.runs_once_ended()
    assert (whole["state"], whole["attempt"]) == ("COMPLETED", 0), whole["reason"]
    assert (broken["state"], broken["attempt"]) == ("COMPLETED", 1), broken["reason"]
    ((last,), (also_last,)) = events(whole, "final"), events(broken, "final")
    assert last["sha256"] == also_last["sha256"]
    assert broken["metrics"]["loss"]["n"] == 400


def test_ranks_on_two_nodes_train_together(hpcml: Hpcml) -> None:
    environ = {"PYTHONPATH": f"{hpcml.account.sources}:{torch_folder(hpcml.account)}"}
    words = ["strategy=ddp", "strategy.processes_per_node=2", "resources.nodes=2", "resources.partition=qgpu"]
    words += ["model=mnist_mlp", "training.steps=10", "resources.mem=3G", "resources.gpus_per_node=0"]
    hpcml.submit(*words, **environ)

    (run,) = hpcml.runs_once_ended()

    assert run["state"] == "COMPLETED", (run["reason"], hpcml("logs", "--err", run["uid"]).stdout)
    assert run["metrics"]["loss"]["n"] == 10
    hosts = {event["node"] for event in events(run, "attempt_started")}
    assert hosts == {0, 1}


def test_the_arms_of_a_pack_take_turns_in_one_job(hpcml: Hpcml) -> None:
    hpcml.submit(
        *("-m", "precision=fp32,bf16", "seed=0,1", "schedule.pack=precision", "schedule.repeats=2"),
        "workload.command=sleep 0.2",
    )

    runs = hpcml.runs_once_ended()

    assert [run["state"] for run in runs] == ["COMPLETED"] * 8
    by_job: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        by_job.setdefault(job_of(run), []).append(run)
    assert len(by_job) == 2  # one for each seed
    for packed in by_job.values():
        order = [run["precision"] for run in sorted(packed, key=lambda run: float(str(run["t_start"])))]
        assert order in (["fp32", "bf16", "bf16", "fp32"], ["bf16", "fp32", "fp32", "bf16"])  # none is always first
        assert len({run["facts"]["hostname"] for run in packed if isinstance(run["facts"], dict)}) == 1


def test_a_run_of_a_pack_is_cancelled_alone(hpcml: Hpcml) -> None:
    hpcml.submit("-m", "precision=fp32,bf16", "schedule.pack=all", until_gate(hpcml))
    hpcml.until_running()
    waiting = next(run for run in hpcml.runs() if run["state"] == "PENDING")

    done = hpcml("cancel", waiting["uid"], "--yes")
    hpcml.write("gate", "")

    assert done.returncode == 0, done.stderr.decode()
    states = {run["uid"]: run["state"] for run in hpcml.runs_once_ended()}
    assert states.pop(waiting["uid"]) == "CANCELLED"
    assert list(states.values()) == ["COMPLETED"]


def test_a_controller_restarted_during_a_sweep_changes_nothing(hpcml_alone: Hpcml) -> None:
    hpcml_alone.submit("-m", "seed=range(6)", "resources.array_parallelism=2", until_gate(hpcml_alone))
    cluster = hpcml_alone.account.cluster
    cluster.stop_controller()
    done = hpcml_alone("status")
    cluster.start_controller()
    hpcml_alone.write("gate", "")

    assert done.returncode == 0, done.stderr.decode()  # from the accounting, or a warning where it has not heard yet
    assert [run["state"] for run in hpcml_alone.runs_once_ended()] == ["COMPLETED"] * 6
    assert len(jobs_below(hpcml_alone)) == 6


def test_without_the_accounting_the_queue_and_the_journals_tell(hpcml_alone: Hpcml) -> None:
    cluster = hpcml_alone.account.cluster
    cluster.stop_accounting()
    try:
        hpcml_alone.submit("workload.command=true")
        hpcml_alone.submit("workload.command=bash -c 'kill -9 $PPID'")
        runs = hpcml_alone.runs_once_ended()
    finally:
        cluster.start_accounting()

    assert [run["state"] for run in runs] == ["COMPLETED", "FAILED"]


@pytest.mark.parametrize("requeue", [True, False])
def test_a_node_that_fails(hpcml_alone: Hpcml, *, requeue: bool) -> None:
    cluster = hpcml_alone.account.cluster
    directive = [] if requeue else ["resources.extra_directives=[--no-requeue]"]
    hpcml_alone.submit("resources.partition=qgpu", "resources.nodelist=gpu1", *directive, SLEEP_ONCE)
    (run,) = hpcml_alone.until_running()
    cluster.fail_node("gpu1")
    try:
        if requeue:
            seen = hpcml_alone.until(lambda runs: runs[0]["attempt"] == 1)[0]
            assert seen["state"] in ("PENDING", "RUNNING")
        else:
            (run,) = hpcml_alone.runs_once_ended()
            assert (run["state"], run["cause"]) == ("NODE_FAIL", "node_failure"), run["reason"]
    finally:
        cluster.restore_node("gpu1")
    if requeue:
        (run,) = hpcml_alone.runs_once_ended()
        assert (run["state"], run["attempt"]) == ("COMPLETED", 1), run["reason"]
        return
    listed = hpcml_alone("retry", run["uid"], "--dry-run")
    assert b"gpu1" in listed.stdout, listed.stderr  # not there again
    assert len(jobs_below(hpcml_alone)) == 1


def test_a_login_shell_that_dies_right_after_the_submission_takes_nothing_along(hpcml: Hpcml) -> None:
    conf = hpcml.account.sources / "tests" / "schedulers" / "slurm" / "conf"
    words = f"run --config-dir {conf} cluster=testslurm -m seed=0,1 'workload.command=sleep 2'"
    start = f"{hpcml.account.python} -c 'from hpcml.cli.main import main; main()' {words}; kill -9 $$"
    hpcml.account.run(["bash", "-c", start], cwd=hpcml.project, environ={"HPCML_HOME": str(hpcml.home)})

    assert [run["state"] for run in hpcml.runs_once_ended()] == ["COMPLETED"] * 2


def test_another_host_says_the_same_of_a_run(hpcml: Hpcml) -> None:
    hpcml.submit(SLEEP)
    (here,) = hpcml.until_running()

    entered = ["unshare", "--uts", "bash", "-c", 'hostname elsewhere && exec setpriv --reuid="$0" --regid="$0" "$@"']
    words = ["--clear-groups", "--", str(hpcml.account.python), "-c", "from hpcml.cli.main import main; main()"]
    done = subprocess.run(
        [*entered, "hpcuser", *words, "runs", "--json"],
        env={**hpcml.account.environ, "HPCML_HOME": str(hpcml.home)},
        cwd=hpcml.project,
        capture_output=True,
        check=True,
    )
    hpcml("cancel", here["uid"], "--yes")

    assert b'"state": "RUNNING"' in done.stdout
    assert [run["state"] for run in hpcml.runs_once_ended()] == ["CANCELLED"]


def test_the_start_estimate_of_the_scheduler_is_shown(hpcml: Hpcml) -> None:
    hpcml.submit("resources.extra_directives=['--begin=now+1hour']", "workload.command=true")

    shown = hpcml("status")

    assert b"BeginTime" in shown.stdout, shown.stdout
    assert b"expected to start 2" in shown.stdout, shown.stdout
    hpcml("cancel", hpcml.runs()[0]["uid"], "--yes")


def test_many_questions_cost_the_controller_one_call(hpcml: Hpcml) -> None:
    for name in ("squeue", "sacct"):
        text = f'#!/bin/bash\necho {name} >> "{hpcml.project}/calls"\nexec /usr/bin/{name} "$@"\n'
        wrappers = hpcml.account.call(as_user.write_program, hpcml.project / "wrappers", name, text)
    hpcml.submit("-m", "seed=range(8)", "resources.extra_directives=[--hold]", "workload.command=true")
    environ = {"PATH": f"{wrappers}:{hpcml.account.environ['PATH']}", "HPCML_POLL_INTERVAL_S": "60"}

    for _ in range(4):
        assert hpcml("status", **environ).returncode == 0
    calls = (hpcml.project / "calls").read_text().split()

    assert calls == ["squeue"]
    hpcml("cancel", "--experiment", "default", "--yes")


def test_the_code_that_runs_is_what_was_submitted(hpcml: Hpcml) -> None:
    program = hpcml.write("train.py", "print('as submitted')\n")
    for words in (["git", "init", "-q"], ["git", "add", "train.py"]):
        assert hpcml.account.run(words, cwd=hpcml.project).returncode == 0
    hpcml.submit("resources.extra_directives=['--begin=now+4']", "workload.command=python3 train.py")
    program.write_text("print('edited while it waited')\n")

    (run,) = hpcml.runs_once_ended()

    assert hpcml("logs", run["uid"]).stdout == b"as submitted\n"


def test_waiting_ends_when_the_journals_tell_of_the_end(hpcml: Hpcml) -> None:
    hpcml.submit("-m", "seed=0,1", "workload.command=sleep 5")

    waited = hpcml("wait", HPCML_POLL_INTERVAL_S="3600")  # the journals tell of these ends, not the scheduler

    assert waited.returncode == 0, waited.stderr.decode()
    assert waited.stdout.count(b"COMPLETED") == 2, waited.stdout
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED"] * 2


def test_one_limit_is_divided_among_all_arrays_of_a_sweep(hpcml: Hpcml) -> None:
    noted = "import time; print(time.time()); time.sleep(1); print(time.time())"
    words = ("cluster.max_array_size=2", "resources.array_parallelism=2", f"workload.command=\"python3 -c '{noted}'\"")

    submitted = hpcml.submit("-m", "seed=0,1,2,3", *words)

    runs = hpcml.runs_once_ended()
    assert [run["state"] for run in runs] == ["COMPLETED"] * 4, [run["reason"] for run in runs]
    assert len({run["job_id"] for run in submitted}) == 2
    times = sorted(tuple(map(float, (Path(run["path"]) / "logs" / "0-rank0.out").read_text().split())) for run in runs)
    assert all(sum(begin <= moment < end for begin, end in times) <= 2 for moment, _ in times)


def test_runs_wait_for_runs_and_those_that_wait_in_vain_say_for_whom(hpcml: Hpcml) -> None:
    first, second = hpcml.submit("-m", "seed=0,1", "experiment=first", until_gate(hpcml))
    (bad,) = hpcml.submit("experiment=other", until_gate(hpcml).replace("done'", "done; exit 3'"))
    ends = 'workload.command="true"'

    (after_one,) = hpcml.submit(f"resources.dependency=afterok:{second['uid']}", ends)
    (after_all,) = hpcml.submit("resources.dependency='afterok:first,after:other'", ends, "seed=7")
    (in_vain,) = hpcml.submit(f"resources.dependency=afterok:{bad['uid']}", ends, "seed=8")
    script = (Path(after_one["path"]) / "job.sh").read_text()
    assert f"#SBATCH --dependency=afterok:{second['job_id']}_1\n" in script
    assert "#SBATCH --kill-on-invalid-dep=yes\n" in script

    hpcml.write("gate", "")

    runs = {run["uid"]: run for run in hpcml.runs_once_ended()}
    assert [runs[one["uid"]]["state"] for one in (first, second, after_one, after_all)] == ["COMPLETED"] * 4
    vain = runs[in_vain["uid"]]
    assert (vain["state"], vain["cause"]) == ("CANCELLED", "dependency"), vain["reason"]
    assert f"it waits for run {bad['uid']} (afterok), which is FAILED" in vain["reason"]
