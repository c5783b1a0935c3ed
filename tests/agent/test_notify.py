"""Ends told to a real server on this machine, by agents."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml.agent.notify import post, record_end
from hpcml.errors import HpcmlError
from hpcml.model.state import State
from hpcml.runs.layout import RunDir
from tests.agent.node import ON_SLURM, MakeRun, agent, agents_of, start_agent, told
from tests.agent.receiver import SECRET, Server, serving


@pytest.fixture
def write_url(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "webhook"
        file.touch(mode=0o600)
        file.write_text(text)
        return file

    return write


WriteUrl = Callable[[str], Path]


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
    assert body["text"].startswith(f"hpcml: mine ({run_dir.uid}) on local: FAILED after 0:00:0")
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


def refused(url_file: Path, **words: float) -> str:
    with pytest.raises(HpcmlError) as refusal:
        post(url_file, {"text": "hello"}, **words)
    assert SECRET not in str(refusal.value)
    assert "127.0.0.1" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_file_that_others_may_read_or_change_is_refused(server: Server, write_url: WriteUrl, mode: int) -> None:
    url_file = write_url(server.url)
    url_file.chmod(mode)

    assert "chmod 600" in refused(url_file)
    assert server.taken == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_is_refused(server: Server, write_url: WriteUrl) -> None:
    url_file = write_url(server.url)
    os.chown(url_file, 65534, 65534)

    assert "must be yours alone" in refused(url_file)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert "cannot be read: No such file or directory" in refused(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ftp://127.0.0.1/{SECRET}",
        f"127.0.0.1/{SECRET}",
        f"http://127.0.0.1:port/{SECRET}",
        f"http://[127.0.0.1/{SECRET}",
    ],
)
def test_what_is_no_web_address_is_refused_without_showing_it(write_url: WriteUrl, text: str) -> None:
    assert "holds no https:// or http:// URL" in refused(write_url(text))


@pytest.mark.parametrize("status", [404, 500])
def test_a_refusal_of_the_server_is_told_by_its_number(server: Server, write_url: WriteUrl, status: int) -> None:
    server.status = status

    assert refused(write_url(server.url)) == f"the webhook answered {status}"


@pytest.mark.parametrize("status", [302, 307])
def test_no_redirect_is_followed(server: Server, write_url: WriteUrl, status: int) -> None:
    server.status, server.location = status, f"http://localhost:{server.server_port}/elsewhere"

    assert refused(write_url(server.url)) == f"the webhook answered {status}"
    assert len(server.taken) == 1


def test_a_server_that_is_not_there_is_said(write_url: WriteUrl) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    assert "ConnectionRefusedError" in refused(write_url(f"http://127.0.0.1:{port}/{SECRET}"))


def test_a_name_that_nobody_has_is_not_repeated(write_url: WriteUrl) -> None:
    assert "nobody.invalid" not in refused(write_url(f"http://nobody.invalid/{SECRET}"))


def test_a_server_without_tls_is_told_apart(server: Server, write_url: WriteUrl) -> None:
    assert "SSLError" in refused(write_url(server.url.replace("http://", "https://")))


def test_a_slow_server_is_not_waited_for(server: Server, write_url: WriteUrl) -> None:
    server.delay_s = 3.0
    started = time.monotonic()

    assert "no answer within 0.5 s" in refused(write_url(server.url), timeout_s=0.5)
    assert time.monotonic() - started < 2.5
