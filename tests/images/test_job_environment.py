"""The login of a registry: no job finds it, whoever starts the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.model.image import LOGIN_VARIABLES, without_login
from tests.cli.command_line import Hpcml

SECRET = "nvapi-not-for-jobs-4711"  # noqa: S105 - made up


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ={**hpcml_environ, **dict.fromkeys(LOGIN_VARIABLES, SECRET), "OF_MINE": "kept"}, cwd=cwd)


@pytest.mark.parametrize("words", [("seed=0",), ("-m", "seed=0,1")])
def test_a_job_of_this_machine_finds_no_login(hpcml: Hpcml, words: tuple[str, ...]) -> None:
    look = "for p in $$ $PPID; do tr '\\0' '\\n' </proc/$p/environ; done"  # the program's own, and its agent's

    done = hpcml("run", *words, f'workload.command=sh -c "{look}"')

    assert done.returncode == 0, done.stderr
    runs = hpcml.runs()
    assert len(runs) == len(words)
    for run in runs:
        printed = (Path(run["path"]) / "logs" / "0-rank0.out").read_text()
        assert printed.count("OF_MINE=kept") == 2
        assert not [name for name in LOGIN_VARIABLES if f"{name}=" in printed]
    written = [path for path in hpcml.home.rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_what_holds_a_login_is_named() -> None:
    assert "NGC_API_KEY" in LOGIN_VARIABLES
    assert {"APPTAINER_DOCKER_PASSWORD", "SINGULARITY_DOCKER_USERNAME"} <= set(LOGIN_VARIABLES)
    assert without_login({"HOME": "/h", **dict.fromkeys(LOGIN_VARIABLES, "x")}) == {"HOME": "/h"}
