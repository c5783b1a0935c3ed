"""Files of the user's that a run did not find, since its working directory is a copy without them."""

import time
from pathlib import Path

import pytest

from hpcml.commands.not_copied import not_copied
from hpcml.commands.submit.launch import Launched
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.schedulers.contract import Ticket
from tests.cli.command_line import Hpcml


@pytest.fixture
def project(hpcml: Hpcml) -> Path:
    """A folder without git, with a checkpoint of an earlier training, and one beside it."""
    for place in ("mine/checkpoints/base.pt", "mine/train.py", "other/words.txt"):
        (hpcml.cwd / place).parent.mkdir(parents=True, exist_ok=True)
        (hpcml.cwd / place).write_text("print('trains')")
    return hpcml.cwd / "mine"


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("cat checkpoints/base.pt", "{mine}/checkpoints/base.pt, which is yours: checkpoints/, a folder of outputs,"),
        ("cat checkpoints/base.pt | sort", "{mine}/checkpoints/base.pt, which is yours"),  # status 0
        ("cat ../other/words.txt", "{cwd}/other/words.txt, which is yours: a run starts in a copy of {mine} alone: "),
        ("cat $PWD/../other/words.txt", "or make one project of both (git init {cwd})"),
        ("echo Can not be loaded: could not find \\'checkpoints/base.pt\\'.; exit 1", "{mine}/checkpoints/base.pt"),
    ],
)
def test_a_file_that_is_no_part_of_the_copy_is_told_where_the_run_did_not_find_it(
    hpcml: Hpcml, project: Path, does: str, told: str
) -> None:
    done = hpcml("run", "workload.cwd=mine", "--", "bash", "-c", does)

    assert told.format(mine=project, cwd=hpcml.cwd) in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "does",
    [
        "cat nothing.txt; exit 1",  # the user has none either
        "echo No checkpoint checkpoints/base.pt was found: not found, begins anew",
        "rm checkpoints/base.pt; exit 0",
        "rm train.py; python train.py; exit 1",  # it was there, and the program itself removed it
        "ls checkpoints/ checkpoints; echo No such file or directory: checkpoints",  # it is there, and empty
        "cat ../../../../etc/hostname/nothing; exit 1",
    ],
)
def test_nothing_is_told_of_other_files(hpcml: Hpcml, project: Path, does: str) -> None:
    done = hpcml("run", "workload.cwd=mine", "--", "bash", "-c", does)

    assert project.exists()
    assert "did not find" not in done.stderr


def test_what_a_program_repeats_is_looked_for_once(hpcml: Hpcml, project: Path) -> None:
    for number in range(2000):
        (project / f"{number}.txt").write_text("")
    hpcml("run", "workload.cwd=mine", "--", "bash", "-c", "yes 'train.py: not found' | head -n 3000; exit 1")
    (run,) = hpcml.runs()
    run_dir = RunDir(Path(run["path"]))
    ticket = Ticket(scheduler="local", job_id=run["job_id"])
    launched = Launched(run_dir=run_dir, manifest=read_manifest(run_dir.manifest), overrides=(), ticket=ticket)

    begun_s = time.process_time()
    assert not_copied(launched, has_completed=False) is None
    assert time.process_time() - begun_s < 1  # it was three
