"""The Slurm test cluster for tests: started for the first who asks, shared by all workers, stopped by the last."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account, prepare
from tests.cluster.slurm.cluster import Cluster, missing
from tests.cluster.slurm.configuration import NODES
from tests.parts import require


@contextmanager
def lock(path: Path, *, alone: bool) -> Iterator[int]:
    """Hold *path* together with others, or alone; yield its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture(scope="session")
def account() -> Iterator[Account]:
    """The user of a running cluster."""
    require("Slurm", missing())
    cluster = Cluster()
    cluster.root.mkdir(mode=0o755, parents=True, exist_ok=True)
    ours = cluster.root / "started-by-tests"
    with lock(cluster.root / "users.lock", alone=False) as users:
        with lock(cluster.root / "start.lock", alone=True):
            if not cluster.is_up():
                ours.touch()
                cluster.start()
            user = prepare(cluster)
        yield user
        shutil.rmtree(user.sources)
        with lock(cluster.root / "start.lock", alone=True):
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another worker, or another session, still needs it, and will stop it
                fcntl.flock(users, fcntl.LOCK_UN)  # before start.lock is free: else it finds us here, as we found it
                return
            if ours.exists():
                cluster.stop()
                ours.unlink()
                shutil.rmtree(cluster.root / "work", ignore_errors=True)


@pytest.fixture
def slurm(account: Account) -> Iterator[Account]:
    """The cluster, with others at work on it."""
    with lock(account.cluster.root / "tests.lock", alone=False):
        yield account


@pytest.fixture
def slurm_alone(account: Account) -> Iterator[Account]:
    """The cluster for a test that stops a part of it; all parts run again afterwards."""
    with lock(account.cluster.root / "tests.lock", alone=True):
        yield account
        account.cluster.start_accounting()
        account.cluster.start_controller()
        for node in NODES:
            account.cluster.restore_node(node)


@pytest.fixture
def folder(account: Account) -> Path:
    """A folder of the user's, which every node sees."""
    return account.new_folder()
