"""Fixtures that several rooms use."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hpcml.model.run import Run
from hpcml.runs.manifest import Provenance
from hpcml.store.opening import open_store
from tests.cluster.postgres.server import Server, missing, running
from tests.composing import compose_run
from tests.effort import times
from tests.parts import NIGHTLY, absent, part_of, require

ComposeOne = Callable[..., Run]
TESTS = Path(__file__).parent
EMPTY_STORE = "empty_store"  # a database to copy
ORIGIN = Provenance(
    command_line=["hpcml", "run"],
    submitted_at="2026-11-21T08:30:15+00:00",
    submitted_from="login1",
    user="me",
    cwd="/home/me",
    hpcml_version="0.1.0",
    python="3.11.7",
)

# folders and files
_OF_ONE_PROCESS = (
    *("recipes", "test_tensorflow_precision.py", "test_jax_precision.py"),
    *("test_tensorflow_work.py", "test_jax_training.py"),
)


pytest.register_assert_rewrite("language_runs", "numeric_runs")  # what they assert for several tests
# of a test that says no number; a machine that others use is slow now and then
settings.register_profile("hpcml", max_examples=times(50, 200), deadline=None)
settings.load_profile("hpcml")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: one of them has the tests that wait for Slurm."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a part be named: a nightly one, "usual", which is what `make test` runs, or "all"."""
    parser.addoption("--part", choices=["usual", "all", *NIGHTLY], default="all", help="which tests to run")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of the part that was asked for, and keep those that share a fixture in one process.

    Each process that begins anew imports the framework, or makes the fixture, once more. Those of the Slurm cluster are
    one group too, and come first: they wait for Slurm most of the time, in which the others have the cores.
    """
    asked = config.getoption("--part")
    chosen, others = [], []
    for item in items:
        part = part_of(item, str(item.path.relative_to(TESTS)))
        is_usual = part is None or item.get_closest_marker("story") is not None
        (chosen if asked in ("all", part) or (asked == "usual" and is_usual) else others).append(item)
        if item.path.parent.name == "slurm":
            item.add_marker(pytest.mark.xdist_group("slurm"))
        elif not {item.path.name, item.path.parent.name}.isdisjoint(_OF_ONE_PROCESS) or _has_fixture_of_module(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """End with the real parts that were not there, for which tests were skipped."""
    reasons = [
        report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)
    ]
    if found := absent(reasons):
        terminalreporter.write_line(f"not there, so not tried (as root: make services): {'; '.join(found)}")


def _has_fixture_of_module(item: pytest.Item) -> bool:
    info = getattr(item, "_fixtureinfo", None)
    return info is not None and any(each[-1].scope == "module" for each in info.name2fixturedefs.values())


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare the garbage collector all tests and modules: they stay to the end, and it would look through them often."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Have torch compute in one thread here: of several, each spins while it waits for one that has no core now."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture
def compose_one(tmp_path: Path) -> ComposeOne:
    """Compose one run from overrides, as the command line would."""

    def compose(*overrides: str) -> Run:
        return compose_run(overrides, tmp_path)

    return compose


@pytest.fixture
def hpcml_environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose home is empty and whose cores nobody else claims."""
    home, runtime = tmp_path / "home", tmp_path / "runtime"
    home.mkdir()
    runtime.mkdir(mode=0o700)
    theirs = ("HPCML_", "XDG_", "SUBMITIT_", "COLUMNS")  # how wide the terminal of whoever runs the tests is
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return {**kept, "HOME": str(home), "HPCML_HOME": str(home / "hpcml"), "XDG_RUNTIME_DIR": str(runtime)}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server that has an empty store to copy."""
    require("PostgreSQL", missing())
    with running() as server:
        server.sql(f"CREATE DATABASE {EMPTY_STORE}")
        open_store(server.url(EMPTY_STORE)).close()
        yield server


@pytest.fixture(scope="session")
def new_database(postgres: Server) -> Callable[[str], str]:
    """Make a database, from a template if one is named, and return its name."""
    numbers = itertools.count()

    def make(template: str = "template0") -> str:
        name = f"db{next(numbers)}"
        postgres.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    return make
