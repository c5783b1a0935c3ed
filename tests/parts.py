"""The parts of the tests: what `make test` leaves to the night, and what needs a real service that may not be there.

A test belongs to the part that names its file here or, in a file of several parts, to that of its own
`@pytest.mark.nightly("part")`. `make test` runs every test without a part, and the stories of `tests/README.md`
(`@pytest.mark.story`), which are the reason why each part may wait for the night.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch

import pytest

NIGHTLY: dict[str, tuple[str, ...]] = {  # part: its files, below tests/
    "mpi": ("schedulers/*_mpi.py", "schedulers/*_mpi_images.py", "recipes/test_horovod*.py"),
    "slurm": (),  # what is marked so
    "pbs": tuple(
        f"schedulers/pbs/test_pbs_{each}.py"
        for each in ("launchers", "reconcile", "ends", "end_to_end", "life", "requeue", "faults")
    ),
    "lsf": ("schedulers/conformance/test_commands_on_lsf_and_flux.py",),
    "apptainer": (),  # as for slurm
    "postgres": ("store/test_postgres*.py", "cli/test_shared_store.py"),
    "frameworks": (
        *("recipes/test_keras_*.py", "recipes/test_tensorflow_*.py", "recipes/test_*jax*.py"),
        *("train/test_tensorflow_*.py", "train/test_jax_*.py", "client/test_callbacks.py"),
        *("recipes/test_recipe_strategies.py", "recipes/test_inference.py"),
        *("agent/test_observed_programs.py", "cli/test_compiled_programs.py"),
    ),
    "kills": (
        "cli/test_random_kills.py",
        "cli/test_submission_kills.py",
        "cli/test_tune_kills.py",
        "store/test_kills.py",
        "cli/test_*_disk.py",
        "commands/test_killed_queues.py",
    ),
    "mlflow": ("interop/test_mlflow_*.py",),
    "browser": ("report/test_html_*.py", "report/test_latex.py", "cli/test_watch.py"),
    "statistics": ("analysis/test_*_rates.py",),
    "long": (),  # what is marked so
    "docs": tuple(
        f"docs/test_{each}.py" for each in ("examples", "course", "contributing", "coming_from", "drawn_pictures")
    ),
    "wheels": ("test_wheel.py", "client/test_old_python.py", "train/test_train_on_old_python.py"),
}
_NOT_THERE = "not there: "


def part_of(item: pytest.Item, path: str) -> str | None:
    """Return the nightly part that a test of the file *path* (below tests/) belongs to."""
    if mark := item.get_closest_marker("nightly"):
        part: str = mark.args[0]
        return part
    for part, files in NIGHTLY.items():
        if any(fnmatch(path, each) for each in files) or item.get_closest_marker(part):
            return part
    return None


def require(name: str, lacking: str | None) -> None:
    """Skip the test where the machine lacks something for the real part *name*; in CI, where it can be had, fail."""
    if lacking is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name}: {lacking}")
    pytest.skip(f"{_NOT_THERE}{name}: {lacking}")


def absent(reasons: list[str]) -> list[str]:
    """Return the parts that were not there, each once, of the reasons for which tests were skipped."""
    found = {each.partition(_NOT_THERE)[2] for each in reasons if _NOT_THERE in each}
    return sorted(found)
