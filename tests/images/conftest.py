"""A user with a real Apptainer, and registries that stand in for NVIDIA's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.apptainer.registry import PATH, Registry, make_base, missing, running
from tests.cluster.slurm.account import Account, prepare
from tests.cluster.slurm.cluster import Cluster
from tests.images.user import ImageUser
from tests.parts import require
from tests.schedulers.slurm.conftest import lock

_ROOT = Path("/srv/hpcml-images")


@pytest.fixture(scope="session")
def account() -> Iterator[Account]:
    """An ordinary user, with a Python, the sources and Apptainer on PATH; no Slurm is started."""
    require("Apptainer", missing())
    cluster = Cluster()
    cluster.root.mkdir(mode=0o755, parents=True, exist_ok=True)
    _ROOT.mkdir(mode=0o755, exist_ok=True)
    with lock(cluster.root / "start.lock", alone=True):
        user = prepare(cluster)
    yield replace(user, cluster=Cluster(root=_ROOT))
    shutil.rmtree(user.sources, ignore_errors=True)


@pytest.fixture(scope="session")
def base_layout(tmp_path_factory: pytest.TempPathFactory, account: Account) -> Path:  # noqa: ARG001 - skips without it
    """The image that the tests build upon."""
    return make_base(tmp_path_factory.mktemp("base"), words="the first base\n")


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory, base_layout: Path) -> Iterator[Registry]:
    """A registry that gives to everybody."""
    with running(tmp_path_factory.mktemp("registry"), needs_login=False) as found:
        found.push(base_layout, "base", "nvidia/pytorch:24.12-py3")
        yield found


@pytest.fixture(scope="session")
def closed_registry(tmp_path_factory: pytest.TempPathFactory, base_layout: Path) -> Iterator[Registry]:
    """A registry that wants NGC's user and key."""
    with running(tmp_path_factory.mktemp("closed"), needs_login=True) as found:
        found.push(base_layout, "base", "nvidia/pytorch:24.12-py3")
        yield found


@pytest.fixture
def user(account: Account) -> Iterator[ImageUser]:
    """The user with an empty folder and no images, for whom no program builds Dockerfiles."""
    folder = account.new_folder()
    account.run(["mkdir", "me", "none"], cwd=folder)
    for name in ("podman", "buildah", "docker"):
        (folder / "none" / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / "none" / name).chmod(0o755)
    path = f"{account.python.parent}:{folder}/none:{PATH}"
    found = ImageUser(account=account, folder=folder, environ={"PATH": path})
    yield found
    found.end_all()
    shutil.rmtree(folder, ignore_errors=True)
