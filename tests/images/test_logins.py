"""Whom a registry is told that we are, and where that is found."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from hpcml.images.logins import Login, login_for


def stored(path: Path, **known: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auths": known}))


def encoded(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    "place", [".apptainer/docker-config.json", ".singularity/docker-config.json", ".docker/config.json"]
)
@pytest.mark.parametrize("name", ["nvcr.io", "https://nvcr.io", "https://nvcr.io/v2/"])
def test_a_login_that_was_stored_is_found(tmp_path: Path, place: str, name: str) -> None:
    stored(tmp_path / place, **{name: encoded("$oauthtoken", "a:b"), "other.org": encoded("x", "y")})

    assert login_for("nvcr.io", {"HOME": str(tmp_path)}) == Login(user="$oauthtoken", password="a:b")  # noqa: S106
    assert login_for("nvcr.io.example.org", {"HOME": str(tmp_path)}) is None


def test_apptainers_own_file_goes_first_and_the_environment_before_it(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    stored(
        tmp_path / ".docker/config.json",
        **{"nvcr.io": encoded("me", "docker"), "127.0.0.1:5000": encoded("me", "port")},
    )
    stored(tmp_path / ".apptainer/docker-config.json", **{"nvcr.io": encoded("me", "apptainer")})
    stored(tmp_path / "elsewhere/docker-config.json", **{"nvcr.io": encoded("me", "elsewhere")})
    stored(tmp_path / "docker/config.json", **{"127.0.0.1:5000": encoded("me", "chosen")})

    def password(host: str, **environ: str) -> str | None:
        found = login_for(host, {**home, **environ})
        return found and found.password

    assert password("nvcr.io") == "apptainer"
    assert password("nvcr.io", NGC_API_KEY="key") == "key"
    assert password("127.0.0.1:5000", NGC_API_KEY="key") == "port"
    assert password("127.0.0.1:5000", DOCKER_CONFIG=str(tmp_path / "docker")) == "chosen"
    assert password("nvcr.io", APPTAINER_CONFIGDIR=str(tmp_path / "elsewhere")) == "elsewhere"
    assert password("nvcr.io", APPTAINER_DOCKER_USERNAME="me", APPTAINER_DOCKER_PASSWORD="told") == "told"  # noqa: S106
    assert login_for("nvcr.io", {}) is None


def test_dockers_hub_has_several_names(tmp_path: Path) -> None:
    stored(tmp_path / ".docker/config.json", **{"https://index.docker.io/v1/": encoded("me", "hub")})

    assert login_for("docker.io", {"HOME": str(tmp_path)}) == Login(user="me", password="hub")  # noqa: S106


@pytest.mark.parametrize(
    "words",
    [
        "",
        "[]",
        "{}",
        '{"auths": []}',
        '{"auths": {"nvcr.io": null}}',
        '{"auths": {"nvcr.io": {}}, "credsStore": "desktop"}',
        '{"auths": {"nvcr.io": {"auth": "not base64"}}}',
        '{"auths": {"nvcr.io": {"auth": "bm9jb2xvbg=="}}}',
        '{"auths": {"nvcr.io": {"auth": 7}}}',
        '{"auths": {"nvcr.io": {"username": "me", "password": 7}}}',
    ],
)
def test_what_holds_no_login_is_none(tmp_path: Path, words: str) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text(words)

    assert login_for("nvcr.io", {"HOME": str(tmp_path)}) is None
