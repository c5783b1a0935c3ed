"""Messages posted to a real server on this machine."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml.agent import webhook
from hpcml.errors import HpcmlError
from hpcml.model.state import State
from tests.agent.receiver import SECRET, Server, serving


@pytest.fixture
def write_url(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "webhook"
        file.touch(mode=0o600)
        file.write_text(text)
        return file

    return write


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


WriteUrl = Callable[[str], Path]


def refused(url_file: Path, **words: float) -> str:
    with pytest.raises(HpcmlError) as refusal:
        webhook.post(url_file, {"text": "hello"}, **words)
    assert SECRET not in str(refusal.value)
    assert "127.0.0.1" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_the_message_arrives_as_json(server: Server, write_url: WriteUrl) -> None:
    message = webhook.run_message(
        uid="20261121-1",
        name="mnist_cnn",
        experiment="default",
        cluster="karolina",
        state=State.TIMEOUT,
        reason="walltime of 60 s reached",
        cause="time_limit",
        wall_s=3661.2,
    )

    webhook.post(write_url(f"{server.url}\n"), message)

    (taken,) = server.taken
    assert taken["path"] == f"/hooks/{SECRET}"
    assert taken["type"] == "application/json"
    assert taken["body"] == message
    assert message["text"] == (
        "hpcml: mnist_cnn (20261121-1) on karolina: TIMEOUT after 1:01:01: walltime of 60 s reached"
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
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
        f"file:///etc/{SECRET}",
        f"127.0.0.1/{SECRET}",
        f"http:///{SECRET}",
        f"http://127.0.0.1:port/{SECRET}",
        f"http://127.0.0.1/a b{SECRET}",
        f"http://[127.0.0.1/{SECRET}",
    ],
)
def test_what_is_no_web_address_is_refused_without_showing_it(write_url: WriteUrl, text: str) -> None:
    assert "holds no https:// or http:// URL" in refused(write_url(text))


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_refusal_of_the_server_is_told_by_its_number(server: Server, write_url: WriteUrl, status: int) -> None:
    server.status = status

    assert refused(write_url(server.url)) == f"the webhook answered {status}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(server: Server, write_url: WriteUrl, status: int) -> None:
    server.status, server.location = status, f"http://localhost:{server.server_port}/elsewhere"

    assert refused(write_url(server.url)) == f"the webhook answered {status}"
    assert len(server.taken) == 1


def test_a_server_that_is_not_there_is_said_in_the_systems_words(write_url: WriteUrl) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    assert "Connection refused" in refused(write_url(f"http://127.0.0.1:{port}/{SECRET}"))


def test_a_name_that_nobody_has_is_not_repeated(write_url: WriteUrl) -> None:
    assert "nobody.invalid" not in refused(write_url(f"http://nobody.invalid/{SECRET}"))


def test_a_server_without_tls_is_told_apart(server: Server, write_url: WriteUrl) -> None:
    assert "SSLError" in refused(write_url(server.url.replace("http://", "https://")))


def test_a_slow_server_is_not_waited_for(server: Server, write_url: WriteUrl) -> None:
    server.delay_s = 3.0
    started = time.monotonic()

    assert "no answer within 0.5 s" in refused(write_url(server.url), timeout_s=0.5)
    assert time.monotonic() - started < 2.5
