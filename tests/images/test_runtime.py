from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import ImageError
from hpcml.images.logins import Login
from hpcml.images.runtime import (
    Runtime,
    build_command,
    build_environment,
    bytes_cut_off,
    find_runtime,
    looks_like_an_image,
    secrets_in,
)


def program(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return path


def build_words(environ: dict[str, str], login: Login | None = None, *, plain_http: bool = False) -> dict[str, str]:
    return build_environment(
        environ, scratch=Path("/images/tmp"), layers=Path("/images/.layers"), login=login, plain_http=plain_http
    )


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("apptainer version 1.4.5", "1.4.5"),
        ("singularity version 3.8.7-1.el8", "3.8.7-1.el8"),
        ("singularity-ce version 4.1.0-jammy", "4.1.0-jammy"),
        ("2.6.1-dist", "2.6.1-dist"),
    ],
)
def test_a_runtime_is_asked_for_its_version(tmp_path: Path, said: str, version: str) -> None:
    path = program(tmp_path, "singularity", f"echo {said}")

    found = find_runtime({"PATH": str(tmp_path)})

    assert found == Runtime(name="singularity", path=str(path), version=version)


def test_apptainer_comes_first_unless_another_was_asked_for(tmp_path: Path) -> None:
    for name in ("apptainer", "singularity"):
        program(tmp_path, name, "echo version 1.0")

    assert find_runtime({"PATH": str(tmp_path)}).name == "apptainer"
    assert find_runtime({"PATH": str(tmp_path)}, "singularity").name == "singularity"


def test_one_that_is_broken_says_so_in_one_line(tmp_path: Path) -> None:
    program(tmp_path, "apptainer", "echo 'libseccomp.so.2: cannot open' >&2", "exit 127")

    with pytest.raises(ImageError, match=r"apptainer does not work here: libseccomp\.so\.2: cannot open$"):
        find_runtime({"PATH": str(tmp_path)})


def test_one_that_is_missing_names_the_module_that_brings_it(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"ml apptainer/1\.3"):
        find_runtime({"PATH": str(tmp_path)}, module="apptainer/1.3")


def test_a_build_is_told_its_places_and_its_login_by_both_names() -> None:
    login = Login(user="$oauthtoken", password="k")  # noqa: S106 - made up

    told = build_words({"NGC_API_KEY": "k", "https_proxy": "http://p:1"}, login, plain_http=True)

    for name in ("APPTAINER", "SINGULARITY"):
        assert told[f"{name}_TMPDIR"] == "/images/tmp"
        assert told[f"{name}_CACHEDIR"] == "/images/.layers"
        assert told[f"{name}_DOCKER_USERNAME"] == "$oauthtoken"
        assert told[f"{name}_DOCKER_PASSWORD"] == "k"
        assert told[f"{name}_NOHTTPS"] == "1"
    assert told["https_proxy"] == "http://p:1"
    assert "NGC_API_KEY" not in told


def test_a_key_that_the_registry_is_not_to_have_goes_to_nobody() -> None:
    told = build_words({"NGC_API_KEY": "k"})

    assert "k" not in told.values()
    assert "APPTAINER_NOHTTPS" not in told


def test_places_that_the_user_has_chosen_stay() -> None:
    told = build_words({"SINGULARITY_TMPDIR": "/local"})

    assert told["APPTAINER_TMPDIR"] == told["SINGULARITY_TMPDIR"] == "/local"


def test_an_older_runtime_is_told_to_pretend_root() -> None:
    old = Runtime(name="singularity", path="/bin/singularity", version="3.8.7")
    words = ["/bin/singularity", "--nocolor", "build", "--fakeroot", "/i.sif", "/i.def"]

    assert build_command(old, Path("/i.sif"), Path("/i.def"), is_root=False) == words
    assert "--fakeroot" not in build_command(old, Path("/i.sif"), Path("/i.def"), is_root=True)


def test_what_must_not_be_printed_includes_the_passwords_of_proxies() -> None:
    environ = {"NGC_API_KEY": "a", "APPTAINER_DOCKER_PASSWORD": "b", "HTTPS_PROXY": "http://me:c@proxy:1", "X": "d"}

    assert secrets_in(environ) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\0", True),
        (b"hsqs" + bytes(100), True),
        (b"#!/usr/bin/env run-singularity\nhsqs" + bytes(100), True),
        (bytes(1080) + b"\x53\xef" + bytes(100), True),
        (b"#!/usr/bin/env run-singularity\n" + bytes(1080) + b"\x53\xef", True),
        (b"", False),
        (b"root:x:0:0::/root:/bin/sh\n" * 100, False),
        (b"\x7fELF" + bytes(2000), False),
        (b"PK\x03\x04" + bytes(2000), False),
    ],
)
def test_an_image_is_known_by_how_it_begins(tmp_path: Path, head: bytes, is_one: bool) -> None:  # noqa: FBT001
    (tmp_path / "x").write_bytes(head)

    assert looks_like_an_image(tmp_path / "x") == is_one


def test_what_a_squashfs_lacks_at_its_end_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.sqsh"
    path.write_bytes(b"hsqs" + bytes(36) + (5000).to_bytes(8, "little") + bytes(4952))

    assert bytes_cut_off(path) == 0
    path.write_bytes(path.read_bytes()[:-1000])
    assert bytes_cut_off(path) == 1000


def test_a_build_has_temporary_folders_of_its_own_and_nothing_of_a_site_is_bound() -> None:
    told = build_words({"APPTAINER_BIND": "/scratch", "SINGULARITY_BINDPATH": "/work", "APPTAINER_MOUNT": "x"})

    assert [name for name in told if "BIND" in name] == []
    assert told["APPTAINER_MOUNT"].splitlines() == [
        'type=bind,"src=/images/tmp/of-post/tmp","dst=/tmp"',
        'type=bind,"src=/images/tmp/of-post/var/tmp","dst=/var/tmp"',
    ]
    assert told["SINGULARITY_MOUNT"] == told["APPTAINER_MOUNT"]
