"""An hpcml that PYTHONPATH alone leads to (``pip install --target``, a site's module) is found by its jobs, too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import hpcml
from hpcml.schedulers.script import body
from tests.schedulers.slurm.test_slurm_script import request

INSTALLATION = str(Path(hpcml.__file__).parents[1])


def told_to_a_job(inherited: dict[str, str]) -> str:
    """Return the PYTHONPATH of the program in whose place an agent would start, in a job with *inherited*."""
    lines = body(request(), ["/bin/sh", "-c", 'printf "%s" "$PYTHONPATH"'])
    done = subprocess.run(["bash"], input="\n".join(lines), env=inherited, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_job_that_inherits_nothing_finds_hpcml_where_this_process_did(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = tmp_path / "its dependencies"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([INSTALLATION, "relative", "", str(beside)]))

    assert told_to_a_job({}) == f"{INSTALLATION}:{beside}"
    assert told_to_a_job({"PYTHONPATH": "/of/a/module"}) == f"{INSTALLATION}:{beside}:/of/a/module"


@pytest.mark.parametrize("found", [None, "", "/somewhere/else"])
def test_a_pythonpath_by_which_hpcml_was_not_found_is_no_business_of_a_script(
    monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if found is not None:
        monkeypatch.setenv("PYTHONPATH", found)

    assert told_to_a_job({"PYTHONPATH": "/of/a/module"}) == "/of/a/module"
