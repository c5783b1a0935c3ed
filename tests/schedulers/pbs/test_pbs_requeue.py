"""Runs on the PBS double that are looked up, tried again, packed, and put back into the queue by their own jobs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.model.state import State
from hpcml.runs.manifest import write_manifest
from hpcml.schedulers import requeue
from hpcml.schedulers.commands import NoAnswerError
from hpcml.schedulers.contract import Job, Ticket
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.pbs.scheduler import asking_environ
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.pbs.runs import batch_of, output, until_final, wait_for_start, write_job


def requeueing_script(job: Job) -> Path:
    """Leave a script like the run's own, which puts the run back into the queue instead of running it."""
    lines = job.script.read_text().splitlines()
    assert lines[-1].startswith("exec ")
    script = job.run_dir.path / "requeue.sh"
    script.write_text("\n".join([*lines[:-1], f'exec $HPCML_REQUEUE "{job.source}"', ""]))
    return script


def submitted_by_hand(script: Path, *words: str) -> Ticket:
    done = subprocess.run(["qsub", *words, script], capture_output=True, text=True, check=True)
    return Ticket(scheduler="pbs", job_id=done.stdout.strip())


def test_a_run_is_put_back_into_the_queue_as_a_new_job_of_its_own_script(submitter: Driver, folder: Path) -> None:
    (failed,) = submitter.submit(batch_of([write_job(submitter, folder, ["false"])]))
    until_final(submitter, [failed])
    after = f"resources.dependency='afterany:{failed.job_id}'"
    job = write_job(submitter, folder, ["echo", "carried on"], after, "resources.walltime=10m", index=1)
    first = submitted_by_hand(requeueing_script(job))
    until_final(submitter, [first])

    (said,) = (job.run_dir.logs / f"{first.job_id}.OU").read_text().splitlines()
    told = json.loads(said)
    second = Ticket(**told)

    assert told == {
        "scheduler": "pbs", "job_id": "3.pbs01", "array_index": None, "job_name": f"default.{job.run_dir.uid}-q2",
    }  # fmt: skip
    assert until_final(submitter, [second])[second].state is State.COMPLETED
    assert output(job) == "carried on\n"
    shown = subprocess.run(["qstat", "-x", "-f", "-w", second.job_id], capture_output=True, text=True, check=True)
    assert "depend = " not in shown.stdout
    assert "Resource_List.walltime = 00:10:00" in shown.stdout


def test_an_element_of_an_array_goes_back_alone(submitter: Driver, folder: Path) -> None:
    job = write_job(submitter, folder, ["echo", "alone"])
    first = submitted_by_hand(requeueing_script(job), "-J", "0-1")
    elements = [replace(first, array_index=index) for index in (0, 1)]
    until_final(submitter, elements)

    told = [json.loads(path.read_text()) for path in sorted(job.run_dir.logs.glob("1[[]*.OU"))]

    assert [said["array_index"] for said in told] == [None, None]
    tickets = [Ticket(**said) for said in told]
    assert State.COMPLETED in {known.state for known in until_final(submitter, tickets).values()}
    assert len(list(job.run_dir.logs.glob("*-rank0.out"))) == 1  # both are of one run, which one of them carries out


def test_a_lost_answer_does_not_put_a_run_back_twice(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    job = write_job(submitter, folder, ["true"])
    pbs.set(closed=True)
    first = submitted_by_hand(requeueing_script(job))
    pbs.set(banner="no id here\n", mute=True)
    until_final(submitter, [first])

    told = json.loads((job.run_dir.logs / f"{first.job_id}.OU").read_text())

    assert told["job_id"] == "2.pbs01"
    assert pbs.calls()["qsub"] == 2


def test_a_node_that_may_not_submit_says_so_in_one_line(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    job = write_job(submitter, folder, ["true"])
    pbs.set(closed=True)
    first = submitted_by_hand(requeueing_script(job))
    pbs.set(refusal="not from this host")

    known = until_final(submitter, [first])[first]

    assert known.exit_code == "3"
    assert (job.run_dir.logs / f"{first.job_id}.OU").read_text() == "PBS refused the job: qsub: not from this host\n"


def test_qsub_is_found_where_the_job_has_no_path_to_it(tmp_path: Path) -> None:
    there = tmp_path / "pbs" / "bin"
    there.mkdir(parents=True)
    (there / "qsub").write_text("#!/bin/sh\n")
    (there / "qsub").chmod(0o755)
    configuration = tmp_path / "pbs.conf"
    configuration.write_text(f"PBS_SERVER=pbs01\nPBS_EXEC={there.parent}\n")

    for variables in ({"PATH": "/nowhere", "PBS_O_PATH": str(there)}, {}):
        path = asking_environ({"PBS_JOBID": "1.pbs01", **variables}, configuration=configuration)["PATH"]
        assert shutil.which("qsub", path=path) == str(there / "qsub")


def test_outside_of_a_job_nothing_is_put_back(
    submitter: Driver, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(submitter, folder, ["true"])

    assert requeue.main(["pbs", str(job.source)]) != 0
    assert requeue.main(["slurm", str(job.source)]) != 0
    assert requeue.main(["local", str(job.source)]) != 0
    assert capsys.readouterr().err.splitlines() == [
        "this is no job of PBS: PBS_JOBID is not set",
        "this is no job of Slurm: SLURM_JOB_ID is not set",
        "no queue of this machine started this run",
    ]


def test_a_retry_is_a_job_of_its_own_script_and_manifest(submitter: Driver, folder: Path) -> None:
    job = write_job(submitter, folder, ["echo", "first"])
    again = Job(run_dir=job.run_dir, manifest=job.manifest, retry=2)
    again.source.parent.mkdir()
    words = [sys.executable, "-c", "print('second')"]
    write_manifest(again.source, replace(job.manifest, plan=replace(job.manifest.plan, argv=words)))
    again.script.write_text(submitter.script_for(again))

    batch = replace(batch_of([again]), token=f"{job.run_dir.uid}-r2")
    (ticket,) = submitter.submit(batch)

    assert ticket.job_name == f"default.{job.run_dir.uid}-r2"
    assert until_final(submitter, [ticket])[ticket].state is State.COMPLETED
    assert output(job) == "second\n"
    assert submitter.find(batch) == [ticket]
    assert submitter.find(batch_of([job])) is None


def test_a_submission_is_found_by_its_name_waiting_running_and_ended(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    alone = batch_of([write_job(submitter, folder, ["true"])])
    array = batch_of([write_job(submitter, folder, ["true"], index=index) for index in (1, 2)])
    before = [submitter.find(alone), submitter.find(array)]
    pbs.set(closed=True)

    tickets = [submitter.submit(alone), submitter.submit(array)]
    waiting = [submitter.find(alone), submitter.find(array)]
    pbs.set()
    until_final(submitter, [ticket for pair in tickets for ticket in pair])
    ended = [submitter.find(alone), submitter.find(array)]
    pbs.set(history=False)

    assert before == [None, None]
    assert waiting == ended == tickets
    assert submitter.find(alone) is None  # only its journal tells: it has run


@pytest.mark.parametrize("fault", [{"down": ["qselect"]}, {"hung": ["qselect"]}])
def test_where_pbs_is_silent_it_is_not_known_whether_a_submission_was_made(
    submitter: Driver, folder: Path, pbs: PbsDouble, fault: dict[str, list[str]]
) -> None:
    job = write_job(submitter, folder, ["true"])
    pbs.set(**fault)

    with pytest.raises(NoAnswerError):
        replace(submitter, ask_timeout_s=0.5).find(batch_of([job]))


def test_a_pack_is_one_plain_job_and_packs_are_the_elements_of_an_array(submitter: Driver, folder: Path) -> None:
    jobs = [
        write_job(submitter, folder, ["echo", str(index)], "resources.walltime=2m", index=index) for index in range(5)
    ]

    one = submitter.submit(batch_of(jobs[:2], in_packs_of=2))
    several = submitter.submit(batch_of(jobs, in_packs_of=2))

    assert [(ticket.job_id, ticket.array_index, ticket.is_shared) for ticket in one] == [("1.pbs01", None, True)] * 2
    assert [(ticket.array_index, ticket.is_shared) for ticket in several] == [
        (0, True), (0, True), (1, True), (1, True), (2, False),
    ]  # fmt: skip
    scripts = [path.read_text() for path in sorted(submitter.submissions.glob("*/job.sh"))]
    assert all("-l walltime=00:05:00\n" in text and "requeue pbs --alone'" in text for text in scripts)
    assert one[0] == one[1]  # the job is one
    until_final(submitter, one[:1])


def test_every_job_is_told_to_end_before_a_refusal_is_raised(submitter: Driver, folder: Path, pbs: PbsDouble) -> None:
    jobs = [write_job(submitter, folder, ["sleep", "60"], index=index) for index in (1, 2)]
    tickets = [submitter.submit(batch_of([job]))[0] for job in jobs]
    for job in jobs:
        wait_for_start(job)
    strange = Ticket(scheduler="pbs", job_id="1.elsewhere")

    with pytest.raises(HpcmlError, match=r"PBS did not cancel every job: qdel: illegally formed"):
        submitter.cancel([strange, *tickets])

    assert {known.state for known in until_final(submitter, tickets).values()} == {State.CANCELLED}
    assert pbs.calls()["qdel"] == 3


def test_a_batch_that_cannot_be_written_down_is_refused_before_anything_is_sent(
    submitter: Driver, folder: Path, pbs: PbsDouble
) -> None:
    jobs = [write_job(submitter, folder, ["true"], index=index) for index in (1, 2)]
    submitter.submissions.write_text("a file")

    with pytest.raises(SubmissionError, match="cannot be written"):
        submitter.submit(batch_of(jobs))

    assert pbs.calls()["qsub"] == 0
