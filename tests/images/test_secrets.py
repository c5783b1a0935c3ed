"""The key of a registry: who sees it, and that nothing holds it afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.apptainer.registry import KEY, Registry
from tests.images.user import ImageUser, one_line
from tests.images.watching import LONGEST_S, await_command

pytestmark = pytest.mark.apptainer


def test_the_key_of_ngc_is_written_nowhere(user: ImageUser, closed_registry: Registry) -> None:
    login = {"NGC_API_KEY": KEY, "HPCML_NGC_REGISTRY": closed_registry.host}
    post = "env; cat /proc/*/cmdline; echo $NGC_API_KEY $APPTAINER_DOCKER_PASSWORD"

    built = user.build(closed_registry, f"container.post=['{post}']", **login)
    failed = user.build(closed_registry, f"container.post=['{post}; exit 3']", **login)
    told = user.build(closed_registry, f"container.post=['echo {KEY}; exit 4']", "--json", **login)
    wrong = user.build(closed_registry, **{**login, "NGC_API_KEY": f"{KEY}-wrong"})

    assert built.returncode == 0, built.stderr
    assert [done.returncode for done in (failed, told, wrong)] == [4, 4, 4]
    for done in (built, failed, wrong):
        assert KEY not in done.stdout + done.stderr
    assert "***" in told.stderr
    assert KEY not in told.stderr
    for path in user.everything_written():
        # what the user has typed into a definition is theirs; no such image came to be
        assert KEY.encode() not in path.read_bytes(), path
    assert len(list((user.images / "failed").iterdir())) == 2


def test_the_key_is_in_no_argument_and_in_no_environment_but_the_registry_client_s(
    user: ImageUser, closed_registry: Registry
) -> None:
    login = {"NGC_API_KEY": KEY, "HPCML_NGC_REGISTRY": closed_registry.host}
    builder = user.start("build", *user.build_words(closed_registry, "container.post=['sleep 60']"), **login)

    found = await_command(user, "sleep 60")
    knowing = {pid: words for pid, words in found.items() if KEY in Path(f"/proc/{pid}/environ").read_text()}
    builder.terminate()
    builder.communicate(timeout=LONGEST_S)

    assert not any(KEY in words for words in found.values())
    others = [words for pid, words in knowing.items() if pid != builder.pid and "pptainer" not in words]
    assert others == []
    assert "/bin/sh -ex /.post.script" in found.values()


def test_a_login_that_apptainer_has_stored_is_taken_and_printed_nowhere(
    user: ImageUser, closed_registry: Registry
) -> None:
    without = user.build(closed_registry)
    login = ["apptainer", "registry", "login", "--username", "$oauthtoken", "--password-stdin"]
    stored = user.account.run(
        [*login, f"docker://{closed_registry.host}"], cwd=user.folder, environ=user.variables(), input=KEY.encode()
    )
    holding = {path for path in user.everything_written() if path.name == "config.json"}

    built = user.build(closed_registry, "container.post=['env']")
    told = user.build(closed_registry, f"container.post=['echo {KEY}; exit 4']")

    assert without.returncode == 4
    assert f"apptainer registry login docker://{closed_registry.host}" in one_line(without)
    assert stored.returncode == 0, stored.stderr
    assert built.returncode == 0, built.stderr
    assert "***" in told.stderr
    for done in (without, built, told):
        assert KEY not in done.stdout + done.stderr
    assert {path for path in user.everything_written() if KEY.encode() in path.read_bytes()} <= holding
