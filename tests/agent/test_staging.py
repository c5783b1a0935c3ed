"""The agent makes the working directory before the program starts, on one node or several, and clears it afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Staging
from tests.agent.node import ON_SLURM, MakeRun, agent, start_agent, told, wait_for

TWO_NODES = (*ON_SLURM, "strategy=ddp", "strategy.processes_per_node=1", "resources.nodes=2")
UIDS = [f"20261121-083015-222{letter * 5}" for letter in "abcdefgh"]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    (code / "part.py").write_text("x = 1")
    (code / "part.py").chmod(0o400)
    return code


def own(tmp_path: Path, code: Path, uid: str = UIDS[0], **more: object) -> dict[str, object]:
    """Return what of a plan gives the run a working directory of its own."""
    cwd = RunDir(tmp_path / "home" / "runs" / "default" / uid).work / "mine"
    return {"uid": uid, "cwd": str(cwd), "staging": Staging(code=str(code), project="mine", **more)}


def test_the_program_starts_in_its_own_copy_and_what_it_wrote_is_counted(
    make_run: MakeRun, tmp_path: Path, code: Path
) -> None:
    program = "import part, os; open('part.py', 'a').write('#'); open('model.pt', 'w').write('abc'); print(os.getcwd())"
    run_dir = make_run(program, **own(tmp_path, code))

    assert agent(str(run_dir.path)).returncode == 0

    assert run_dir.stdout(0, 0).read_text() == f"{run_dir.work}/mine\n"
    assert told(run_dir, "files_written") == [{"count": 2, "bytes": 9}]
    assert (code / "part.py").read_text() == "x = 1"
    assert sorted(path.name for path in (run_dir.work / "mine").iterdir()) == ["model.pt", "part.py"]


def test_a_run_whose_agent_was_killed_goes_on_in_its_folder(make_run: MakeRun, tmp_path: Path, code: Path) -> None:
    program = (
        "import part, os, time\nif not os.path.exists('ckpt'):\n"
        " open('ckpt', 'w').write(str(os.getpid())); time.sleep(600)"
    )
    run_dir = make_run(program, **own(tmp_path, code))
    first = start_agent(str(run_dir.path))
    wait_for((run_dir.work / "mine" / "ckpt").exists, "the program")

    first.kill()
    first.wait()
    assert agent(str(run_dir.path)).returncode == 0
    assert told(run_dir, "files_written") == [{"count": 1, "bytes": told(run_dir, "files_written")[0]["bytes"]}]
    assert [path.name for path in (run_dir.work / "mine").iterdir()] == ["ckpt"]


def test_other_nodes_wait_for_the_first_and_the_last_one_clears_up(
    make_run: MakeRun, tmp_path: Path, code: Path
) -> None:
    program = "import part, os; open('rank' + os.environ['RANK'], 'w').close()"
    run_dir = make_run(program, *TWO_NODES, **own(tmp_path, code))
    second = start_agent(str(run_dir.path), SLURM_NODEID="1", SLURM_JOB_ID="1")
    time.sleep(1)
    assert not run_dir.work.exists()

    assert agent(str(run_dir.path), SLURM_NODEID="0", SLURM_JOB_ID="1").returncode == 0

    assert second.wait(timeout=300) == 0
    assert told(run_dir, "files_written") == [{"count": 2, "bytes": 0}]
    assert sorted(path.name for path in (run_dir.work / "mine").iterdir()) == ["rank0", "rank1"]


def test_without_the_copy_of_its_code_no_program_starts(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("print('started')", **own(tmp_path, tmp_path / "gone"))

    assert agent(str(run_dir.path)).returncode == 1

    (ended,) = told(run_dir, "attempt_ended")
    assert ended["state"] == "FAILED"
    assert ended["reason"] == f"its working directory could not be made: {tmp_path}/gone: No such file or directory"
    assert not run_dir.stdout(0, 0).exists()


def test_a_change_of_shared_data_is_journalled(make_run: MakeRun, tmp_path: Path, code: Path) -> None:
    (tmp_path / "data").mkdir()
    run_dir = make_run("open('data/new', 'w').close()", **own(tmp_path, code, shared={"mine/data": f"{tmp_path}/data"}))

    agent(str(run_dir.path))

    assert told(run_dir, "shared_changed") == [{"paths": ["mine/data"]}]
    assert told(run_dir, "files_written") == [{"count": 0, "bytes": 0}]


def test_runs_at_once_read_what_they_wrote_themselves(make_run: MakeRun, tmp_path: Path, code: Path) -> None:
    (code / "model.pt").write_text("the user's own")
    (tmp_path / "signs").mkdir()
    program = f"""
import os, pathlib, time
own, signs = os.environ["HPCML_RUN_ID"], pathlib.Path({str(tmp_path / "signs")!r})
names = [pathlib.Path(name) for name in ("model.pt", "part.py", "out/new/result.txt", "../beside")]
assert not names[2].exists() and names[0].read_text() == "the user's own"
for name in names:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.write_text(own)
(signs / own).touch()
while len(os.listdir(signs)) < 8: time.sleep(0.1)
assert [name.read_text() for name in names] == [own] * 4
"""
    runs = [make_run(program, "telemetry.enabled=false", **own(tmp_path, code, uid)) for uid in UIDS]

    agents = [start_agent(str(run_dir.path)) for run_dir in runs]

    assert [one.wait(timeout=500) for one in agents] == [0] * 8
    assert (code / "model.pt").read_text() == "the user's own"
    assert (code / "part.py").read_text() == "x = 1"
    for run_dir in runs:
        assert (run_dir.work / "mine" / "out" / "new" / "result.txt").read_text() == run_dir.uid
        assert told(run_dir, "files_written")[0]["count"] == 4


def test_the_programs_own_packages_come_before_what_is_installed(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "installed").mkdir()
    program = "import os; print(os.environ['PYTHONPATH'])"
    run_dir = make_run(program, f"workload.env.PYTHONPATH={tmp_path}/given", python_path=[f"{tmp_path}/src"])

    agent(str(run_dir.path), PYTHONPATH=os.fspath(tmp_path / "installed"))

    given = [str(run_dir.client_path), f"{tmp_path}/src", f"{tmp_path}/given"]
    assert run_dir.stdout(0, 0).read_text().strip().split(":") == given


def test_a_job_script_that_goes_to_where_it_was_submitted_goes_to_its_own_copy(
    make_run: MakeRun, tmp_path: Path, code: Path
) -> None:
    program = "import os; os.chdir(os.environ['PBS_O_WORKDIR']); open('out.csv', 'w').close()"
    run_dir = make_run(program, **own(tmp_path, code))

    assert agent(str(run_dir.path), PBS_O_WORKDIR=str(tmp_path)).returncode == 0

    assert (run_dir.work / "mine" / "out.csv").exists()
