import json
import shutil
from pathlib import Path

import pytest

from hpcml.commands.cancel import cancel_run
from hpcml.commands.follow import Watcher
from hpcml.commands.logs import last_words
from hpcml.commands.top import follow
from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from tests.commands.journals import tell


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    (tmp_path / "journal").mkdir()
    return RunDir(tmp_path)


ENDED = ("attempt_ended", {"state": "FAILED", "reason": "exit status 3"})


def test_a_run_is_seen_from_its_submission_to_its_end(run_dir: RunDir) -> None:
    watcher = Watcher(run_dir)
    seen = [watcher.look().state]
    for file, event in (("0-launch", ("submitted", {})), ("0-agent", ("attempt_started", {})), ("0-agent", ENDED)):
        tell(run_dir, file, event)
        seen.append(watcher.look().state)

    assert seen == [State.PENDING, State.PENDING, State.RUNNING, State.FAILED]
    assert watcher.look().reason == "exit status 3"


def test_late_news_does_not_turn_time_back(run_dir: RunDir) -> None:
    tell(run_dir, "0-agent", ("attempt_started", {}), ENDED)
    tell(run_dir, "0-collect", ("lost", {"reason": "no agent"}))

    assert Watcher(run_dir).look().state is State.FAILED


def test_a_run_that_is_started_again_is_running_again(run_dir: RunDir) -> None:
    tell(run_dir, "0-agent", ("attempt_started", {}), ENDED)
    watcher = Watcher(run_dir)
    watcher.look()

    tell(run_dir, "1-agent", ("attempt_started", {}))

    assert (watcher.look().state, watcher.look().reason) == (State.RUNNING, None)


def test_metrics_that_an_attempt_without_count_did_not_print_are_no_trouble_of_the_run(run_dir: RunDir) -> None:
    trouble = ("metrics_trouble", {"file": "what was printed", "problem": "no line matched the rule"})
    tell(run_dir, "0-agent", ("attempt_started", {}), trouble, ENDED)
    watcher = Watcher(run_dir)
    after_the_first = watcher.look().unread
    tell(run_dir, "1-agent", ("attempt_started", {}), ("attempt_ended", {"state": "COMPLETED"}))

    assert len(after_the_first) == 1
    assert watcher.look().unread == ()


def test_the_last_words_are_those_of_the_last_attempt_and_cannot_move_the_cursor(run_dir: RunDir) -> None:
    run_dir.logs.mkdir()
    run_dir.stderr(0, 0).write_text("old\n")
    run_dir.stderr(1, 0).write_text("a\n\x1b[1;31mb\x1b[0m\n\n\x1b[2J\x1bcc\n\td\n")

    assert last_words(run_dir) == ["b", "?cc", "        d"]


def test_a_run_without_output_has_no_last_words(run_dir: RunDir) -> None:
    assert last_words(run_dir) == []


def test_a_run_that_was_interrupted_is_not_over_before_somebody_says_why(run_dir: RunDir) -> None:
    tell(run_dir, "0-agent", ("attempt_started", {}), ("attempt_interrupted", {"state": "CANCELLED", "reason": "x"}))
    watcher = Watcher(run_dir)
    assert (watcher.look().state, watcher.look().is_over) == (State.CANCELLED, False)

    tell(run_dir, "0-collect", ("ended_by_scheduler", {"state": "PREEMPTED"}))

    assert (watcher.look().state, watcher.look().is_over) == (State.PREEMPTED, True)


def test_a_run_that_left_at_a_checkpoint_may_go_on(run_dir: RunDir) -> None:
    tell(run_dir, "0-agent", ("attempt_ended", {"state": "TIMEOUT", "checkpointed": True}))
    watcher = Watcher(run_dir)
    assert watcher.look().may_go_on

    tell(run_dir, "1-agent", ("submitted", {"by": "agent"}))

    seen = watcher.look()
    assert (seen.state, seen.attempt, seen.may_go_on) == (State.PENDING, 1, False)


def test_another_nodes_agent_cannot_say_that_all_is_well(run_dir: RunDir) -> None:
    tell(run_dir, "0-agent1", ("attempt_started", {}), ("attempt_ended", {"state": "COMPLETED"}))
    watcher = Watcher(run_dir)
    assert watcher.look().state is State.PENDING

    tell(run_dir, "0-agent2", ("attempt_ended", {"state": "FAILED"}))

    assert watcher.look().state is State.FAILED


def test_watching_does_not_end_between_two_attempts(run_dir: RunDir) -> None:
    tell(run_dir, "0-agent", ("attempt_started", {}), ("attempt_ended", {"state": "TIMEOUT", "checkpointed": True}))
    seen = follow([run_dir], period_s=0.01, is_supervised=lambda: True)
    assert next(seen)[0][0].state is State.TIMEOUT

    tell(run_dir, "1-agent", ("submitted", {"by": "agent"}))

    assert next(glimpse.state for ((_, glimpse),) in seen if glimpse.attempt == 1) is State.PENDING
    tell(run_dir, "1-agent", ("attempt_started", {}), ("attempt_ended", {"state": "COMPLETED"}))
    assert [glimpse.state for ((_, glimpse),) in seen] == [State.COMPLETED]


def test_a_run_that_waits_here_has_ended_once_it_is_cancelled(run_dir: RunDir) -> None:
    tell(run_dir, "0-launch", ("submitted", {"scheduler": "local", "job_id": "1-2"}))

    assert cancel_run(run_dir)

    assert Watcher(run_dir).look().state is State.CANCELLED
    assert run_dir.cancel_mark.exists()  # for the queue, which has it on its list
    assert not cancel_run(run_dir)


def test_a_run_of_a_shared_job_is_only_marked(run_dir: RunDir) -> None:
    tell(run_dir, "0-launch", ("submitted", {"scheduler": "slurm", "job_id": "1", "pack": "x/0"}))

    assert cancel_run(run_dir, is_local=False, is_shared=True)

    assert run_dir.cancel_mark.exists()
    assert Watcher(run_dir).look().state is State.PENDING


def test_a_journal_that_is_removed_at_this_moment_is_an_error_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.journals.mkdir(parents=True)
    listed = [run_dir.journals / "0-node7-1-agent.jsonl"]  # and not there when it is opened
    monkeypatch.setattr(RunDir, "journal_files", lambda _: listed)

    with pytest.raises(FileNotFoundError):
        Watcher(run_dir).look()


def test_pace_and_time_left_are_those_of_the_latest_attempt(run_dir: RunDir) -> None:
    tell(run_dir, "0-agent", ("attempt_started", {}))
    header = {"hpcml": 1, "journal": "0-rank0", "run": run_dir.uid, "attempt": 0, "writer": "rank0", "host": "h"}
    lines: list[dict[str, object]] = [{**header, "pid": 1, "t0": 1}]
    lines += [{"s": 1, "t": 1.0, "k": "e", "n": "training", "d": {"steps": 50}}]
    lines += [{"s": 1 + step, "t": 2.0 * step, "k": "m", "i": step, "v": {"loss": 1 / step}} for step in (10, 20)]
    (run_dir.journals / "0-rank0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    watcher = Watcher(run_dir)
    seen = watcher.look()

    told = watcher.reported
    assert (told.step, told.steps, told.steps_per_s(), told.left_s()) == (20, 50, 0.5, 60.0)
    assert seen.latest == {"loss": 0.05}


def test_a_run_that_is_removed_while_it_runs_is_waited_for_no_longer(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.journals.mkdir(parents=True)
    tell(run_dir, "0-agent", ("attempt_started", {}))
    looks = follow([run_dir], period_s=0.01, is_supervised=lambda: False)
    before = next(looks)
    shutil.rmtree(run_dir.path)

    after = [glimpse for ((_, glimpse),) in looks]

    assert before[0][0].state is State.RUNNING
    assert [glimpse.state for glimpse in after] == [State.LOST]
    assert after[0].reason == f"{run_dir.path} was removed while it ran, and with it what it had recorded"


def test_a_run_whose_home_is_away_for_a_while_is_not_lost(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_dir = RunDir(home / "runs" / "exp" / "run")
    run_dir.journals.mkdir(parents=True)
    tell(run_dir, "0-agent", ("attempt_started", {}))
    looks = follow([run_dir], period_s=0.01, is_supervised=lambda: False)
    seen = [next(looks)[0][0].state]

    home.rename(tmp_path / "away")
    seen += [next(looks)[0][0].state for _ in range(3)]
    home.mkdir()  # where it is to be mounted again, an empty folder
    seen += [next(looks)[0][0].state for _ in range(3)]
    home.rmdir()
    (tmp_path / "away").rename(home)
    tell(run_dir, "0-agent", ("attempt_ended", {"state": "COMPLETED"}))

    assert seen == [State.RUNNING] * 7
    assert [glimpse.state for ((_, glimpse),) in looks] == [State.COMPLETED]
