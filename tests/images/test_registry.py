from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hpcml.errors import ConfigError, HpcmlError, ImageError
from hpcml.images.logins import login_for
from hpcml.images.registry import Reference, ask
from tests.cluster.apptainer.registry import KEY, Registry

MANIFEST = json.dumps({"schemaVersion": 2, "layers": [{"size": 700}, {"size": 300}]}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(answer: Callable[[str, dict[str, str]], Answer]) -> Iterator[str]:
    """Serve what *answer* returns for a path and headers; yield the host."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, headers, body = answer(self.path, dict(self.headers))
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def at(host: str, *, tag: str | None = "24.12-py3", digest: str | None = None) -> Reference:
    return Reference(host=host, name="nvidia/pytorch", tag=tag, digest=digest, plain_http=True)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def refusal(reference: Reference, **environ: str) -> str:
    with pytest.raises(HpcmlError) as refused:
        ask(reference, environ=environ)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.apptainer
def test_a_tag_is_resolved_to_the_digest_that_the_registry_has(registry: Registry) -> None:
    base = ask(at(registry.host), environ={})

    assert base.digest.startswith("sha256:")
    assert base.size_bytes > 500_000
    assert ask(at(registry.host, tag=None, digest=base.digest), environ={}).digest == base.digest


@pytest.mark.apptainer
def test_a_missing_tag_says_what_to_check(registry: Registry) -> None:
    assert "does not exist: check container.image and container.tag" in refusal(at(registry.host, tag="99.99"))


@pytest.mark.apptainer
def test_the_ngc_key_opens_a_registry_that_was_named_for_it(closed_registry: Registry) -> None:
    host = closed_registry.host

    assert ask(at(host), environ={"NGC_API_KEY": KEY, "HPCML_NGC_REGISTRY": host}).digest.startswith("sha256:")
    assert "needs a login" in refusal(at(host), NGC_API_KEY=KEY)
    refused = refusal(at(host), NGC_API_KEY=f"{KEY}-wrong", HPCML_NGC_REGISTRY=host)
    assert "refuses the login" in refused
    assert "NGC_API_KEY" in refused
    assert KEY not in refused


def test_the_ngc_key_goes_to_ngc_alone() -> None:
    environ = {"NGC_API_KEY": "k"}

    assert login_for("nvcr.io", environ) is not None
    assert login_for("docker.io", environ) is None
    assert login_for("nvcr.io.example.org", environ) is None
    assert "k" not in repr(login_for("nvcr.io", environ)).replace("hpcml.images.logins.Login", "").split("at 0x")[0]


def test_a_token_is_fetched_as_ngc_wants_it_and_not_sent_elsewhere() -> None:
    seen: list[tuple[str, str | None]] = []

    def elsewhere(path: str, headers: dict[str, str]) -> Answer:
        seen.append((f"blob {path}", headers.get("Authorization")))
        return 200, {}, MANIFEST

    with answering(elsewhere) as blobs:

        def registry(path: str, headers: dict[str, str]) -> Answer:
            seen.append((path.partition("?")[0], headers.get("Authorization")))
            if path.startswith("/token"):
                return 200, {}, json.dumps({"token": "short-lived"}).encode()
            if headers.get("Authorization") != "Bearer short-lived":
                challenge = f'Bearer realm="http://{host}/token",service="nvcr",scope="ignored"'
                return 401, {"WWW-Authenticate": challenge}, b"{}"
            return 307, {"Location": f"http://{blobs}/manifest"}, b""

        with answering(registry) as host:
            base = ask(at(host), environ={"NGC_API_KEY": KEY, "HPCML_NGC_REGISTRY": host})

    login = base64.b64encode(f"$oauthtoken:{KEY}".encode()).decode()
    assert base.digest == DIGEST
    assert base.size_bytes == 1000
    assert seen == [
        ("/v2/nvidia/pytorch/manifests/24.12-py3", None),
        ("/token", f"Basic {login}"),
        ("/v2/nvidia/pytorch/manifests/24.12-py3", "Bearer short-lived"),
        ("blob /manifest", None),
    ]


def test_of_an_image_for_several_processors_ours_is_measured() -> None:
    platforms = [("arm64", "linux", f"sha256:{'0' * 64}"), ("amd64", "linux", DIGEST)]
    index = json.dumps(
        {"manifests": [{"digest": d, "platform": {"architecture": a, "os": o}} for a, o, d in platforms]}
    ).encode()

    def registry(path: str, _: dict[str, str]) -> Answer:
        return 200, {}, MANIFEST if path.endswith(DIGEST) else index

    with answering(registry) as host:
        base = ask(at(host), environ={})
        with pytest.raises(ImageError, match=r"no image for ppc64le"):
            ask(at(host), environ={}, architecture="ppc64le")

    assert base.digest == f"sha256:{hashlib.sha256(index).hexdigest()}"
    assert base.size_bytes == 1000


def test_what_has_not_the_pinned_digest_is_refused() -> None:
    with answering(lambda *_: (200, {}, b'{"layers": []}')) as host:
        assert "has not the digest" in refusal(at(host, digest=DIGEST))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ((200, {}, b"<html>please log in</html>"), "login page"),
        ((200, {}, b"[]"), "does not answer as a registry"),
        ((429, {}, b""), "too many requests"),
        ((503, {}, b""), "503"),
        ((403, {}, b""), "needs a login"),
        ((401, {"WWW-Authenticate": "Digest x"}, b""), "a login that hpcml does not know"),
        ((401, {"WWW-Authenticate": 'Bearer realm="ftp://x"'}, b""), "not encrypted"),
    ],
)
def test_odd_answers_are_said_in_one_line(answer: Answer, word: str) -> None:
    with answering(lambda *_: answer) as host:
        assert word in refusal(at(host))


def test_no_network_says_what_to_do() -> None:
    assert "cannot be reached (Connection refused): build where there is a network" in refusal(at(closed_port()))


@pytest.mark.parametrize("scheme", ["http://", ""])
@pytest.mark.parametrize("password", ["hidden-word", "hidden/word", "hidden#word", "hidden?word", "hidden@word"])
def test_a_proxy_that_is_not_there_is_named_without_its_password(
    scheme: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = closed_port()
    monkeypatch.setenv("https_proxy", f"{scheme}me:{password}@{proxy}")

    said = refusal(Reference(host="nvcr.io", name="nvidia/pytorch", tag="1"))

    assert f"through the proxy {proxy} (" in said
    assert "): check https_proxy" in said
    assert "hidden" not in said


def test_without_encryption_only_this_machine_is_asked() -> None:
    with pytest.raises(ConfigError, match="HPCML_REGISTRY_HTTP=1"):
        ask(Reference(host="registry.example.org", name="a", tag="1", plain_http=True), environ={})
