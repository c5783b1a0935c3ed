"""Ends told to a real server on this machine, by agents."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.agent.notify import record_end
from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from tests.agent.node import ON_SLURM, MakeRun, agent, agents_of, start_agent, told
from tests.agent.receiver import SECRET, Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def url_file(server: Server, tmp_path: Path) -> Path:
    file = tmp_path / "webhook"
    file.touch(mode=0o600)
    file.write_text(server.url)
    return file


def words(notify: str, url_file: Path) -> tuple[str, ...]:
    return (f"schedule.notify={notify}", f"schedule.webhook_file={url_file}", "name=mine")


def whole_journal(run_dir: RunDir) -> str:
    return "".join(path.read_text() for path in run_dir.journal_files())


def test_the_end_of_a_run_is_posted_and_journalled_without_the_url(
    make_run: MakeRun, server: Server, url_file: Path
) -> None:
    run_dir = make_run("raise SystemExit(3)", *words("run", url_file))

    assert agent(str(run_dir.path)).returncode == 3

    ((_, body),) = [(taken["path"], taken["body"]) for taken in server.taken]
    assert (body["event"], body["state"], body["cause"]) == ("run_ended", "FAILED", "program")
    assert body["run"]["uid"] == run_dir.uid
    assert told(run_dir, "notified") == [{"what": "run"}]
    assert SECRET not in whole_journal(run_dir)


def test_a_run_that_goes_on_is_not_told_until_it_has_ended(make_run: MakeRun, server: Server, url_file: Path) -> None:
    code = "import os, sys; sys.exit(75 if os.environ['HPCML_ATTEMPT'] == '0' else 0)"
    run_dir = make_run(code, *words("run", url_file))

    agent(str(run_dir.path), HPCML_REQUEUE='echo \'{"job_id": "1"}\' #')
    before = len(server.taken)
    agent(str(run_dir.path))

    assert before == 0
    assert [taken["body"]["state"] for taken in server.taken] == ["COMPLETED"]


def test_a_failure_on_another_node_is_what_is_told(make_run: MakeRun, server: Server, url_file: Path) -> None:
    two_nodes = (*ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")
    code = "import os, sys, time; rank = int(os.environ['RANK']); time.sleep(2 * rank); sys.exit(3 * rank)"
    run_dir = make_run(code, *two_nodes, *words("run", url_file))

    assert agents_of(run_dir, 2, SLURM_JOB_ID="1") == [0, 3]

    (taken,) = server.taken
    assert (taken["body"]["state"], taken["body"]["cause"]) == ("FAILED", "program")
    assert taken["body"]["reason"] == "exit status 3"


def test_a_requeue_that_fails_is_an_end_and_told(make_run: MakeRun, server: Server, url_file: Path) -> None:
    run_dir = make_run("raise SystemExit(75)", *words("run", url_file))

    agent(str(run_dir.path), HPCML_REQUEUE="false")

    (taken,) = server.taken
    assert taken["body"]["state"] == "TIMEOUT"
    assert "could not be queued again" in taken["body"]["reason"]


@pytest.mark.parametrize("trouble", ["refused", "readable by others", "gone"])
def test_a_message_that_cannot_be_posted_harms_nothing_and_betrays_nothing(
    make_run: MakeRun, server: Server, url_file: Path, trouble: str
) -> None:
    run_dir = make_run("pass", *words("run", url_file))
    server.status = 500 if trouble == "refused" else 204
    if trouble == "readable by others":
        url_file.chmod(0o644)
    elif trouble == "gone":
        url_file.unlink()

    assert agent(str(run_dir.path)).returncode == 0

    (failed,) = told(run_dir, "notify_failed")
    assert failed["what"] == "run"
    assert SECRET not in whole_journal(run_dir)
    assert "127.0.0.1" not in whole_journal(run_dir)


def test_a_sweep_is_told_once_by_whichever_run_ends_last(make_run: MakeRun, server: Server, url_file: Path) -> None:
    runs = [
        make_run(f"raise SystemExit({number % 2})", *words("sweep", url_file), uid=f"u{number}", submission_size=4)
        for number in range(4)
    ]

    agents: list[subprocess.Popen[bytes]] = [start_agent(str(run.path)) for run in runs]
    for process in agents:
        process.wait(300)
    agent(str(runs[1].path))  # by hand, once more

    (taken,) = server.taken
    assert (taken["body"]["event"], taken["body"]["states"]) == ("sweep_ended", {"COMPLETED": 2, "FAILED": 2})
    assert sum(len(told(run, "notified")) for run in runs) == 1


def test_only_the_end_that_completes_the_count_tells_it(tmp_path: Path) -> None:
    folder = tmp_path / "ended" / "sub"

    counts = [
        record_end(folder, uid, state, size=2)
        for uid, state in [("a", State.FAILED), ("a", State.COMPLETED), ("b", State.COMPLETED), ("b", State.FAILED)]
    ]

    assert counts == [None, None, {"COMPLETED": 2}, None]
