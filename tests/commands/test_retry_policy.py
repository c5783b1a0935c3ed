"""The table of docs/life-of-a-run.md, row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hpcml.commands.retry_policy import AUTOMATIC, Failure, NoRetry, Retry, decide
from hpcml.model.cluster import Cluster, Queue, Resources, SchedulerName
from hpcml.model.failure_causes import Cause
from hpcml.model.run import Run
from hpcml.model.state import State

ComposeOne = Callable[..., Run]
SITE = Cluster(
    name="site",
    scheduler=SchedulerName.slurm,
    queues={"short": Queue(max_walltime="2h"), "long": Queue()},
    max_walltime="24h",
    mem_per_node="100G",
)


@pytest.fixture
def a_run(compose_one: ComposeOne) -> Run:
    return replace(compose_one(), cluster=SITE)


def failed(run: Run, cause: Cause, *, state: State = State.FAILED, **changes: object) -> Failure:
    return Failure(run=run, state=state, cause=cause, **changes)  # type: ignore[arg-type]


def asking(run: Run, **resources: object) -> Run:
    return replace(run, resources=Resources(**resources))  # type: ignore[arg-type]


def tried(decision: Retry | NoRetry) -> Retry:
    assert isinstance(decision, Retry), decision
    return decision


def refused(decision: Retry | NoRetry) -> str:
    assert isinstance(decision, NoRetry), decision
    return decision.why


@pytest.mark.parametrize(
    ("partition", "had", "gets"),
    [("long", "1h", "01:30:00"), ("short", "1h30m", "02:00:00"), ("long", "20h", "24:00:00")],
)
def test_too_little_time_becomes_half_as_much_again_within_the_limits(
    a_run: Run, partition: str, had: str, gets: str
) -> None:
    decision = tried(decide(failed(asking(a_run, partition=partition, walltime=had), Cause.TIME_LIMIT)))

    assert decision.changes == {"walltime": gets}
    assert gets in decision.why


def test_at_the_limit_more_time_is_not_to_be_had(a_run: Run) -> None:
    at_the_limit = asking(a_run, partition="short", walltime="2h")

    assert tried(decide(failed(at_the_limit, Cause.TIME_LIMIT, is_wanted=True))).changes == {}
    assert "the longest that queue short allows (02:00:00)" in refused(decide(failed(at_the_limit, Cause.TIME_LIMIT)))
    assert "give --walltime" in refused(decide(failed(a_run, Cause.TIME_LIMIT)))


def test_a_checkpoint_makes_the_same_time_enough(a_run: Run) -> None:
    at_the_limit = asking(a_run, partition="short", walltime="2h")

    decision = tried(decide(failed(at_the_limit, Cause.TIME_LIMIT, checkpoint_step=4000)))

    assert decision.changes == {}
    assert decision.why == "with the same walltime, from the checkpoint of step 4000"


@pytest.mark.parametrize(("had", "gets"), [("10G", "15360M"), ("80G", "102400M")])
def test_too_little_memory_becomes_half_as_much_again_up_to_a_whole_node(a_run: Run, had: str, gets: str) -> None:
    assert tried(decide(failed(asking(a_run, mem=had), Cause.HOST_MEMORY))).changes == {"mem": gets}


def test_a_whole_nodes_memory_is_all_there_is(a_run: Run) -> None:
    assert "all the memory of a node" in refused(decide(failed(asking(a_run, mem="100G"), Cause.HOST_MEMORY)))
    assert "give --mem" in refused(decide(failed(a_run, Cause.HOST_MEMORY)))


@pytest.mark.parametrize("cause", [Cause.NODE_FAILURE, Cause.GPU_FAULT])
def test_a_node_that_failed_is_avoided(a_run: Run, cause: Cause) -> None:
    decision = tried(decide(failed(asking(a_run, exclude="n1"), cause, hosts=["n7", "n8", "n7"])))

    assert decision.changes == {"exclude": "n1,n7,n8"}
    assert "n7,n8" in decision.why


def test_a_node_that_was_asked_for_by_name_and_failed_is_no_longer_asked_for(a_run: Run) -> None:
    decision = tried(decide(failed(asking(a_run, nodelist="n7"), Cause.NODE_FAILURE, hosts=["n7"])))

    assert decision.changes == {"exclude": "n7", "nodelist": None}


def test_pbs_has_no_word_for_nodes_to_avoid(a_run: Run) -> None:
    on_pbs = replace(a_run, cluster=replace(SITE, scheduler=SchedulerName.pbs))

    decision = tried(decide(failed(on_pbs, Cause.NODE_FAILURE, hosts=["n7"])))

    assert decision.changes == {}
    assert "PBS has no word" in decision.why


@pytest.mark.parametrize("cause", [Cause.PREEMPTION, Cause.COMMUNICATION, Cause.SUBMISSION, Cause.DISK])
def test_what_was_nobodys_fault_is_tried_as_it_was(a_run: Run, cause: Cause) -> None:
    assert tried(decide(failed(a_run, cause))).changes == {}


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (Cause.PROGRAM, "hpcml retry RUN"),
        (Cause.GPU_MEMORY, "training.batch_size"),
        (Cause.CONTAINER, "image"),
        (Cause.CANCELLED, "--cause cancelled"),
        (Cause.UNKNOWN, "--cause unknown"),
    ],
)
def test_what_would_fail_again_is_not_tried_unless_somebody_means_it(a_run: Run, cause: Cause, says: str) -> None:
    assert says in refused(decide(failed(a_run, cause)))
    assert tried(decide(failed(a_run, cause, is_wanted=True))).changes == {}


def test_a_run_that_nobody_saw_end_or_start_is_tried_as_it_was(a_run: Run) -> None:
    assert tried(decide(failed(a_run, Cause.UNKNOWN, state=State.LOST))).changes == {}
    never = tried(decide(failed(asking(a_run, walltime="1h"), Cause.TIME_LIMIT, has_started=False)))
    assert never.changes == {}


def test_only_what_the_cluster_did_is_repaired_without_being_asked() -> None:
    assert {
        Cause.NODE_FAILURE, Cause.PREEMPTION, Cause.GPU_FAULT, Cause.COMMUNICATION
    } == AUTOMATIC  # fmt: skip
