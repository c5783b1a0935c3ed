"""A batch before any scheduler sees it: names, files, tickets, and what the job of a pack asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.state import State
from hpcml.schedulers import batches
from hpcml.schedulers.contract import Batch, Job
from hpcml.schedulers.driver import Driver, tickets_of
from hpcml.schedulers.pbs.scheduler import list_rows
from hpcml.schedulers.request import request_for, request_for_pack
from hpcml.schedulers.slurm import SLURM
from tests.schedulers.pbs.runs import write_job


@pytest.fixture
def submitter(tmp_path: Path) -> Driver:
    return Driver(scheduler=SLURM, submissions=tmp_path / "submissions")


def jobs_of(submitter: Driver, folder: Path, *walltimes: str, words: tuple[str, ...] = ()) -> list[Job]:
    return [
        write_job(
            submitter, folder, ["true"], *words, f"resources.walltime={walltime}", index=index, cluster="karolina"
        )
        for index, walltime in enumerate(walltimes)
    ]


def test_the_files_of_a_batch_lie_under_its_token(submitter: Driver, tmp_path: Path) -> None:
    jobs = jobs_of(submitter, tmp_path, "10m", "10m", "10m")
    retried = replace(jobs[2], retry=2)
    batch = Batch(token="20261121-101500-abcde-0", packs=[jobs[:2], [retried]])  # noqa: S106 - no secret

    batches.write_down(submitter.submissions, batch, "text")
    batches.write_down(submitter.submissions, batch, "text")  # again, after a death half-way

    folder = submitter.submissions / batch.token
    assert sorted(path.name for path in folder.iterdir()) == ["batch.json", "job.sh"]
    assert json.loads((folder / "batch.json").read_text()) == {
        "format": 1,
        "jobs": [
            [str(jobs[0].run_dir.path / "run.json"), str(jobs[1].run_dir.path / "run.json")],
            [str(jobs[2].run_dir.path / "retries" / "2.json")],
        ],
    }
    tickets = tickets_of(SLURM, batch, ["7"])
    assert [(ticket.array_index, ticket.is_shared) for ticket in tickets] == [(0, True), (0, True), (1, False)]


def test_a_single_run_is_submitted_by_its_own_script_and_a_retry_by_its_own(submitter: Driver, tmp_path: Path) -> None:
    (job,) = jobs_of(submitter, tmp_path, "10m")
    again = replace(job, retry=3)

    first, third = (submitter.preview(batches.own_batch(one)) for one in (job, again))

    assert first.command[-1] == str(job.run_dir.path / "job.sh")
    assert third.command[-1] == str(job.run_dir.path / "retries" / "3.sh")
    assert first.script.splitlines()[-1].endswith(f"begin; begin()' {job.run_dir.path}")
    assert third.script.splitlines()[-1].endswith(f"begin; begin()' {job.run_dir.path}/retries/3.json")
    assert f"--job-name=default.{job.run_dir.uid}\n" in first.script
    assert f"--job-name=default.{job.run_dir.uid}-r3\n" in third.script
    assert f"--comment=hpcml:{job.run_dir.uid}-r3\n" in third.script


def test_the_job_of_a_pack_has_time_for_all_of_it(submitter: Driver, tmp_path: Path) -> None:
    jobs = jobs_of(submitter, tmp_path, "10m", "20m")
    batch = Batch(token=f"{jobs[0].run_dir.uid}-0", packs=[jobs])

    request = request_for_pack(jobs)
    script = submitter.preview(batch).script

    assert request.walltime_s == 30 * 60 + 60
    assert replace(request, walltime_s=600, warning_s=None) == replace(request_for(jobs[0].manifest), warning_s=None)
    assert "#SBATCH --time=00:31:00\n" in script
    assert "#SBATCH --array" not in script
    assert "requeue slurm --alone'" in script
    endless = jobs_of(submitter, tmp_path, "null", "10m")
    assert request_for_pack(endless).walltime_s is None


def test_slurm_warns_when_the_agent_would(submitter: Driver, tmp_path: Path) -> None:
    (plain,) = jobs_of(submitter, tmp_path, "1h", words=("schedule.notice=5m",))
    (unlimited,) = jobs_of(submitter, tmp_path, "null", words=("schedule.notice=5m",))
    (patient,) = jobs_of(submitter, tmp_path, "40h", words=("schedule.notice=30h",))
    plan = plain.manifest.plan
    silent = replace(plain, manifest=replace(plain.manifest, plan=replace(plan, warn_after_s=None)))

    warnings = [request_for(job.manifest).warning_s for job in (plain, unlimited, patient, silent)]

    assert plan.warn_after_s is not None
    assert warnings == [3600 - plan.warn_after_s, 300, 65_535, None]
    assert "--signal" not in submitter.script_for(silent)


def test_a_launcher_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.launcher=rsh: choose pbs_tmrsh, ssh, mpiexec, pbsdsh"):
        Cluster(name="x", scheduler=SchedulerName.pbs, launcher="rsh")


def test_a_list_of_pbs_is_read_though_names_are_cut_and_lines_are_torn() -> None:
    text = (Path(__file__).parent / "pbs" / "captures" / "qstat-u.txt").read_text()
    more = (
        "12345678.pbs-m* hpcuser  qnvidia* default.2*    --    1   1    --  00:10 Q   -- \n"
        "77[].pbs01      hpcuser  qgpu     sweep.2*      --    1   1    --  00:10 B   -- \n"
        "78.pbs01        hpcuser  qgpu     torn\n"
    )

    found = list_rows(text + more)

    assert [(row.number, row.known and row.known.state, row.known and row.known.raw, row.name) for row in found] == [
        ("1091", State.RUNNING, "R", "term.sh"),
        ("12345678", State.PENDING, "Q", "default.2"),
    ]
