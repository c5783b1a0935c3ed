"""Where the queue of this machine has its lock: in a place that is there for as long as it is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from hpcml.commands.submit.backends import lock_dir
from tests.cli.command_line import Hpcml

OURS = f"hpcml-{os.getuid()}"


def test_cores_are_claimed_in_the_runtime_folder_that_was_given(tmp_path: Path) -> None:
    assert lock_dir({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / OURS


@pytest.mark.parametrize("given", ["", "here/there", "/no/such/place", "/run/user/0", f"/run/user/{os.getuid()}"])
def test_cores_are_not_claimed_where_the_folder_goes_with_the_last_login_or_cannot_be_used(
    given: str,
) -> None:
    assert lock_dir({"XDG_RUNTIME_DIR": given}) == Path(tempfile.gettempdir()) / OURS


def test_a_run_starts_for_a_user_who_has_the_runtime_folder_of_another_login(
    hpcml_environ: dict[str, str], tmp_path: Path
) -> None:
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path / "project")
    hpcml.cwd.mkdir()

    done = hpcml("run", "--", "true", XDG_RUNTIME_DIR="/no/such/place", TMPDIR=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED"]
    assert (tmp_path / OURS).is_dir()
