"""A site with several Slurm clusters: each job is asked for and cancelled where it is, whatever the shell says later.

The programs are scripts that answer for the cluster that they are sent to, in the words of Slurm 22.05; by
tests/schedulers/slurm/test_slurm_queries.py a real one takes the options.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.model.state import State
from hpcml.schedulers.contract import Batch, Ticket
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.slurm import SLURM
from tests.schedulers.jobs import write_job

CONF = Path(__file__).parent / "conf"
# Which cluster a program of Slurm speaks to: by its option, or else by the variable
WHERE = "where=${SLURM_CLUSTERS:-own}; for word; do case $word in --clusters=*) where=${word#*=};; esac; done"
SEPARATOR = "\x1f"
WAITS = SEPARATOR.join(["4711", "PENDING", "None", "N/A", "", "", ""])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with the clusters own and big; what each has in its queue is in a file of its name."""
    folder = tmp_path / "site"
    folder.mkdir()
    for program, lines in {
        "squeue": f"cat {folder}/$where 2>/dev/null || exit 0",
        "sacct": "exit 0",
        "scancel": f'echo "$where $*" >>{folder}/cancelled',
        "sbatch": f"""script=${{!#}}; where=$(sed -n 's/^#SBATCH --clusters=//p' "$script")
name=$(sed -n 's/^#SBATCH --job-name=//p' "$script")
printf '{WAITS}%s\\n' "$name" >{folder}/${{where:-own}}
echo "Submitted batch job 4711${{where:+ on cluster $where}}" """,
    }.items():
        (folder / program).write_text(f"#!/bin/bash\n{WHERE}\n{lines}\n")
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for variable in ("SLURM_CLUSTERS", "SBATCH_CLUSTERS"):
        monkeypatch.delenv(variable, raising=False)
    return folder


def submitted(folder: Path) -> tuple[Driver, Ticket]:
    submitter = Driver(scheduler=SLURM, submissions=folder / "submissions", pause_s=0.01)
    job = write_job(submitter, CONF, folder, "cluster=testslurm", "workload.command=[true]")
    (ticket,) = submitter.submit(Batch(token=job.run_dir.uid, packs=[[job]]))
    return submitter, ticket


@pytest.mark.parametrize("variable", ["SLURM_CLUSTERS", "SBATCH_CLUSTERS"])
@pytest.mark.parametrize("later", [None, "serial"])
def test_a_job_is_asked_for_and_cancelled_where_it_was_sent(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, later: str | None
) -> None:
    monkeypatch.setenv(variable, "big")
    submitter, ticket = submitted(tmp_path)
    monkeypatch.delenv(variable)
    if later is not None:
        monkeypatch.setenv("SLURM_CLUSTERS", later)

    answers = submitter.query([ticket])
    submitter.cancel([ticket])

    assert (ticket.job_id, ticket.job_cluster) == ("4711", "big")
    assert answers.known[ticket].state is State.PENDING
    assert (site / "cancelled").read_text() == "big --clusters=big 4711\n"


@pytest.mark.usefixtures("site")
def test_a_job_of_the_machines_own_cluster_is_asked_for_there_though_the_shell_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter, ticket = submitted(tmp_path)
    monkeypatch.setenv("SLURM_CLUSTERS", "big")

    answers = submitter.query([ticket])

    assert ticket.job_cluster == ""
    assert answers.known[ticket].state is State.PENDING


@pytest.mark.usefixtures("site")
def test_jobs_of_several_clusters_are_asked_for_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "big")
    submitter, there = submitted(tmp_path)
    monkeypatch.delenv("SLURM_CLUSTERS")
    _, here = submitted(tmp_path)  # by chance under the same id

    answers = submitter.query([there, here])

    assert set(answers.known) == {there, here}
    assert answers.calls == 2


@pytest.mark.usefixtures("site")
def test_a_ticket_of_an_older_version_goes_where_the_shell_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "big")
    submitter, ticket = submitted(tmp_path)
    old = replace(ticket, job_cluster=None)

    assert submitter.query([old]).known[old].state is State.PENDING


@pytest.mark.parametrize("asked", ["big", "serial,big"])
def test_a_job_whose_answer_was_lost_is_found_on_the_cluster_that_its_script_names(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", asked)
    submitter = Driver(scheduler=SLURM, submissions=tmp_path / "submissions", pause_s=0.01)
    job = write_job(submitter, CONF, tmp_path, "cluster=testslurm", "workload.command=[true]")
    monkeypatch.delenv("SLURM_CLUSTERS")
    (site / "big").write_text(f"4712{SEPARATOR}default.{job.run_dir.uid}\n")

    (ticket,) = submitter.find(Batch(token=job.run_dir.uid, packs=[[job]])) or []

    assert (ticket.job_id, ticket.job_cluster) == ("4712", "big")
