"""The queue of this machine: order, packs, what was submitted already, runs that are started once more, kills."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.state import read_fold
from hpcml.schedulers.contract import Batch, Job, Ticket
from hpcml.schedulers.local import jobs as queued
from hpcml.schedulers.local.runtime import Pool, RuntimeFolder
from hpcml.schedulers.local.submitter import LocalSubmitter
from hpcml.schedulers.local.waiting import left_by_killed
from tests.schedulers.pbs.runs import batch_of, events, output, write_job


def submitter_of(home: Path, runtime: Path, *, cores: int = 2) -> LocalSubmitter:
    pool = Pool(cores=cores, gpus=[])
    return LocalSubmitter(submissions=home / "submissions", lock_dir=runtime, pool=lambda: pool, max_parallel=None)


@pytest.fixture
def submitter(tmp_path: Path) -> LocalSubmitter:
    return submitter_of(tmp_path, tmp_path / "runtime")


def job_of(submitter: LocalSubmitter, folder: Path, text: str, index: int = 0, cores: int = 1) -> Job:
    needs = f"resources.cpus_per_task={cores}"
    return write_job(submitter, folder, ["bash", "-c", text], needs, index=index, cluster="local")


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def wait_for_end(submitter: LocalSubmitter, *tickets: Ticket) -> None:
    until(lambda: not submitter.query(tickets).known)


def queues_of(submitter: LocalSubmitter) -> list[int]:
    """Return the processes that serve the submitter's runtime folder."""
    words = ["hpcml.schedulers.local.start", str(submitter.lock_dir)]
    found = psutil.process_iter(["cmdline", "ppid"])
    return [process.pid for process in found if (process.info["cmdline"] or [])[-3:-1] == words]


def kill_queue(submitter: LocalSubmitter) -> None:
    (pid,) = queues_of(submitter)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not RuntimeFolder(submitter.lock_dir).is_at_work)


def test_a_pack_is_one_job_and_one_agent_that_runs_it_in_turn(submitter: LocalSubmitter, tmp_path: Path) -> None:
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


def test_a_run_that_needs_all_cores_is_not_starved_by_smaller_ones_that_came_later(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    def diary(index: int) -> str:
        return f"echo {index} >>{tmp_path}/diary"

    first = job_of(submitter, tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", 0)
    large = job_of(submitter, tmp_path, diary(1), 1, cores=2)
    small = [job_of(submitter, tmp_path, diary(index), index) for index in (2, 3)]
    tickets = [*submitter.submit(batch_of([first]))]
    until(lambda: events(first, "attempt_started"))
    tickets += [ticket for one in (large, *small) for ticket in submitter.submit(batch_of([one]))]
    time.sleep(0.5)
    waiting = [submitter.query([ticket]).known[ticket].reason or "" for ticket in tickets[1:]]
    (tmp_path / "go").touch()
    wait_for_end(submitter, *tickets)

    assert waiting[0].startswith("waiting for 1 core")
    assert [why.rpartition("; ")[2] for why in waiting] == [
        f"no. {n} of 3 that wait on this machine" for n in (1, 2, 3)
    ]
    assert "waiting for its turn; " in waiting[1]
    assert (tmp_path / "diary").read_text().split()[0] == "1"


def test_a_later_run_passes_one_that_leaves_it_enough_and_one_that_never_can_start(tmp_path: Path) -> None:
    four, two = (submitter_of(tmp_path, tmp_path / "runtime", cores=cores) for cores in (4, 2))
    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    first = job_of(four, tmp_path, waits, 0, cores=3)
    large = job_of(four, tmp_path, "true", 1, cores=2)
    tickets = four.submit(batch_of([first]))
    until(lambda: events(first, "attempt_started"))
    tickets += four.submit(batch_of([large]))
    too_large, small = job_of(two, tmp_path, "true", 2, cores=3), job_of(four, tmp_path, "true", 3)
    two.submit(batch_of([too_large]))
    (last,) = four.submit(batch_of([small]))

    time.sleep(1.0)
    before = events(small, "attempt_started")
    (tmp_path / "go").touch()
    wait_for_end(four, *tickets, last)

    assert before == []  # of four cores three are taken, and one is kept
    assert len(events(small, "attempt_started")) == len(events(large, "attempt_started")) == 1
    assert events(too_large, "attempt_started") == []
    too_large.run_dir.cancel_mark.touch()


def test_two_homes_share_the_cores_and_one_order_of_arrival(tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("one", "two")]
    for home in homes:
        home.mkdir(mode=0o700)
    here, there = (submitter_of(home, tmp_path / "runtime", cores=1) for home in homes)
    text = f"echo began >>{tmp_path}/diary; sleep 0.3; echo ended >>{tmp_path}/diary"
    ours = [job_of(here, homes[0], text, index) for index in range(2)]
    theirs = [job_of(there, homes[1], text, index) for index in range(2)]

    first, second = here.submit(batch_of(ours)), there.submit(batch_of(theirs))
    (waiting,) = there.query(second[1:]).known.values()
    served_by = queues_of(here)
    wait_for_end(here, *first)
    wait_for_end(there, *second)

    assert len(served_by) == 1
    assert str(waiting.reason) == "waiting for 1 core; no. 3 of 3 that wait on this machine"
    assert (tmp_path / "diary").read_text().split() == ["began", "ended"] * 4


def test_each_run_has_the_environment_of_its_own_submission(
    submitter: LocalSubmitter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job_of(submitter, tmp_path, "echo $WHOSE; sleep 1", index) for index in range(2)]
    tickets = []
    for index, job in enumerate(jobs):
        monkeypatch.setenv("WHOSE", str(index))
        tickets += submitter.submit(batch_of([job]))
    wait_for_end(submitter, *tickets)

    assert [output(job) for job in jobs] == ["0\n", "1\n"]
    until(lambda: not list((tmp_path / "submissions" / "queues").iterdir()))


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


def test_where_the_queue_cannot_be_started_nothing_is_queued(
    submitter: LocalSubmitter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'hpcml.schedulers.local.start' in sys.orig_argv: raise SystemExit('no memory')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    batch = batch_of([job_of(submitter, tmp_path, "true")])

    with pytest.raises(HpcmlError, match="the local queue did not start: SystemExit: no memory"):
        submitter.submit(batch)

    assert submitter.find(batch) is None
    monkeypatch.undo()
    wait_for_end(submitter, *submitter.submit(batch))


def test_the_queue_is_no_child_of_who_submitted_and_leaves_nothing_behind(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    (ticket,) = submitter.submit(batch_of([job_of(submitter, tmp_path, "sleep 1")]))
    (pid,) = queues_of(submitter)
    queue = psutil.Process(pid)
    assert os.getpid() not in (queue.ppid(), os.getsid(pid))
    wait_for_end(submitter, ticket)
    with suppress(psutil.NoSuchProcess):
        queue.wait(60)

    assert RuntimeFolder(submitter.lock_dir).log.read_text() == ""
    assert not list((submitter.lock_dir / "jobs").iterdir())
    assert not list((submitter.submissions / "queues").iterdir())


def test_a_submission_that_comes_as_the_queue_ends_is_run_as_any_other(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    """Each begins when nothing is left to do, and so races with the queue's last look."""
    job = job_of(submitter, tmp_path, "true")
    job.script.write_text(f"echo >>{tmp_path}/ran\n")
    for number in range(50):
        wait_for_end(submitter, *submitter.submit(Batch(token=f"{job.run_dir.uid}-r{number}", packs=[[job]])))

    assert (tmp_path / "ran").read_text() == "\n" * 50


def test_twenty_submissions_at_once_run_once_each_and_share_the_cores(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    jobs = [job_of(submitter, tmp_path, "true", index) for index in range(20)]
    tickets: list[Ticket] = []
    for index, job in enumerate(jobs):
        job.script.write_text(f"echo +{index} >>{tmp_path}/diary; sleep 0.3; echo -{index} >>{tmp_path}/diary\n")
    threads = [
        threading.Thread(target=lambda job=job: tickets.extend(submitter.submit(batch_of([job])))) for job in jobs
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for_end(submitter, *tickets)

    diary = (tmp_path / "diary").read_text().split()
    running = list(itertools.accumulate(1 if word[0] == "+" else -1 for word in diary))
    assert sorted(int(word) for word in diary if word[0] == "+") == list(range(20))
    assert max(running) <= 2


def test_a_killed_queue_is_started_again_with_what_waits_and_takes_over_what_runs(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    text = f"echo x >>{tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    jobs = [job_of(submitter, tmp_path, text, index) for index in range(5)]
    tickets = submitter.submit(batch_of(jobs))
    until(lambda: (tmp_path / "ran").exists() and (tmp_path / "ran").read_text() == "x\nx\n")

    kill_queue(submitter)
    left, reason = left_by_killed(submitter.submissions), submitter.query(tickets).known[tickets[2]].reason
    said, again = list(submitter.start_again()), list(submitter.start_again())
    time.sleep(1.0)
    meanwhile = (tmp_path / "ran").read_text()
    (tmp_path / "go").touch()
    wait_for_end(submitter, *tickets)

    assert (left, said, again) == (3, ["the local queue was killed with 3 runs left, and was started again"], [])
    assert str(reason).startswith("waiting for 1 core")
    assert meanwhile == "x\nx\n"  # its agents have their cores
    assert (tmp_path / "ran").read_text() == "x\n" * 5
    assert [len(events(job, "attempt_started")) for job in jobs] == [1] * 5


def test_after_a_restart_of_the_machine_what_waited_is_started(submitter: LocalSubmitter, tmp_path: Path) -> None:
    jobs = [job_of(submitter, tmp_path, f"echo {index} >>{tmp_path}/ran; sleep 60", index) for index in range(3)]
    submitter.submit(batch_of(jobs))
    until(lambda: (tmp_path / "ran").exists() and len((tmp_path / "ran").read_text()) == 4)
    kill_queue(submitter)
    for job in jobs[:2]:
        os.kill(int(str(events(job, "attempt_started")[0]["pid"])), signal.SIGKILL)
    rebooted = replace(submitter, lock_dir=tmp_path / "runtime after it")
    submitter.lock_dir.rename(tmp_path / "gone")

    assert list(rebooted.start_again()) == ["the local queue was killed with 3 runs left, and was started again"]

    until(lambda: (tmp_path / "ran").read_text().split()[2:] == ["2"])
    os.kill(int(str(events(jobs[2], "attempt_started")[0]["pid"])), signal.SIGKILL)
    until(lambda: not RuntimeFolder(rebooted.lock_dir).is_at_work)
    assert [len(events(job, "attempt_started")) for job in jobs] == [1] * 3


def test_a_run_that_asks_for_it_is_started_once_more(submitter: LocalSubmitter, tmp_path: Path) -> None:
    """The job's script stands for the agent: it begins, asks once, and ends with the status of one that will go on."""
    job = job_of(submitter, tmp_path, "true")
    job.script.write_text(
        f'echo "$HPCML_QUEUE_INDEX" >>{tmp_path}/starts; n=$(wc -l <{tmp_path}/starts)\n'
        f"touch {job.run_dir.logs}/$n-agent.log\n"
        f'[ "$n" -gt 1 ] || {{ $HPCML_REQUEUE "{job.source}" >{tmp_path}/told; exit 75; }}\n'
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
    submitter = submitter_of(tmp_path, tmp_path / "runtime", cores=1)
    killed = job_of(submitter, tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60")
    after = job_of(submitter, tmp_path, f"ps -o stat= -p $(cat {tmp_path}/pid) || echo gone", index=1)
    tickets = submitter.submit(batch_of([killed, after]))
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())

    os.kill(int(str(events(killed, "attempt_started")[0]["pid"])), 9)
    wait_for_end(submitter, *tickets)

    assert output(after)[0] in ("g", "Z")  # gone, or dead and not yet buried


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exec {gone}/bin/python -P -c pass", "{gone}/bin/python: No such file or directory"),
        (
            "exec {python} -P -c 'import hpcml_that_is_gone'",
            "ModuleNotFoundError: No module named 'hpcml_that_is_gone'",
        ),
        ("kill -9 $$", "its agent was killed before it began"),
    ],
    ids=["python", "hpcml", "killed"],
)
def test_a_run_whose_agent_cannot_begin_says_why(
    submitter: LocalSubmitter, tmp_path: Path, script: str, why: str
) -> None:
    """A virtual environment that was removed or made anew while runs waited, say."""
    first, second = (job_of(submitter, tmp_path, f"echo {index} >>{tmp_path}/ran", index) for index in range(2))
    words = {"gone": tmp_path / "venv", "python": sys.executable}
    second.script.write_text("#!/bin/bash\n" + script.format(**words))

    wait_for_end(submitter, *submitter.submit(batch_of([first, second])))

    told = read_fold(second.run_dir)
    assert (tmp_path / "ran").read_text() == "0\n"
    assert told.state is State.FAILED
    assert (told.reason or "").startswith("it was not started: ")
    assert (told.reason or "").endswith(why.format(**words))


def test_a_job_that_cannot_be_started_fails_alone_and_in_one_line(submitter: LocalSubmitter, tmp_path: Path) -> None:
    jobs = [job_of(submitter, tmp_path, f"echo {index} >>{tmp_path}/ran", index) for index in range(3)]
    (jobs[1].run_dir.path / "queue.log").mkdir()

    wait_for_end(submitter, *submitter.submit(batch_of(jobs)))

    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "2"]
    told = [read_fold(job.run_dir) for job in jobs]
    assert [one.state for one in told] == [State.COMPLETED, State.FAILED, State.COMPLETED]
    assert (told[1].reason or "").startswith("it was not started: ")
    assert (told[1].reason or "").endswith("queue.log: Is a directory")


@pytest.mark.parametrize("damage", [os.mkfifo, Path.mkdir, lambda path: path.write_text("[]")])
def test_a_damaged_batch_is_told_in_one_line_and_holds_up_no_other(
    submitter: LocalSubmitter, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    path = queued.new_file(submitter.submissions, "20261121-083015-abc")
    path.parent.mkdir(parents=True)
    damage(path)

    with pytest.raises(HpcmlError, match=r"abc@.*\.json (is|cannot)"):
        queued.read_batch(path)
    (said,) = submitter.start_again()
    assert said.startswith("the local queue cannot start 20261121-083015-abc: ")
    wait_for_end(submitter, *submitter.submit(batch_of([job := job_of(submitter, tmp_path, "true")])))
    assert read_fold(job.run_dir).state is State.COMPLETED


def test_a_process_that_looks_whether_a_queue_is_at_work_keeps_nobody_from_starting_it(
    submitter: LocalSubmitter, tmp_path: Path
) -> None:
    look = (
        "import sys, pathlib; from hpcml.schedulers.local.runtime import RuntimeFolder\n"
        f"stop, folder = pathlib.Path({str(tmp_path / 'stop')!r}), RuntimeFolder(pathlib.Path(sys.argv[1]))\n"
        "while not stop.exists(): folder.is_at_work"
    )
    looking = [subprocess.Popen([sys.executable, "-c", look, str(submitter.lock_dir)]) for _ in range(2)]
    job = job_of(submitter, tmp_path, "true")
    job.script.write_text(f"echo >>{tmp_path}/ran\n")
    for number in range(5):
        wait_for_end(submitter, *submitter.submit(Batch(token=f"{job.run_dir.uid}-r{number}", packs=[[job]])))
        until(lambda: not RuntimeFolder(submitter.lock_dir).is_at_work)
    (tmp_path / "stop").touch()

    assert [one.wait(60) for one in looking] == [0, 0]
    assert (tmp_path / "ran").read_text() == "\n" * 5
