import json
from pathlib import Path

import pytest

from hpcml.operations.follow import Watcher, last_words
from hpcml.rundir import RunDir
from hpcml.states import State


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    (tmp_path / "journal").mkdir()
    return RunDir(tmp_path)


def tell(run_dir: RunDir, file: str, *events: tuple[str, dict[str, object]]) -> None:
    attempt = int(file.partition("-")[0])
    header = {
        "hpcml": 1,
        "journal": file,
        "run": "r",
        "attempt": attempt,
        "writer": "agent",
        "host": "h",
        "pid": 1,
        "t0": 1,
    }
    path = run_dir.journals / f"{file}.jsonl"
    lines = [] if path.exists() else [header]
    lines += [{"s": 1, "t": 1.0, "k": "e", "n": name, "d": details} for name, details in events]
    with path.open("a") as journal:
        journal.writelines(json.dumps(line) + "\n" for line in lines)


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


def test_the_last_words_are_those_of_the_last_attempt_and_cannot_move_the_cursor(run_dir: RunDir) -> None:
    run_dir.logs.mkdir()
    run_dir.stderr(0, 0).write_text("old\n")
    run_dir.stderr(1, 0).write_text("a\nb\n\n\x1b[2Jc\nd\n")

    assert last_words(run_dir) == ["b", "?[2Jc", "d"]


def test_a_run_without_output_has_no_last_words(run_dir: RunDir) -> None:
    assert last_words(run_dir) == []
