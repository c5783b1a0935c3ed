"""A script handed to sbatch by the driver: what it sends, what it reads, and what is looked for by the job's name.

sbatch and squeue are programs of the test's own, so that no Slurm is needed; the real one is in test_faults.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.errors import SubmissionError
from hpcml.schedulers.batches import own_batch
from hpcml.schedulers.commands import UncertainSubmissionError
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.slurm import SLURM, clusters_of, environ
from tests.schedulers.jobs import write_job
from tests.schedulers.slurm.as_user import CONF
from tests.schedulers.slurm.test_slurm_script import request

SEPARATOR, NAME = "\x1f", "NAME"  # in what a program prints, the name of the job


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the head of PATH, where there is no Slurm yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "bash").symlink_to("/bin/bash")
    (folder / "sleep").symlink_to("/bin/sleep")
    (folder / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def write(folder: Path, program: str, body: str) -> None:
    (folder / program).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
    (folder / program).chmod(0o755)


def submit_script(folder: Path, *, patience_s: float = 60.0) -> str:
    driver = Driver(
        scheduler=SLURM, submissions=folder, submit_timeout_s=patience_s, ask_timeout_s=60.0, pause_s=0.01
    )  # fmt: skip
    job = write_job(driver, CONF, folder, "cluster=testslurm", "workload.command=[true]")
    for program in (folder / "bin").iterdir():
        if not program.is_symlink():
            program.write_text(program.read_text().replace(NAME, f"default.{job.run_dir.uid}"))
    (ticket,) = driver.submit(own_batch(job))
    return f"{ticket.job_id};{ticket.job_cluster}" if ticket.job_cluster else ticket.job_id


def test_a_job_may_be_sent_to_another_cluster(programs: Path, tmp_path: Path) -> None:
    write(programs, "sbatch", f'printf "%s\\n" "$@" >{programs}/words; echo Submitted batch job 7 on cluster karolina')

    assert submit_script(tmp_path) == "7;karolina"

    (word,) = (programs / "words").read_text().splitlines()
    assert word.endswith("/job.sh")


def test_sbatch_sees_neither_an_outer_job_nor_what_outvotes_the_script(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "SBATCH_WAIT", "SUBMITIT_EXECUTOR", "SLURM_CONF"):
        monkeypatch.setenv(name, "9")
    write(programs, "sbatch", f"declare -px >{programs}/environ; echo Submitted batch job 7")

    submit_script(tmp_path)

    seen = set(re.findall(r"(SLURM_\w+|SBATCH_\w+|SUBMITIT_\w+)=", (programs / "environ").read_text()))
    assert seen == {"SLURM_CONF"}


def test_the_cluster_that_jobs_are_sent_to_is_said_by_the_script_alone() -> None:
    variables = {"SBATCH_CLUSTERS": "cm4", "SLURM_CLUSTERS": "serial"}

    assert clusters_of(variables) == "cm4"
    assert environ(variables, request()) == {}


def test_a_banner_that_speaks_of_another_job_is_not_read_as_the_answer(programs: Path, tmp_path: Path) -> None:
    write(programs, "sbatch", "echo your last job 5 wasted 3 GPU hours; echo Submitted batch job 12; echo see job 6")

    assert submit_script(tmp_path) == "12"


def test_what_sbatch_says_beside_its_answer_is_passed_on_and_a_banner_is_not(
    programs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        programs, "sbatch", "echo WELCOME >&2; echo 'sbatch: warning: --gres is old' >&2; echo Submitted batch job 12"
    )

    assert submit_script(tmp_path) == "12"

    assert [record.getMessage() for record in caplog.records] == ["sbatch said: warning: --gres is old"]


def test_an_answer_without_a_number_sends_us_to_the_queue(programs: Path, tmp_path: Path) -> None:
    write(programs, "sbatch", "echo welcome")
    write(programs, "squeue", f"echo '99{SEPARATOR}{NAME}'")

    assert submit_script(tmp_path) == "99"


@pytest.mark.parametrize("line", [r"\e[32mSubmitted batch job 99\e[0m", "[site] Submitted batch job 99", "99;karolina"])
def test_an_answer_in_other_words_is_looked_up_and_no_number_of_a_banner_is_taken(
    programs: Path, tmp_path: Path, line: str
) -> None:
    write(programs, "sbatch", f"echo -e '{line}'; echo 'your last job 5 wasted 3 GPU hours'")
    write(programs, "squeue", f"echo '99{SEPARATOR}{NAME}'")

    assert submit_script(tmp_path) == "99"


def test_of_what_a_wrapper_submits_twice_the_last_is_the_runs(programs: Path, tmp_path: Path) -> None:
    write(programs, "sbatch", "for id in 98 99; do echo Submitted batch job $id; done")

    assert submit_script(tmp_path) == "99"


def test_an_answer_without_a_number_and_a_queue_without_the_job_is_told(programs: Path, tmp_path: Path) -> None:
    write(programs, "sbatch", "echo welcome")
    write(programs, "squeue", "true")

    with pytest.raises(SubmissionError) as told:
        submit_script(tmp_path)

    assert str(told.value).startswith("sbatch named no job: welcome; Slurm has no job called default.")


def test_a_refusal_is_told_in_slurms_words_and_not_tried_again(programs: Path, tmp_path: Path) -> None:
    refusal = "sbatch: error: Batch job submission failed: Invalid qos specification"
    write(programs, "sbatch", f"echo called >>{programs}/calls; echo '{refusal}' >&2; exit 1")

    with pytest.raises(SubmissionError, match=r"^Slurm refused the job: Invalid qos specification \("):
        submit_script(tmp_path)

    assert (programs / "calls").read_text() == "called\n"


QUEUED = "echo Submitted batch job 99"


@pytest.mark.parametrize(
    "body",
    [
        f"{QUEUED}; kill -9 $$",
        f"{QUEUED}; exit 1",
        "kill -9 $$",
        "echo 'the accounting of projects is down' >&2; exit 1",
        "echo 'sbatch: error: a plugin of the site failed' >&2; exit 1",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
        "exit 137",
        "exit 0",
    ],
)
def test_an_sbatch_that_dies_or_fails_after_it_has_queued_the_job_is_no_refusal(
    programs: Path, tmp_path: Path, body: str
) -> None:
    write(programs, "sbatch", f"echo called >>{programs}/calls; {body}")
    write(programs, "squeue", f"echo '99{SEPARATOR}{NAME}'")

    assert submit_script(tmp_path) == "99"
    assert (programs / "calls").read_text() == "called\n"


@pytest.mark.parametrize("body", ["kill -9 $$", "exit 137", "exit 124"])
def test_an_sbatch_that_was_killed_and_queued_nothing_leaves_doubt(programs: Path, tmp_path: Path, body: str) -> None:
    write(programs, "sbatch", f"echo called >>{programs}/calls; {body}")
    write(programs, "squeue", "true")

    with pytest.raises(UncertainSubmissionError, match="and there is no job called default"):
        submit_script(tmp_path)
    assert (programs / "calls").read_text() == "called\n"


def test_a_sites_wrapper_that_refuses_is_told_in_its_own_words(programs: Path, tmp_path: Path) -> None:
    write(programs, "sbatch", "echo 'your project has no hours left' >&2; exit 1")
    write(programs, "squeue", "true")

    with pytest.raises(SubmissionError) as refused:
        submit_script(tmp_path)

    assert not isinstance(refused.value, UncertainSubmissionError)
    assert str(refused.value).startswith("sbatch failed (exit status 1): your project has no hours left; Slurm has no")


def test_what_may_have_arrived_twice_without_a_job_to_be_seen_leaves_doubt(programs: Path, tmp_path: Path) -> None:
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    write(programs, "sbatch", f"echo called >>{programs}/calls; echo '{lost}' >&2; exit 1")
    write(programs, "squeue", "true")

    with pytest.raises(UncertainSubmissionError, match="Socket timed out"):
        submit_script(tmp_path)
    assert (programs / "calls").read_text() == "called\n" * 3


def test_what_may_have_arrived_is_looked_for_before_it_is_sent_again(programs: Path, tmp_path: Path) -> None:
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    write(programs, "sbatch", f"echo called >>{programs}/calls; echo '{lost}' >&2; exit 1")
    write(programs, "squeue", f"echo '99{SEPARATOR}{NAME}'")

    assert submit_script(tmp_path) == "99"
    assert (programs / "calls").read_text() == "called\n"


def test_what_surely_was_not_sent_is_sent_again(programs: Path, tmp_path: Path) -> None:
    away = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    once = f"if [ ! -e {programs}/been ]; then : >{programs}/been; echo '{away}' >&2; exit 1; fi"
    write(programs, "sbatch", f"{once}\necho Submitted batch job 8")

    assert submit_script(tmp_path) == "8"


def test_a_controller_that_is_not_reached_has_refused_nothing(programs: Path, tmp_path: Path) -> None:
    away = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    write(programs, "sbatch", f"echo called >>{programs}/calls; echo '{away}' >&2; exit 1")

    with pytest.raises(SubmissionError) as told:
        submit_script(tmp_path)

    assert "so nothing was queued: Unable to contact slurm controller (connect failure)" in str(told.value)
    assert "refused" not in str(told.value)
    assert (programs / "calls").read_text() == "called\n" * 3


def test_an_sbatch_that_hangs_is_not_waited_for_for_ever_and_leaves_doubt(programs: Path, tmp_path: Path) -> None:
    write(programs, "sbatch", "sleep 1000")
    write(programs, "squeue", "true")

    with pytest.raises(UncertainSubmissionError, match=r"no answer within 0.5 s, and there is no job called default\."):
        submit_script(tmp_path, patience_s=0.5)


def test_a_machine_without_sbatch_is_told_so(programs: Path, tmp_path: Path) -> None:  # noqa: ARG001 - it empties PATH
    with pytest.raises(SubmissionError, match="sbatch cannot be started"):
        submit_script(tmp_path)


def test_submitit_is_not_loaded_for_submissions() -> None:
    program = "import json, sys, hpcml.schedulers.registry; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "submitit" not in json.loads(done.stdout)
