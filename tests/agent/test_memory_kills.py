from pathlib import Path

import pytest

from hpcml.agent.memory_kills import MemoryKills, job_around, out_of_memory, read_kills
from hpcml.agent.outcome import Outcome
from hpcml.model.state import State

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"


def place(tmp_path: Path, group_lines: str, file: str, text: str, *, job_id: str = "4711") -> MemoryKills:
    ours, mounts = tmp_path / "cgroup", tmp_path / "fs"
    ours.write_text(group_lines)
    (mounts / file).parent.mkdir(parents=True)
    (mounts / file).write_text(text)
    return read_kills(job_id, ours=ours, mounts=mounts)


@pytest.mark.parametrize(
    ("lines", "file", "text"),
    [
        ("4:memory:/slurm/uid_1/job_4711/step_0\n0::/\n", "memory/slurm/uid_1/job_4711/step_0/memory.oom_control", V1),
        ("4:memory:/slurm/uid_1/job_4711/step_0\n", "memory/memory.oom_control", V1),  # mounted into a container
        (
            "0::/system.slice/slurmstepd.scope/job_4711/x\n",
            "system.slice/slurmstepd.scope/job_4711/x/memory.events",
            V2,
        ),
        ("1:name=systemd:/\n0::/a/job_4711\n", "unified/a/job_4711/memory.events", V2),
    ],
)
def test_both_versions_of_control_groups_are_read(tmp_path: Path, lines: str, file: str, text: str) -> None:
    assert place(tmp_path, lines, file, text.format(2)) == MemoryKills(count=2, is_of_job=True)


@pytest.mark.parametrize("group", ["/user.slice/user-1000.slice", "/slurm/job_14711/step_0", "/"])
def test_a_group_that_is_not_named_after_the_job_may_hold_others(tmp_path: Path, group: str) -> None:
    file = f"{group.strip('/')}/memory.events".strip("/")

    assert place(tmp_path, f"0::{group}\n", file, V2.format(5)) == MemoryKills(count=5, is_of_job=False)


@pytest.mark.parametrize("job_id", ["4711[3].server", "4711[]", "4711[].server"])
@pytest.mark.parametrize(
    "group", ["pbs_jobs.service/jobid/4711[3].server", "pbspro.slice/pbspro-4711\\x5b3\\x5d.slice"]
)
def test_the_group_of_an_array_s_element_is_the_job_s_alone(tmp_path: Path, group: str, job_id: str) -> None:
    found = place(tmp_path, f"0::/{group}\n", f"{group}/memory.events", V2.format(5), job_id=job_id)

    assert found == MemoryKills(count=5, is_of_job=True)


def test_the_group_of_an_element_of_slurm_s_is_called_by_the_element_s_own_id(tmp_path: Path) -> None:
    environ = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "4713"}
    job_id, group = job_around(environ), "system.slice/slurmstepd.scope/job_4713/step_batch"
    assert job_id is not None

    found = place(tmp_path, f"0::/{group}\n", f"{group}/memory.events", V2.format(5), job_id=job_id)

    assert found == MemoryKills(count=5, is_of_job=True)


def test_an_old_kernel_that_does_not_count_is_no_evidence(tmp_path: Path) -> None:
    unknown = place(tmp_path, "4:memory:/x\n", "memory/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")

    assert unknown.count is None
    assert not MemoryKills(count=3, is_of_job=True).since(unknown)
    assert not unknown.since(unknown)


def test_only_a_count_that_rose_is_evidence() -> None:
    before, after = MemoryKills(count=3, is_of_job=True), MemoryKills(count=4, is_of_job=True)

    assert after.since(before) == 1
    assert before.since(before) == before.since(after) == 0


@pytest.mark.parametrize(
    ("is_of_job", "count", "reason"),
    [
        (True, 3, None),
        (True, 5, "2 processes were killed for memory"),
        (False, 4, "1 process was killed for memory in its control group, which may be another's"),
    ],
)
def test_a_worker_that_was_killed_under_a_program_that_ends_well_is_remarked_on(
    is_of_job: bool,  # noqa: FBT001
    count: int,
    reason: str | None,
) -> None:
    well = Outcome(state=State.COMPLETED, exit_code=0, signal=None, reason=None, wall_s=9.0, codes=[0])
    before, after = MemoryKills(count=3, is_of_job=is_of_job), MemoryKills(count=count, is_of_job=is_of_job)

    outcome = out_of_memory(well, before, after)

    assert (outcome.state, outcome.reason) == (State.COMPLETED, reason)


def test_this_machine_can_be_read() -> None:
    count = read_kills(None).count

    assert count is None or count >= 0
