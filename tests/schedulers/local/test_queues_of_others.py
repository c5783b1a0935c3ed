"""What the queue of this machine finds in folders of its own that others have been in before."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml.codec import encode
from hpcml.errors import NotPrivateError
from hpcml.model.state import State
from hpcml.runs.layout import RunDir, queues_of
from hpcml.runs.state import read_fold
from hpcml.schedulers.local.jobs import QueuedBatch, QueuedJob, batch_files, new_file, write_batch
from hpcml.schedulers.local.queue import serve
from hpcml.schedulers.local.runtime import Pool, RuntimeFolder
from hpcml.schedulers.local.submitter import LocalSubmitter
from tests.runs.two_users import ADA, EVE, folder_of_the_group, needs_root

pytestmark = needs_root()
POOL = Pool(cores=1, gpus=[])


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder in which each of a group may do everything."""
    with folder_of_the_group() as folder:
        yield folder


def batch_in(home: Path, *scripts: Path) -> QueuedBatch:
    jobs = [
        QueuedJob(
            sources=[str(home / "runs" / "default" / name / "run.json")],
            command=["/bin/bash", str(script)],
            cores=1,
            gpus=0,
            dependency=None,
            begun={},
        )
        for name, script in zip(("uid", "other"), scripts, strict=False)
    ]
    return QueuedBatch(jobs=jobs, max_parallel=None, pool=POOL, runtime=str(home / "runtime"), environ={"PATH": "/bin"})


def leave(home: Path) -> Path:
    """Leave a batch whose first job writes "ada", and the second "other"; return its file."""
    runs = [home / "runs" / "default" / name for name in ("uid", "other")]
    for name in ("token", "queues"):
        (home / "submissions" / name).mkdir(parents=True)
    for run, word in zip(runs, ("ada", "other"), strict=True):
        run.mkdir(parents=True)
        (run / "run.json").touch()
        (run / "logs").mkdir()
        (run / "job.sh").write_text(f"touch {run}/logs/0-agent.log; echo {word} >> {home.parent}/executed")
    path = new_file(home / "submissions", "token")
    write_batch(path, batch_in(home, *(run / "job.sh" for run in runs)))
    return path


def serve_once(home: Path) -> None:
    """Be the queue of *home*, as it is when somebody has closed it."""
    runtime = RuntimeFolder(home / "runtime")
    runtime.make()
    runtime.add_home(home / "submissions")
    lock = runtime.try_lock()
    assert lock is not None
    serve(str(runtime.path), lock)


def theirs_instead(path: Path) -> None:
    home = path.parents[2]
    script = home.parent / "hers.sh"
    script.write_text(f"echo eve >> {home.parent}/executed")
    words = json.dumps(encode(batch_in(home, script)))
    path.unlink()
    path.write_text(words)
    path.chmod(0o644)


def their_script(path: Path) -> None:
    run = path.parents[2] / "runs" / "default" / "uid"
    (run / "job.sh").unlink()
    (run / "job.sh").write_text(f"echo eve >> {path.parents[3]}/executed")


def their_wish_to_start_it_again(path: Path) -> None:
    (path.parents[1] / "token" / "again-uid.json").write_text('["0-agent.log"]')


def exchanged(home: Path, exchange: Callable[[Path], None], mode: int = 0o700) -> Path:
    """Return the file of a batch of ADA's in whose home EVE has exchanged something, before it was closed."""
    path = ADA.does(leave, home)
    EVE.does(exchange, path)
    for place in (home, *home.rglob("*")):
        place.chmod(place.stat().st_mode & (0o7700 | mode)) if place.is_dir() else None
    return path


@pytest.mark.parametrize("mode", [0o770, 0o700])
def test_a_batch_that_somebody_exchanged_is_not_believed(project: Path, mode: int) -> None:
    exchanged(project / "home", theirs_instead, mode)

    ADA.does(serve_once, project / "home")

    assert not (project / "executed").exists()


@pytest.mark.parametrize(
    ("exchange", "file"), [(their_script, "job.sh"), (their_wish_to_start_it_again, "again-uid.json")]
)
def test_a_run_of_which_somebody_exchanged_something_fails_and_the_others_of_its_batch_run(
    project: Path, exchange: Callable[[Path], None], file: str
) -> None:
    exchanged(project / "home", exchange)

    ADA.does(serve_once, project / "home")

    assert (project / "executed").read_text() == "other\n"
    told = read_fold(RunDir(project / "home" / "runs" / "default" / "uid"))
    assert told.state is State.FAILED
    assert (told.reason or "").startswith("it was not started: ")
    assert f"{file} belongs to user {EVE.uid}: hpcml executes and believes only what is your own" in (told.reason or "")
    assert read_fold(RunDir(project / "home" / "runs" / "default" / "other")).decision is None


def start_again(home: Path) -> list[str]:
    submissions = home / "submissions"
    return list(
        LocalSubmitter(
            submissions=submissions, lock_dir=home / "runtime", pool=lambda: POOL, max_parallel=None
        ).start_again()
    )


def test_a_killed_queue_is_not_started_again_with_a_list_that_somebody_exchanged(project: Path) -> None:
    path = exchanged(project / "home", theirs_instead)
    theirs = path.read_text()

    [said] = ADA.does(start_again, project / "home")

    assert said.startswith("the local queue cannot start token: ")
    assert f"{path.name} belongs to user {EVE.uid}" in said
    assert path.read_text() == theirs
    assert not (project / "home" / "runtime").exists()


def test_the_folder_of_batches_lets_nobody_else_in(project: Path) -> None:
    path = new_file(project / "home" / "submissions", "token")
    ADA.does(write_batch, path, batch_in(project / "home"))

    assert stat.S_IMODE(queues_of(project / "home" / "submissions").stat().st_mode) & 0o777 == 0o700


def test_a_queue_that_nobody_touched_runs(project: Path) -> None:
    ADA.does(leave, project / "home")
    (project / "home").chmod(0o700)

    ADA.does(serve_once, project / "home")

    assert (project / "executed").read_text() == "ada\nother\n"
    assert batch_files(project / "home" / "submissions") == []


def test_the_runtime_folder_of_another_is_not_used(project: Path) -> None:
    EVE.does((project / "runtime").mkdir, 0o777, umask=0)

    with pytest.raises(NotPrivateError, match=f"belongs to user {EVE.uid}.*XDG_RUNTIME_DIR"):
        ADA.does(RuntimeFolder(project / "runtime").make)
    assert list((project / "runtime").iterdir()) == []
