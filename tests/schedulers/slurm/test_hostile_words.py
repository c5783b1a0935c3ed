"""Names, folders and settings that look like code, quotes or patterns: they arrive as they are and run nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.model.state import State
from tests.cluster.slurm.account import Account
from tests.schedulers.slurm import as_user

pytestmark = pytest.mark.slurm

WORDS = [
    "two words",
    "a;touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a #b",
    "#SBATCH --partition=qgpu",
    "it's",
    'say "hi"',
    "both ' and \" #",
    "back\\slash",
    "ends in \\",
    'a\\"b',
    "100%j %A_%a %%",
    "a|b,c=d",
    "$HOME ${HOME} *",
    "--partition=nosuch",
    "žluťoučký kůň 🐎",
    "tab\tinside",
]


def test_job_names_arrive_as_they_are(slurm: Account, folder: Path) -> None:
    queued = slurm.call(as_user.submit_held_as, folder, WORDS)

    assert [job.name.rpartition(".")[0] for job in queued] == WORDS
    assert [job.comment for job in queued] == [f"hpcml:{job.uid}" for job in queued]
    assert {job.partition for job in queued} == {"qcpu"}
    assert [path.name for path in folder.iterdir()] == ["runs"]


@pytest.mark.parametrize("count", [1, 2])
def test_runs_work_in_folders_of_any_name(slurm: Account, folder: Path, count: int) -> None:
    submitted = slurm.call(as_user.submit_below, folder, WORDS, [f"echo {index}" for index in range(count)])

    known = slurm.call(as_user.wait_until_final, [ticket for ticket, _ in submitted])

    assert {item.state for item in known} == {State.COMPLETED}
    outputs = [(run_dir / "logs" / "0-rank0.out").read_text() for _, run_dir in submitted]
    assert outputs == [f"{index}\n" for index in range(count)] * len(WORDS)
    for word in WORDS:
        logs = list((folder / word).rglob("slurm*.log"))
        assert logs, word
        assert {log.read_text() for log in logs} == {""}, word
    assert sorted(path.name for path in folder.iterdir()) == sorted(WORDS)


def test_the_environment_of_the_submitter_reaches_the_run_unchanged(slurm: Account, folder: Path) -> None:
    value = "a'b\"c $(touch pwned) \\ ž\nsecond line"
    ((ticket, run_dir),) = slurm.call_in(
        {"HPCML_TEST_VALUE": value, "LC_ALL": "C.UTF-8"},
        as_user.submit,
        folder,
        ["""python3 -c 'import os; print(os.environ["HPCML_TEST_VALUE"], os.environ["LC_ALL"], sep="|")'"""],
    )

    slurm.call(as_user.wait_until_final, [ticket])

    assert (run_dir / "logs" / "0-rank0.out").read_text() == f"{value}|C.UTF-8\n"


def test_a_module_that_does_not_load_ends_the_job_before_the_run(slurm: Account, folder: Path) -> None:
    ((ticket, run_dir),) = slurm.call(
        as_user.submit, folder, ["echo never"], "cluster.modules=[nosuch]", "cluster.prelude=['module() { return 1; }']"
    )

    (known,) = slurm.call(as_user.wait_until_final, [ticket])

    assert known.state is State.FAILED
    assert "module" in (run_dir / "slurm.log").read_text()
    assert not (run_dir / "logs").exists()


def test_the_prelude_runs_before_the_agent_and_its_failure_ends_the_job(slurm: Account, folder: Path) -> None:
    good, bad = (
        slurm.call(as_user.submit, folder, ["bash -c 'echo $FROM_PRELUDE'"], f"cluster.prelude=['{line}']")[0]
        for line in ("export FROM_PRELUDE=yes", "false")
    )

    known = slurm.call(as_user.wait_until_final, [good[0], bad[0]])

    assert [item.state for item in known] == [State.COMPLETED, State.FAILED]
    assert (good[1] / "logs" / "0-rank0.out").read_text() == "yes\n"
    assert not (bad[1] / "logs").exists()


def test_a_name_with_a_line_break_is_refused_before_anything_is_sent(slurm: Account, folder: Path) -> None:
    with pytest.raises(ConfigError, match="line break"):
        slurm.call(as_user.submit_held_as, folder, ["a\n#SBATCH --partition=qgpu"])
