"""How a scheduler's programs are started: no input to wait for, no locale to parse, and never for ever."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from hpcml.errors import SubmissionError
from hpcml.schedulers.commands import Answer, NoAnswerError, call
from hpcml.schedulers.request import Request
from hpcml.schedulers.slurm import rehearsal
from hpcml.schedulers.slurm.query import one_line


def test_an_answer_has_all_that_was_said_and_the_exit_status() -> None:
    answer = call(["bash", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10)

    assert (answer.returncode, answer.stdout, answer.stderr) == (3, "out\n", "err\n")


def test_rulers_around_a_sites_words_are_left_out() -> None:
    said = "sbatch: error: =====\nsbatch: error: Refused: see https://site\nsbatch: error: =====\nsbatch: error: No\n"
    answer = Answer(returncode=1, stdout="", stderr=said + "sbatch: *****\nsbatch: Balance: 100 h\n")

    assert one_line(answer) == "Refused: see https://site; No; Balance: 100 h"
    assert answer.own_words("sbatch")[-1] == "Balance: 100 h"
    assert "*****" not in answer.own_words("sbatch")


def test_a_program_runs_in_the_c_locale_with_nothing_to_read() -> None:
    answer = call(["bash", "-c", "echo $LC_ALL; cat"], timeout_s=10)

    assert answer.stdout == "C\n"


def test_a_program_that_hands_its_environment_on_gets_the_users() -> None:
    answer = call(["/usr/bin/env"], timeout_s=10, environ={"LC_ALL": "cs_CZ.UTF-8"})

    assert answer.stdout == "LC_ALL=cs_CZ.UTF-8\n"


def test_what_is_to_be_read_is_given() -> None:
    assert call(["cat"], timeout_s=10, input="žluť").stdout == "žluť"


def test_words_are_not_read_by_a_shell() -> None:
    assert call(["echo", "$(id); *"], timeout_s=10).stdout == "$(id); *\n"


def test_bytes_that_are_no_text_do_not_break_an_answer() -> None:
    assert call(["printf", r"a\377b"], timeout_s=10).stdout == "a\ufffdb"


def test_a_missing_program_is_named() -> None:
    with pytest.raises(SubmissionError, match="no-such-sbatch cannot be started: No such file"):
        call(["no-such-sbatch"], timeout_s=10)


def test_a_program_that_hangs_is_ended_with_its_children_and_is_no_answer(tmp_path: Path) -> None:
    began = time.monotonic()

    with pytest.raises(NoAnswerError, match=r"bash gave no answer within 0\.5 s"):
        call(["bash", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid; wait"], timeout_s=0.5)

    child = int((tmp_path / "pid").read_text())
    assert time.monotonic() - began < 5
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_what_a_program_said_before_it_was_given_up_is_told() -> None:
    waits = "echo 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2; sleep 60"

    with pytest.raises(NoAnswerError, match=r"within 0\.5 s, and said: sbatch: error: Slurm temporarily unable to acc"):
        call(["bash", "-c", waits], timeout_s=0.5)


@pytest.mark.parametrize(
    "silence",
    [
        Answer(returncode=1, stdout="", stderr="sacctmgr: error: Problem talking to the database"),
        NoAnswerError("no sacctmgr"),
    ],
)
def test_limits_of_a_qos_that_nobody_tells_stop_nothing_and_are_said(
    silence: Answer | NoAnswerError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object, **__: object) -> Answer:
        if isinstance(silence, NoAnswerError):
            raise silence
        return silence

    monkeypatch.setattr(rehearsal, "ask_cluster", ask)
    request = cast(Request, SimpleNamespace(qos="brief", walltime_s=60))
    (said,), starts_but = rehearsal._accounting("#SBATCH --qos=brief\n", "p", request, 1.0)

    assert said.startswith("the limits of QOS brief are not known: ")
    assert starts_but is None


@pytest.mark.parametrize(
    ("limits", "warned", "starts_but"),
    [
        ("00:10:00||||||cpu=64|", True, "QOS brief limits what runs at once (MaxTRESPA=cpu=64), which is not counted"),
        ("|||||1||", False, "QOS brief limits what runs at once (MaxJobsPU=1), which is not counted"),
        ("1-00:00:00|||||||", False, None),
        ("", False, None),  # there is none of that name: sbatch has refused it
    ],
)
def test_limits_of_a_qos_are_told_apart(
    limits: str, starts_but: str | None, monkeypatch: pytest.MonkeyPatch, *, warned: bool
) -> None:
    said = accounted(monkeypatch, limits, "", "#SBATCH --qos=brief\n")

    assert (len(said[0]), said[1]) == (warned, starts_but)


def accounted(
    monkeypatch: pytest.MonkeyPatch, qos: str, associations: str, script: str
) -> tuple[tuple[str, ...], str | None]:
    """Return what is said of an hour in partition p, where sacctmgr tells this of QOS and associations."""

    def ask(argv: Sequence[str], *_: object, **__: object) -> Answer:
        return Answer(returncode=0, stdout=f"{associations if 'associations' in argv else qos}\n", stderr="")

    monkeypatch.setattr(rehearsal, "ask_cluster", ask)
    request = cast(Request, SimpleNamespace(qos=None, walltime_s=3600))
    return rehearsal._accounting(script, "p", request, 1.0)


@pytest.mark.parametrize(
    ("associations", "allows"),
    [
        ("a1|||00:10:00||||", "your account a1 allows 10m"),
        ("a1|||00:10:00||||\na1|p||00:20:00||||\na1|other||00:05:00||||", "your account a1 allows 20m"),
        ("a1|||00:10:00||||\na2|||00:20:00||||", None),  # which one counts is the site's default account
        ("a1|||2-00:00:00||||", None),
        ("a1|||||||", None),
        ("", None),
    ],
)
def test_the_walltime_of_an_association_is_told_where_it_is_the_one_that_counts(
    associations: str, allows: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, starts_but = accounted(monkeypatch, "|||||||", associations, "")

    assert [f"resources.walltime is 1h, and {allows}: it may be taken and never start"] * bool(allows) == list(said)
    assert starts_but is None


def test_a_qos_goes_before_the_association_that_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said, starts_but = accounted(monkeypatch, "02:00:00|||||1||", "a1||usual|00:10:00||||2", "")

    assert said == ()
    assert starts_but == (
        "QOS usual limits what runs at once (MaxJobsPU=1), your account a1 limits what runs at once (MaxJobs=2), "
        "which is not counted"
    )
