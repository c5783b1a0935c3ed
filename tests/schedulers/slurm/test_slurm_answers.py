"""What Slurm says of jobs, as recorded from 22.05, 24.11 and 26.05, and what hpcml makes of it."""

from __future__ import annotations

import pytest

from hpcml.model.state import State
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.contract import JobUsage, Known, Ticket
from hpcml.schedulers.slurm.answers import SEPARATOR, merge, parse_sacct, parse_squeue, state_of
from hpcml.schedulers.slurm.query import one_line, reading_environ

NAME = "demo.20261121-101500-22a4f1"
FOLDER = "/home/me/hpcml/runs/demo/20261121-101500-22a4f1"


def lines(*rows: str) -> str:
    """Return rows, written with blanks between their fields, as the two programs print them for us."""
    fields = (row.split("|") for row in rows)
    # of three, which sacct has, what was used is not counted
    told = ([*words, *([""] * 3 if len(words) == 3 else []), FOLDER, NAME] for words in fields)
    return "".join(SEPARATOR.join(words) + "\n" for words in told)


def ticket(job_id: str, index: int | None = None) -> Ticket:
    return Ticket(scheduler="slurm", job_id=job_id, array_index=index)


def known(*, squeue: str | None = "", sacct: str | None = "", of: Ticket) -> Known | None:
    queue = None if squeue is None else parse_squeue(squeue)
    accounting = None if sacct is None else parse_sacct(sacct)
    return merge([of], queue, accounting).known.get(of)


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
    answer = known(sacct=lines(row), of=ticket(row.partition("|")[0]))

    was_killed = exit_code == "0:9"
    said = Known(state=state, raw=row.split("|")[1], exit_code=exit_code, is_live=False, was_killed=was_killed)
    assert answer == said


def test_what_an_ended_job_used_is_counted_of_it_and_its_steps() -> None:
    rows = lines(
        "15|TIMEOUT|0:0|3723|1-02:03:04|", "15.batch|CANCELLED by 0|0:9|3723|01:02.500|419500K",
        "17_3|FAILED|1:0|9|00:00.250|", "17_3.batch|FAILED|1:0|9|00:00.250|1.50G", "17_3.0|FAILED|1:0|9||",
    )  # fmt: skip

    used = [answer and answer.used for answer in (known(sacct=rows, of=one) for one in (ticket("15"), ticket("17", 3)))]

    assert used[0] == JobUsage(wall_s=3723, cpu_s=93784.0, max_memory_mb=409.7)
    assert used[1] == JobUsage(wall_s=9, cpu_s=0.25, max_memory_mb=1536.0)


def test_a_waiting_job_has_a_reason_and_perhaps_a_start() -> None:
    rows = lines("12|PENDING|Priority|2026-11-21T10:48:14", "13|PENDING|Dependency|N/A")

    assert known(squeue=rows, of=ticket("12")) == Known(
        state=State.PENDING, raw="PENDING", reason="Priority", expected_start="2026-11-21T10:48:14"
    )
    assert known(squeue=rows, of=ticket("13")) == Known(state=State.PENDING, raw="PENDING", reason="Dependency")


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
    said = known(squeue=lines(f"47|PENDING|{reason}|N/A"), sacct="", of=ticket("47"))

    assert said is not None
    assert said.reason == reason if meaning is None else (said.reason or "").startswith(f"{reason}: ")
    assert meaning is None or meaning in (said.reason or "")
    assert said.is_stuck == (meaning is not None)


@pytest.mark.parametrize(
    "reason", ["JobHeldUser", "JobHeldAdmin", "job requeued in held state", "DependencyNeverSatisfied"]
)
def test_a_job_that_is_held_is_not_expected_to_start(reason: str) -> None:
    """Slurm 22.05 goes on telling the start that it expected before the job was held."""
    answer = known(squeue=lines(f"17|PENDING|{reason}|2026-11-21T10:48:14"), of=ticket("17"))

    assert answer is not None
    assert (answer.state, answer.expected_start) == (State.PENDING, None)
    assert (answer.reason or "").startswith(reason)


def test_the_queue_is_right_where_the_accounting_is_late() -> None:
    requeued = known(squeue=lines("47|PENDING|BeginTime|N/A"), sacct=lines("47|NODE_FAIL|0:0"), of=ticket("47"))
    ended = known(squeue=lines("1|COMPLETED|None|2026-11-21T10:00:00"), sacct=lines("1|RUNNING|0:0"), of=ticket("1"))

    assert (requeued and requeued.state, ended and ended.state) == (State.PENDING, State.COMPLETED)


def test_an_ended_job_has_its_exit_code_from_one_and_its_reason_from_the_other() -> None:
    answer = known(
        squeue=lines("75|FAILED|JobLaunchFailure|2026-11-21T10:00:00"), sacct=lines("75|FAILED|0:53"), of=ticket("75")
    )

    assert answer == Known(state=State.FAILED, raw="FAILED", exit_code="0:53", reason="JobLaunchFailure", is_live=False)


def test_elements_that_wait_together_are_one_row() -> None:
    text = lines("12_[3-5,9,20-30:5%3]|PENDING|0:0", "12_0|COMPLETED|0:0")
    indices = [index for index in range(40) if parse_sacct(text)[0].covers(ticket("12", index))]

    assert indices == [3, 4, 5, 9, 20, 25, 30]


def test_a_list_of_elements_that_was_cut_off_may_hold_any() -> None:
    text = lines("174_[0,2,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,4...]|CANCELLED by 1001|0:0")

    answer = known(sacct=text, of=ticket("174", 800))

    assert answer is not None
    assert answer.state is State.CANCELLED


def test_an_elements_own_row_says_more_than_the_range_left_of_a_cancelled_array() -> None:
    text = lines("37_0|COMPLETED|0:0", "37_[0-5%1]|CANCELLED by 1001|0:0")
    states = merge([ticket("37", 0), ticket("37", 4)], [], parse_sacct(text)).known

    assert [item.state for item in states.values()] == [State.COMPLETED, State.CANCELLED]


def test_an_element_cancelled_while_it_waited_is_cancelled_though_slurm_forgot_it() -> None:
    queue, accounting = (
        lines("171_4|PENDING|JobArrayTaskLimit|N/A"),
        lines("171_0|RUNNING|0:0", "171_[4-5]|PENDING|0:0"),
    )

    gone = known(squeue=queue, sacct=accounting, of=ticket("171", 3))
    never_began = known(squeue=queue, sacct=accounting, of=ticket("171", 5))

    assert gone is not None
    assert never_began is not None
    assert (gone.state, never_began.state) == (State.CANCELLED, State.CANCELLED)
    assert known(squeue=None, sacct=accounting, of=ticket("171", 3)) is None
    assert known(squeue=queue, sacct=None, of=ticket("171", 3)) is None


def test_an_old_job_with_the_same_id_is_not_ours() -> None:
    foreign = SEPARATOR.join(["12", "COMPLETED", "0:0", "9", "00:01.000", "", "/home/someone", "someone's job"]) + "\n"
    named = Ticket(scheduler="slurm", job_id="12", job_name=NAME)

    assert known(sacct=foreign, of=ticket("12")) is None
    assert known(sacct=foreign, of=named) is None


def test_a_job_that_somebody_renamed_is_still_ours() -> None:
    named = Ticket(scheduler="slurm", job_id="12", job_name=NAME)
    waiting = SEPARATOR.join(["12", "PENDING", "Priority", "N/A", FOLDER, "urgent"]) + "\n"
    ended = SEPARATOR.join(["12", "COMPLETED", "0:0", "9", "00:01.000", "", FOLDER, "urgent"]) + "\n"

    for of in (named, ticket("12")):
        queued, past = known(squeue=waiting, of=of), known(sacct=ended, of=of)
        assert queued is not None
        assert past is not None
        assert (queued.state, past.state) == (State.PENDING, State.COMPLETED)


def test_banners_steps_and_torn_lines_are_passed_over() -> None:
    text = "Welcome to the cluster\n" + lines("12.batch|CANCELLED|0:9", "12|TIMEOUT|0:0") + "13" + SEPARATOR

    answer = known(sacct=text, of=ticket("12"))

    assert answer is not None
    assert answer.state is State.TIMEOUT


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid name\n",
            "invalid partition specified: x; Batch job submission failed: Invalid name",
        ),
        ("*** Maintenance on Monday ***\nsbatch: error: AssocMaxSubmitJobLimit\n", "AssocMaxSubmitJobLimit"),
        ("sbatch: unrecognized option '--nosuch'\nTry \"sbatch --help\" for more", "unrecognized option '--nosuch'"),
        ("sbatch: fatal: j.sh: line 2: Unmatched `'`\n", "j.sh: line 2: Unmatched `'`"),
        ("slurm_load_jobs error: Invalid job id specified", "slurm_load_jobs error: Invalid job id specified"),
        ("", "exit status 1 and not a word"),
    ],
)
def test_a_refusal_is_one_line_of_the_programs_own_words(stderr: str, words: str) -> None:
    assert one_line(Answer(returncode=1, stdout="", stderr=stderr)) == words


def test_a_users_taste_in_tables_does_not_reach_the_programs_we_read() -> None:
    environ = {"HOME": "/home/me", "SQUEUE_STATES": "RUNNING", "SACCT_FORMAT": "user", "SLURM_CLUSTERS": "big"}
    of_others = {"SCANCEL_INTERACTIVE": "true", "SCANCEL_PARTITION": "x", "SINFO_PARTITION": "x", "SCONTROL_ALL": "1"}

    assert reading_environ(environ | of_others) == {
        "HOME": "/home/me", "SLURM_CLUSTERS": "big",
        "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0",
    }  # fmt: skip
