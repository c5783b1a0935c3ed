"""The queue of this machine: packs, what was submitted already, runs that are started once more, and its claims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.state import read_fold
from hpcml.schedulers.contract import Batch, Job, Ticket
from hpcml.schedulers.local.queue import LocalBatch, Queued, drain, read_batch, read_ticket, write_batch
from hpcml.schedulers.local.slots import Need, Pool
from hpcml.schedulers.local.submitter import LocalSubmitter
from tests.schedulers.pbs.runs import batch_of, events, output, write_job


@pytest.fixture
def submitter(tmp_path: Path) -> LocalSubmitter:
    pool = Pool(cores=2, gpus=[])
    return LocalSubmitter(submissions=tmp_path / "s", lock_dir=tmp_path / "locks", pool=lambda: pool, max_parallel=None)


def job_of(submitter: LocalSubmitter, folder: Path, text: str, index: int = 0) -> Job:
    return write_job(submitter, folder, ["bash", "-c", text], index=index, cluster="local")


def wait_for_end(submitter: LocalSubmitter, *tickets: Ticket) -> None:
    until = time.monotonic() + 300
    while submitter.query(tickets).known:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_pack_is_one_claim_and_one_agent_that_runs_it_in_turn(submitter: LocalSubmitter, tmp_path: Path) -> None:
    text = f"echo began >>{tmp_path}/diary; sleep 0.5; echo ended >>{tmp_path}/diary"
    jobs = [job_of(submitter, tmp_path, text, index) for index in range(3)]
    batch = batch_of(jobs, in_packs_of=3)

    tickets = submitter.submit(batch)
    wait_for_end(submitter, *tickets)

    assert [(ticket.array_index, ticket.is_shared) for ticket in tickets] == [(0, True)] * 3
    assert (tmp_path / "diary").read_text().split() == ["began", "ended"] * 3
    started = [events(job, "attempt_started")[0] for job in jobs]
    assert len({start["pid"] for start in started}) == 1
    assert all(events(job, "attempt_ended")[0]["state"] == "COMPLETED" for job in jobs)


def test_a_run_that_needs_all_cores_starts_before_smaller_ones_of_later_submissions(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    def job(text: str, index: int, cores: int = 1) -> Job:
        words, needs = ["bash", "-c", text], f"resources.cpus_per_task={cores}"
        return write_job(submitter, tmp_path, words, needs, index=index, cluster="local")

    def diary(index: int) -> str:
        return f"echo {index} >>{tmp_path}/diary"

    first = job(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", 0)
    large, small = job(diary(1), 1, cores=2), [job(diary(index), index) for index in (2, 3)]
    tickets = [*submitter.submit(batch_of([first])), *submitter.submit(batch_of([large]))]
    tickets += [ticket for one in small for ticket in submitter.submit(batch_of([one]))]
    time.sleep(0.5)
    waiting = [submitter.query([ticket]).known[ticket].reason or "" for ticket in tickets[1:]]
    (tmp_path / "go").touch()
    wait_for_end(submitter, *tickets)

    assert [why.rpartition("; ")[2] for why in waiting] == [f"no. {n} of 3 that wait in this home" for n in (1, 2, 3)]
    assert (tmp_path / "diary").read_text().split()[0] == "1"
    assert not list(submitter.lock_dir.glob("*.waits"))


def test_modules_of_the_folder_where_somebody_types_are_none_of_the_queues(
    submitter: LocalSubmitter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("grp", "queue", "tarfile"):  # as Python's own, which the queue and its agent load
        (project / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of a project')\n")
    monkeypatch.chdir(project)

    (ticket,) = submitter.submit(batch_of([job := job_of(submitter, tmp_path, "exit 0")]))
    wait_for_end(submitter, ticket)

    assert events(job, "attempt_ended")[0]["state"] == "COMPLETED"


def test_a_submission_is_found_by_its_token(submitter: LocalSubmitter, tmp_path: Path) -> None:
    batch = batch_of([job_of(submitter, tmp_path, "true", index) for index in range(2)])
    before = submitter.find(batch)

    tickets = submitter.submit(batch)

    assert before is None
    assert submitter.find(batch) == tickets
    wait_for_end(submitter, *tickets)
    assert submitter.find(batch) == tickets


def test_a_start_that_goes_on_though_its_caller_was_killed_is_waited_for(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    batch = batch_of([job_of(submitter, tmp_path, "true")])
    folder = submitter.submissions / batch.token
    folder.mkdir(parents=True)
    (job,) = batch.jobs
    queued = Queued(sources=[str(job.source)], script=str(job.script), need=Need(cores=1, gpus=0))
    local = LocalBatch(jobs=[queued], lock_dir=str(submitter.lock_dir), pool=submitter.pool(), max_parallel=None)
    write_batch(folder, local)
    start = [sys.executable, "-m", "hpcml.schedulers.local.start", str(folder)]
    process = subprocess.Popen(start, start_new_session=True)
    until = time.monotonic() + 300
    while psutil.Process(process.pid).cmdline()[1:] != start[1:]:
        assert time.monotonic() < until

    found = submitter.find(batch)

    process.wait()
    assert found is not None
    assert found[0].job_id == json.loads((folder / "ticket.json").read_text())["job_id"]
    wait_for_end(submitter, *found)


# Python reads this module when it starts: it kills the starter when that has begun the queue, and knows of no ticket.
_DIES_ONCE_IT_HAS_FORKED = """
import os, signal, sys, time
if "hpcml.schedulers.local.start" in sys.orig_argv:
    fork = os.fork
    def fork_and_die():
        if fork():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
        return 0
    os.fork = fork_and_die
"""


def test_a_queue_is_taken_for_started_though_its_starter_was_killed(
    submitter: LocalSubmitter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_DIES_ONCE_IT_HAS_FORKED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    batch = batch_of([job_of(submitter, tmp_path, "true")])

    tickets = submitter.submit(batch)

    assert submitter.find(batch) == tickets
    assert tickets[0].job_id.partition("-")[0].isdecimal()
    wait_for_end(submitter, *tickets)


def test_the_queue_is_no_child_of_who_submitted_and_leaves_nothing_behind(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    job = job_of(submitter, tmp_path, "echo $PPID")
    (ticket,) = submitter.submit(batch_of([job]))
    assert ticket.queue is not None
    with suppress(psutil.NoSuchProcess):
        queue = psutil.Process(ticket.queue.pid)
        assert os.getpid() not in (queue.ppid(), os.getsid(queue.pid))
    wait_for_end(submitter, ticket)

    assert (submitter.submissions / job.run_dir.uid / "queue.log").read_text() == ""


def test_a_run_that_asks_for_it_is_started_once_more(submitter: LocalSubmitter, tmp_path: Path) -> None:
    """The job's script stands for the agent: it asks once, and ends with the exit status of one that will go on."""
    job = job_of(submitter, tmp_path, "true")
    job.script.write_text(
        f'echo "$HPCML_QUEUE_INDEX" >>{tmp_path}/starts\n'
        f'[ "$(wc -l <{tmp_path}/starts)" -gt 1 ] || {{ $HPCML_REQUEUE "{job.source}" >{tmp_path}/told; exit 75; }}\n'
    )

    (ticket,) = submitter.submit(batch_of([job]))
    wait_for_end(submitter, ticket)

    assert (tmp_path / "starts").read_text().split() == ["0", "0"]
    assert json.loads((tmp_path / "told").read_text()) == {
        "scheduler": "local", "job_id": ticket.job_id, "array_index": 0, "job_name": None,
    }  # fmt: skip


def test_an_exit_status_alone_starts_nothing_again(submitter: LocalSubmitter, tmp_path: Path) -> None:
    job = job_of(submitter, tmp_path, "true")
    job.script.write_text(f"echo x >>{tmp_path}/starts\nexit 75\n")

    (ticket,) = submitter.submit(batch_of([job]))
    wait_for_end(submitter, ticket)

    assert (tmp_path / "starts").read_text() == "x\n"


def test_marked_runs_are_passed_over_and_a_pack_only_if_all_of_it_is(submitter: LocalSubmitter, tmp_path: Path) -> None:
    jobs = [job_of(submitter, tmp_path, "true", index) for index in range(5)]
    for job in (jobs[0], jobs[1], jobs[2], jobs[4]):
        job.run_dir.cancel_mark.touch()
    batch = Batch(token=jobs[0].run_dir.uid, packs=[jobs[:2], jobs[2:4], jobs[4:]])

    tickets = submitter.submit(batch)
    wait_for_end(submitter, *tickets)

    assert [len(events(job, "attempt_ended")) for job in (jobs[0], jobs[1], jobs[3], jobs[4])] == [0, 0, 1, 0]


def test_a_queue_inside_of_somebodys_array_job_does_not_confuse_its_agents(
    tmp_path: Path, submitter: LocalSubmitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAY_ID", "HPCML_PACK",
             "HPCML_ARRAY_INDEX", "HPCML_NODE_RANK")  # fmt: skip
    for name in names:
        monkeypatch.setenv(name, "7")
    told = "".join(f"${name}" for name in names)
    jobs = [job_of(submitter, tmp_path, f"echo {told}", index) for index in range(2)]

    tickets = submitter.submit(batch_of(jobs, in_packs_of=2))
    wait_for_end(submitter, *tickets)

    assert [output(job) for job in jobs] == ["\n", "\n"]


def test_a_killed_agent_frees_its_cores_when_its_program_is_gone_too(tmp_path: Path) -> None:
    submitter = LocalSubmitter(
        submissions=tmp_path / "s", lock_dir=tmp_path / "locks", pool=lambda: Pool(cores=1, gpus=[]), max_parallel=None
    )
    killed = job_of(submitter, tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60")
    after = job_of(submitter, tmp_path, f"ps -o stat= -p $(cat {tmp_path}/pid) || echo gone", index=1)
    tickets = submitter.submit(batch_of([killed, after]))
    until = time.monotonic() + 300
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)

    os.kill(int(str(events(killed, "attempt_started")[0]["pid"])), 9)
    wait_for_end(submitter, *tickets)

    assert output(after)[0] in ("g", "Z")  # gone, or dead and not yet buried


def test_the_queue_is_a_function_of_its_folder(tmp_path: Path, submitter: LocalSubmitter) -> None:
    write_batch(
        tmp_path, LocalBatch(jobs=[], lock_dir=str(tmp_path / "locks"), pool=submitter.pool(), max_parallel=None)
    )

    drain(str(tmp_path))  # and there is nothing to do


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exec {gone}/bin/python -P -c pass", "{gone}/bin/python: No such file or directory"),
        (
            "exec {python} -P -c 'import hpcml_that_is_gone'",
            "ModuleNotFoundError: No module named 'hpcml_that_is_gone'",
        ),
    ],
    ids=["python", "hpcml"],
)
def test_a_run_whose_python_is_gone_since_its_submission_says_so(
    submitter: LocalSubmitter, tmp_path: Path, script: str, why: str
) -> None:
    """A virtual environment that was removed or made anew while runs waited."""
    first, second = (job_of(submitter, tmp_path, f"echo {index} >>{tmp_path}/ran", index) for index in range(2))
    words = {"gone": tmp_path / "venv", "python": sys.executable}
    second.script.write_text("#!/bin/bash\n" + script.format(**words))

    wait_for_end(submitter, *submitter.submit(batch_of([first, second])))

    told = read_fold(second.run_dir)
    assert (tmp_path / "ran").read_text() == "0\n"
    assert told.state is State.FAILED
    assert (told.reason or "").startswith("it was not started: ")
    assert (told.reason or "").endswith(why.format(**words))


@pytest.mark.parametrize("damage", [os.mkfifo, lambda path: path.write_text('{"agent": {}}')])
def test_a_queue_whose_notes_are_damaged_starts_what_no_agent_has_begun(
    submitter: LocalSubmitter, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    jobs = [job_of(submitter, tmp_path, "true", index) for index in range(2)]
    needs = Need(cores=1, gpus=0)
    queued = [Queued(sources=[str(job.source)], script=str(job.script), need=needs) for job in jobs]
    folder = tmp_path / "s" / "batch"
    folder.mkdir(parents=True)
    batch = LocalBatch(jobs=queued, lock_dir=str(submitter.lock_dir), pool=submitter.pool(), max_parallel=None)
    write_batch(folder, batch)
    for index in range(2):
        damage(folder / f"job-{index}.json")
    jobs[0].run_dir.logs.mkdir(exist_ok=True)
    jobs[0].run_dir.agent_log(0).touch()

    drain(str(folder))

    assert [len(events(job, "attempt_started")) for job in jobs] == [0, 1]


def test_a_job_that_cannot_be_started_fails_alone_and_in_one_line(submitter: LocalSubmitter, tmp_path: Path) -> None:
    jobs = [job_of(submitter, tmp_path, f"echo {index} >>{tmp_path}/ran", index) for index in range(3)]
    batch = batch_of(jobs)
    (submitter.submissions / batch.token / "job-1.json" / "x").mkdir(parents=True)

    wait_for_end(submitter, *submitter.submit(batch))

    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "2"]
    told = [read_fold(job.run_dir) for job in jobs]
    assert [one.state for one in told] == [State.COMPLETED, State.FAILED, State.COMPLETED]
    assert (told[1].reason or "").startswith("it was not started: ")
    assert (told[1].reason or "").endswith("job-1.json: Is a directory")


@pytest.mark.parametrize("damage", [os.mkfifo, Path.mkdir, lambda path: path.write_text("[]")])
def test_a_damaged_ticket_or_batch_is_told_in_one_line(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    damage(tmp_path / "ticket.json")
    damage(tmp_path / "queue.json")

    with pytest.raises(HpcmlError, match=r"ticket\.json is damaged"):
        read_ticket(tmp_path)
    with pytest.raises(HpcmlError, match=r"queue\.json (is|cannot)"):
        read_batch(tmp_path)
