"""What every scheduler does for hpcml, asked of each: this machine, a real Slurm, and the doubles of PBS, LSF and Flux.

What one has no word for, its `Site` declares, and it has to be refused with a reason. `site` is any of them, `served`
any but this machine, whose queue has no server, no nodes and no ids of its own.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import ConfigError, SubmissionError
from hpcml.model.state import State
from hpcml.schedulers.commands import NoAnswerError, UncertainSubmissionError
from hpcml.schedulers.contract import Ticket
from tests.schedulers.conformance.kit import Site, n_attempts, printed, state_of, until, until_printed
from tests.schedulers.conformance.sites import LSF_AND_FLUX

NODES = ("strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")


def test_an_array_tells_each_run_apart_from_its_start_to_its_end(site: Site) -> None:
    good, bad, last = site.submit([site.until_gate(f"exit {code}") for code in (0, 7, 0)])

    site.until_known(good, lambda known: known.state is State.RUNNING or not site.remembers)
    site.open_gate()

    assert [site.until_over(one) for one in (good, bad, last)] == [State.COMPLETED, State.FAILED, State.COMPLETED]
    assert len({one.ticket for one in (good, bad, last)}) == 3
    if site.remembers:
        known = site.query([good.ticket, bad.ticket]).known
        assert known[good.ticket].state is State.COMPLETED
        assert known[bad.ticket].state in (State.FAILED, State.COMPLETED)  # the run's own journal has the code


def test_a_job_that_waits_is_found_by_its_name_and_taken_out_again(served: Site) -> None:
    with served.closed():
        (given,) = served.submit([served.program("true")])
        waiting = served.until_known(given, lambda known: known.state is State.PENDING)
        served.cancel([given])

    assert waiting.exit_code is None
    ended = served.until_known(given, lambda known: known.state.is_final)
    assert ended.state is State.CANCELLED
    served.cancel([given])  # to tell again does no harm
    assert state_of(given.path) is None


def test_a_submission_is_found_by_its_token_and_not_before_it_was_made(site: Site) -> None:
    before, tickets, found = site.find_before_and_after(site.program("true"))

    assert before is None
    assert found == tickets


def test_cancelling_ends_a_program_by_a_signal_that_it_can_heed(site: Site) -> None:
    heeds = "trap 'echo told; exit 0' TERM INT  # LSF begins with SIGINT\necho began\nsleep 600 &\nwait $!"
    (given,) = site.submit([site.program(heeds)])
    until_printed(given, "began")

    site.cancel([given])

    assert site.until_over(given) is State.CANCELLED
    assert "told" in printed(given)


def test_a_run_that_leaves_at_a_checkpoint_goes_on_as_another_attempt(served: Site) -> None:
    text = (
        'if [ "$HPCML_ATTEMPT" != 0 ]; then echo went on; exit 0; fi\n'
        "trap 'exit 75' USR1\necho began\nwhile true; do sleep 0.1; done"
    )
    (given,) = served.submit([served.program(text)])
    until_printed(given, "began")

    served.tell(given, "USR1")

    until_printed(given, "went on", attempt=1)
    until(lambda: state_of(given.path) is State.COMPLETED or None, lambda: str(state_of(given.path)))
    assert n_attempts(given.path) == 2


def test_the_walltime_that_a_job_has_now_is_told_to_who_asks_inside_of_it(served: Site) -> None:
    ask = f"{shlex.quote(served.python)} -P -m hpcml.schedulers.time_limit {served.name}"
    path = os.environ["PATH"] if served.name != "slurm" else "$PATH"
    text = f"export PATH={path}\n{ask}\nuntil [ -e {shlex.quote(str(served.gate))} ]; do sleep 0.1; done\n{ask}"
    (given,) = served.submit([served.program(text)])
    until_printed(given, "limit_s")

    served.change_walltime(given, 20)
    served.open_gate()

    assert served.until_over(given) is State.COMPLETED, printed(given)
    first, then = (json.loads(line) for line in printed(given).splitlines())
    assert (first["limit_s"], then["limit_s"]) == (600, 1200)
    assert 600 < then["left_s"] <= 1200 if served.name in ("slurm", "pbs") else then["left_s"] is None


def test_an_id_that_means_no_job_or_another_one_is_forgotten_and_not_believed(served: Site) -> None:
    (given,) = served.submit([served.until_gate()])
    served.until_known(given, lambda known: known.state is State.RUNNING)
    unknown = {"pbs": "987654.pbs01", "flux": "f3QSHTG3"}.get(served.name, "987654")
    tickets = [
        given.ticket, replace(given.ticket, job_name="other.20200101-000000-222aaaaa"),
        Ticket(scheduler=served.name, job_id=unknown),
    ]  # fmt: skip

    answers = served.query(tickets)
    served.open_gate()

    assert set(answers.known) == {given.ticket}
    assert answers.unanswered == {}
    served.until_over(given)


@pytest.mark.story
@pytest.mark.parametrize("what", ["lost", "mute", "banner"])
def test_a_lost_or_buried_answer_does_not_queue_a_run_twice(served: Site, what: str) -> None:
    with served.troubled(what):
        (given,) = served.submit([served.program("echo once")])
        several = served.submit([served.program("true")] * 2) if what == "lost" else []

    assert [served.until_over(one) for one in (given, *several)] == [State.COMPLETED] * (1 + len(several))
    assert served.submissions_made() in (None, 2 if several else 1)
    assert n_attempts(given.path) == 1


@pytest.mark.parametrize("served", ["pbs", *LSF_AND_FLUX], indirect=True)
def test_of_what_a_sites_wrapper_submits_twice_no_twin_runs_a_run_that_was_cancelled(
    served: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = {"pbs": "qsub", "lsf": "bsub", "flux": "flux"}[served.name]
    wrapper, real = tmp_path / "site" / program, shutil.which(program)
    wrapper.parent.mkdir()
    others = f'[ {program} = flux ] && [ "$1" != submit ] && exec {real} "$@"'
    wrapper.write_text(f'#!/bin/bash\n{others}\ninput=$(cat)\nfor _ in 1 2; do {real} "$@" <<<"$input"; done\n')
    wrapper.chmod(0o755)
    real_path = os.environ["PATH"]

    with served.closed():
        monkeypatch.setenv("PATH", f"{wrapper.parent}:{real_path}")
        (given,) = served.submit([served.program("echo once")])
        monkeypatch.setenv("PATH", real_path)
        (given.path / "cancel").touch()  # as `hpcml cancel` marks it
        served.cancel([given])

    assert until(lambda: state_of(given.path), lambda: "the other job has not run") is State.CANCELLED
    assert printed(given) == ""


def test_a_server_that_is_down_is_told_of_and_nothing_follows_from_its_silence(served: Site) -> None:
    (given,) = served.submit([served.until_gate()])
    served.until_known(given, lambda known: known.state is State.RUNNING)
    with served.troubled("down"):
        answers = served.query([given.ticket])
        with pytest.raises((NoAnswerError, SubmissionError)):
            served.cancel([given])
        with pytest.raises(SubmissionError):
            served.submit([served.program("true")])

    assert answers.known == {}
    assert answers.unanswered[given.ticket]
    assert served.query([given.ticket]).known[given.ticket].state is State.RUNNING
    served.open_gate()
    assert served.until_over(given) is State.COMPLETED


def test_a_hung_server_costs_no_more_than_the_time_limit_and_leaves_doubt(served: Site) -> None:
    (given,) = served.submit([served.program("true")])
    served.until_over(given)
    with served.troubled("hung"):
        answers = served.query([given.ticket], patience_s=0.7)
        with pytest.raises(NoAnswerError):
            served.cancel([given], patience_s=0.7)
        with pytest.raises(UncertainSubmissionError):
            served.submit([served.program("true")])

    assert "no answer within 0.7 s" in answers.unanswered[given.ticket]


def test_a_run_waits_for_another_and_one_that_waits_in_vain_never_begins(served: Site) -> None:
    (first,) = served.submit([served.until_gate("exit 1")])
    after = first.ticket.job_id
    (behind,) = served.submit([served.program("echo after")], f"resources.dependency='afterany:{after}'")
    (in_vain,) = served.submit([served.program("true")], f"resources.dependency='afterok:{after}'")
    waiting = served.until_known(behind, lambda known: known.state is State.PENDING)
    served.open_gate()

    assert waiting.state is State.PENDING
    assert served.until_over(first) is State.FAILED
    assert served.until_over(behind) is State.COMPLETED
    known = served.query([in_vain.ticket]).known[in_vain.ticket]
    assert known.state in (State.PENDING, State.CANCELLED)
    assert state_of(in_vain.path) is None
    served.cancel([in_vain])


@pytest.mark.story
def test_the_first_of_several_nodes_that_fails_ends_the_others(served: Site) -> None:
    text = 'echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR\nif [ "$RANK" = 1 ]; then exit 3; fi\nsleep 600'
    (given,) = served.submit([served.program(text)], *NODES, *served.for_two_nodes)

    state = served.until_over(given)

    assert state is State.FAILED
    ranks = [printed(given, rank=rank).split() for rank in (0, 1)]
    assert [words[:4] for words in ranks] == [["rank", str(rank), "of", "2"] for rank in (0, 1)]
    assert ranks[0][-1] == ranks[1][-1] != "at"


@pytest.mark.parametrize("last", [0, 1])
def test_several_nodes_may_end_one_long_after_the_other(served: Site, last: int) -> None:
    text = f'if [ "$RANK" = {last} ]; then sleep 8; fi\necho done'
    (given,) = served.submit([served.program(text)], *NODES, *served.for_two_nodes)

    state = served.until_over(given)

    assert state is State.COMPLETED, served.query([given.ticket])
    assert [printed(given, rank=rank) for rank in (0, 1)] == ["done\n"] * 2
    if served.remembers:
        served.until_known(given, lambda known: known.state is State.COMPLETED)


def test_one_job_at_a_time_carries_out_a_run(site: Site) -> None:
    (given,) = site.submit([site.until_gate("echo done")])
    until(lambda: n_attempts(given.path) or None, lambda: "it does not begin")

    second = site.submit_again(given)
    if site.remembers:
        known = until(
            lambda: found if (found := site.query([second]).known.get(second)) and found.state.is_final else None,
            lambda: str(site.query([second])),
        )
        assert known.state.is_final
    site.open_gate()

    assert site.until_over(given) is State.COMPLETED
    assert n_attempts(given.path) == 1
    assert printed(given) == "done\n"


def test_what_it_has_no_word_for_is_refused_with_a_reason(site: Site) -> None:
    for override, words in site.refuses.items():
        with pytest.raises(ConfigError, match=words):
            site.preview(*override.split())


def test_what_the_scheduler_turns_down_is_told_in_its_words_and_nothing_is_queued(site: Site) -> None:
    for overrides, words in site.refuses_when_asked.items():
        with pytest.raises(SubmissionError, match=words) as refused:
            site.submit([site.program("true")], *overrides.split())
        assert not isinstance(refused.value, UncertainSubmissionError)
        assert "\n" not in str(refused.value)
