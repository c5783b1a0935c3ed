"""What Slurm says of jobs, as recorded from 22.05, 24.11 and 26.05, and what hpcml makes of it."""

from __future__ import annotations

import pytest

from hpcml.model.state import State
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.contract import JobUsage, Known, Ticket
from hpcml.schedulers.driver import Told, key_of, merge
from hpcml.schedulers.slurm import SLURM, reading_environ, sacct_rows, squeue_rows, state_of

NAME = "demo.20261121-101500-22a4f1"
SEPARATOR = "\x1f"


def squeue(*rows: str) -> str:
    """Return rows, written with bars between their fields, as squeue prints them for us."""
    return "".join(SEPARATOR.join([*row.split("|"), "1:00:00", "30:00", NAME]) + "\n" for row in rows)


def sacct(*rows: str) -> str:
    """Return rows as sacct prints them; of three fields, what was used is not counted."""
    fields = (row.split("|") for row in rows)
    return "".join(SEPARATOR.join([*words, *([""] * (6 - len(words))), NAME]) + "\n" for words in fields)


def ticket(job_id: str, index: int | None = None, name: str | None = NAME) -> Ticket:
    return Ticket(scheduler="slurm", job_id=job_id, array_index=index, job_name=name)


def known(*, queue: str | None = "", accounting: str | None = "", of: Ticket) -> Known | None:
    silence = {of: "it is silent"}
    now = Told(unsaid=silence) if queue is None else Told(rows=squeue_rows(queue) or [])
    then = Told(unsaid=silence) if accounting is None else Told(rows=sacct_rows(accounting) or [])
    return merge(SLURM, {of: key_of(SLURM, of)}, now, then)[0].get(of)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", State.PENDING),
        ("CONFIGURING", State.PENDING),
        ("REQUEUED", State.PENDING),
        ("REQUEUE_HOLD", State.PENDING),
        ("RUNNING", State.RUNNING),
        ("COMPLETING", State.RUNNING),
        ("SUSPENDED", State.RUNNING),
        ("COMPLETED", State.COMPLETED),
        ("FAILED", State.FAILED),
        ("TIMEOUT", State.TIMEOUT),
        ("DEADLINE", State.TIMEOUT),
        ("OUT_OF_MEMORY", State.OUT_OF_MEMORY),
        ("NODE_FAIL", State.NODE_FAIL),
        ("BOOT_FAIL", State.NODE_FAIL),
        ("PREEMPTED", State.PREEMPTED),
        ("CANCELLED", State.CANCELLED),
        ("CANCELLED by 1001", State.CANCELLED),
        ("CANCELLED+", State.CANCELLED),
        ("", State.RUNNING),
        ("LOST", State.RUNNING),
        ("A_WORD_OF_SLURM_30", State.RUNNING),
    ],
)
def test_each_word_of_slurm_is_a_state_and_a_strange_one_is_not_final(word: str, state: State) -> None:
    assert state_of(word) is state


@pytest.mark.parametrize(
    ("row", "state", "exit_code"),
    [
        ("16|FAILED|3:0", State.FAILED, "3:0"),
        ("17|FAILED|0:9", State.FAILED, "0:9"),
        ("36|CANCELLED by 1001|0:0", State.CANCELLED, "0:0"),
        ("46|NODE_FAIL|0:0", State.NODE_FAIL, "0:0"),
        ("39|PREEMPTED|0:0", State.PREEMPTED, "0:0"),
        ("2|OUT_OF_MEMORY|0:125", State.OUT_OF_MEMORY, "0:125"),
    ],
)
def test_an_ended_job_is_what_the_accounting_says(row: str, state: State, exit_code: str) -> None:
    answer = known(accounting=sacct(row), of=ticket(row.partition("|")[0]))

    was_killed = exit_code == "0:9"
    said = Known(state=state, raw=row.split("|")[1], exit_code=exit_code, is_live=False, was_killed=was_killed)
    assert answer == said


def test_what_an_ended_job_used_is_counted_of_it_and_its_steps() -> None:
    rows = sacct(
        "15|TIMEOUT|0:0|3723|1-02:03:04|", "15.batch|CANCELLED by 0|0:9|3723|01:02.500|419500K",
        "17_3|FAILED|1:0|9|00:00.250|", "17_3.batch|FAILED|1:0|9|00:00.250|1.50G", "17_3.0|FAILED|1:0|9||",
    )  # fmt: skip

    used = [
        answer and answer.used for answer in (known(accounting=rows, of=one) for one in (ticket("15"), ticket("17", 3)))
    ]

    assert used[0] == JobUsage(wall_s=3723, cpu_s=93784.0, max_memory_mb=409.7)
    assert used[1] == JobUsage(wall_s=9, cpu_s=0.25, max_memory_mb=1536.0)


def test_a_waiting_job_has_a_reason_and_perhaps_a_start() -> None:
    rows = squeue("12|PENDING|Priority|2026-11-21T10:48:14", "13|PENDING|Dependency|N/A")

    assert known(queue=rows, of=ticket("12")) == Known(
        state=State.PENDING, raw="PENDING", reason="Priority", expected_start="2026-11-21T10:48:14"
    )
    assert known(queue=rows, of=ticket("13")) == Known(state=State.PENDING, raw="PENDING", reason="Dependency")


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("Resources", None),
        ("Priority", None),
        ("QOSMaxCpuPerUserLimit", None),  # passes once other jobs have ended
        ("QOSGrpCpuLimit", None),
        ("AssocGrpSubmitJobsLimit", None),
        ("ReqNodeNotAvail, UnavailableNodes:cpu1", None),
        ("QOSMaxWallDurationPerJobLimit", "hpcml retry --walltime"),
        ("PartitionTimeLimit", "hpcml retry --walltime"),
        ("AssocMaxWallDurationPerJobLimit", "hpcml retry --walltime"),
        ("QOSMaxNodePerJobLimit", "does not start with what it asks for"),
        ("QOSMaxCpuMinutesPerJobLimit", "does not start with what it asks for"),
        ("QOSMinGRES", "does not start with what it asks for"),
        ("AssocGrpCPUMinutesLimit", "is used up"),
        ("QOSGrpCPURunMinutesLimit", None),  # of the jobs that run now
        ("AssocGrpMemRunMinutes", None),
        ("PartitionNodeLimit", "or too many are down or drained"),
        ("BadConstraints", "does not start with what it asks for"),
        ("DependencyNeverSatisfied", "hpcml cancel"),
        ("InvalidQOS", "hpcml cancel"),
        ("ReservationDeleted", "hpcml cancel"),
        ("JobHeldUser", "scontrol release"),
        ("job requeued in held state", "scontrol release"),
        ("launch failed requeued held", "scontrol release"),
        ("JobHeldAdmin", "an administrator"),
    ],
)
def test_a_reason_that_does_not_pass_by_itself_says_what_to_do(reason: str, meaning: str | None) -> None:
    said = known(queue=squeue(f"47|PENDING|{reason}|N/A"), accounting="", of=ticket("47"))

    assert said is not None
    assert said.reason == reason if meaning is None else (said.reason or "").startswith(f"{reason}: ")
    assert meaning is None or meaning in (said.reason or "")
    assert said.is_stuck == (meaning is not None)


@pytest.mark.parametrize(
    "reason", ["JobHeldUser", "JobHeldAdmin", "job requeued in held state", "DependencyNeverSatisfied"]
)
def test_a_job_that_is_held_is_not_expected_to_start(reason: str) -> None:
    """Slurm 22.05 goes on telling the start that it expected before the job was held."""
    answer = known(queue=squeue(f"17|PENDING|{reason}|2026-11-21T10:48:14"), of=ticket("17"))

    assert answer is not None
    assert (answer.state, answer.expected_start) == (State.PENDING, None)
    assert (answer.reason or "").startswith(reason)


def test_the_queue_is_right_where_the_accounting_is_late() -> None:
    requeued = known(queue=squeue("47|PENDING|BeginTime|N/A"), accounting=sacct("47|NODE_FAIL|0:0"), of=ticket("47"))
    ended = known(
        queue=squeue("1|COMPLETED|None|2026-11-21T10:00:00"), accounting=sacct("1|RUNNING|0:0"), of=ticket("1")
    )

    assert (requeued and requeued.state, ended and ended.state) == (State.PENDING, State.COMPLETED)


def test_an_ended_job_has_its_exit_code_from_one_and_its_reason_from_the_other() -> None:
    answer = known(
        queue=squeue("75|FAILED|JobLaunchFailure|2026-11-21T10:00:00"),
        accounting=sacct("75|FAILED|0:53"),
        of=ticket("75"),
    )

    assert answer == Known(state=State.FAILED, raw="FAILED", exit_code="0:53", reason="JobLaunchFailure", is_live=False)


def test_elements_that_wait_together_are_told_apart() -> None:
    text = sacct("12_[3-5,9,20-30:5%3]|PENDING|0:0", "12_0|COMPLETED|0:0")

    assert [row.index for row in sacct_rows(text) or [] if row.is_range] == [3, 4, 5, 9, 20, 25, 30]


def test_a_list_of_elements_that_was_cut_off_may_hold_any() -> None:
    text = sacct("174_[0,2,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,4...]|CANCELLED by 1001|0:0")

    answer = known(accounting=text, of=ticket("174", 800))

    assert answer is not None
    assert answer.state is State.CANCELLED


def test_an_elements_own_row_says_more_than_the_range_left_of_a_cancelled_array() -> None:
    text = sacct("37_0|COMPLETED|0:0", "37_[0-5%1]|CANCELLED by 1001|0:0")
    states = [known(accounting=text, of=ticket("37", index)) for index in (0, 4)]

    assert [item and item.state for item in states] == [State.COMPLETED, State.CANCELLED]


def test_an_element_cancelled_while_it_waited_is_cancelled_though_slurm_forgot_it() -> None:
    queue, accounting = (
        squeue("171_4|PENDING|JobArrayTaskLimit|N/A"),
        sacct("171_0|RUNNING|0:0", "171_[4-5]|PENDING|0:0"),
    )

    gone = known(queue=queue, accounting=accounting, of=ticket("171", 3))
    never_began = known(queue=queue, accounting=accounting, of=ticket("171", 5))

    assert gone is not None
    assert never_began is not None
    assert (gone.state, never_began.state) == (State.CANCELLED, State.CANCELLED)
    assert known(queue=None, accounting=accounting, of=ticket("171", 3)) is None
    assert known(queue=queue, accounting=None, of=ticket("171", 3)) is None


def test_an_old_job_with_the_same_id_is_not_ours() -> None:
    text = sacct("12|COMPLETED|0:0").replace(NAME, "someone's job")

    assert known(accounting=text, of=ticket("12")) is None


def test_what_is_left_of_a_walltime_is_told_of_a_job_that_runs() -> None:
    (row,) = squeue_rows(squeue("12|RUNNING|None|N/A")) or []

    assert (row.limit_s, row.left_s) == (3600, 1800)


def test_banners_steps_and_torn_lines_are_passed_over() -> None:
    text = "Welcome to the cluster\n" + sacct("12.batch|CANCELLED|0:9", "12|TIMEOUT|0:0") + "13" + SEPARATOR

    answer = known(accounting=text, of=ticket("12"))

    assert answer is not None
    assert answer.state is State.TIMEOUT


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid name\n",
            "invalid partition specified: x; Invalid name",
        ),
        ("*** Maintenance on Monday ***\nsbatch: error: AssocMaxSubmitJobLimit\n", "AssocMaxSubmitJobLimit"),
        ("sbatch: unrecognized option '--nosuch'\nTry \"sbatch --help\" for more", "unrecognized option '--nosuch'"),
        ("sbatch: fatal: j.sh: line 2: Unmatched `'`\n", "j.sh: line 2: Unmatched `'`"),
        ("slurm_load_jobs error: Invalid job id specified", "slurm_load_jobs error: Invalid job id specified"),
        ("", "exit status 1 and not a word"),
    ],
)
def test_a_refusal_is_one_line_of_the_programs_own_words(stderr: str, words: str) -> None:
    assert SLURM.words(Answer(returncode=1, stdout="", stderr=stderr)) == words


def test_a_users_taste_in_tables_does_not_reach_the_programs_we_read() -> None:
    environ = {"HOME": "/home/me", "SQUEUE_STATES": "RUNNING", "SACCT_FORMAT": "user", "SLURM_CLUSTERS": "big"}
    of_others = {"SCANCEL_INTERACTIVE": "true", "SCANCEL_PARTITION": "x", "SINFO_PARTITION": "x", "SCONTROL_ALL": "1"}

    assert reading_environ(environ | of_others) == {
        "HOME": "/home/me", "SLURM_CLUSTERS": "big",
        "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0",
    }  # fmt: skip
