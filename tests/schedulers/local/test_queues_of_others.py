"""What the queue of this machine finds in folders of its own that others have been in before."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.codec import encode
from hpcml.errors import NotPrivateError
from hpcml.model.state import State
from hpcml.runs.layout import RunDir, queues_of
from hpcml.runs.liveness import ProcessIdentity
from hpcml.runs.lock import Lock, try_lock
from hpcml.runs.state import read_fold
from hpcml.schedulers.local.queue import LocalBatch, Queued, drain, write_batch
from hpcml.schedulers.local.slots import Need, Pool, claim
from hpcml.schedulers.local.submitter import LocalSubmitter
from tests.runs.two_users import ADA, EVE, folder_of_the_group, needs_root

pytestmark = needs_root()
POOL = Pool(cores=1, gpus=[])


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder in which each of a group may do everything."""
    with folder_of_the_group() as folder:
        yield folder


def batch_in(home: Path, *scripts: Path) -> LocalBatch:
    need = Need(cores=1, gpus=0)
    jobs = [Queued(sources=[str(script.with_name("run.json"))], script=str(script), need=need) for script in scripts]
    return LocalBatch(jobs=jobs, lock_dir=str(home / "locks"), pool=POOL, max_parallel=None)


def leave(home: Path, word: str) -> Path:
    """Leave a queue whose first job writes *word*, and the second "other"; return its folder."""
    runs, folder = [home / "runs" / "default" / name for name in ("uid", "other")], home / "submissions" / "token"
    folder.mkdir(parents=True)
    for run, said in zip(runs, (word, "other"), strict=True):
        run.mkdir(parents=True)
        (run / "run.json").touch()
        (run / "job.sh").write_text(f"echo {said} >> {home.parent}/executed")
    write_batch(folder, batch_in(home, *(run / "job.sh" for run in runs)))
    return folder


def leave_killed(home: Path) -> Path:
    """Leave a queue whose process is dead when this returns, being the one that calls this."""
    folder = leave(home, "ada")
    assert isinstance(try_lock(queues_of(folder.parent), folder.name), Lock)
    return folder


def started_again(home: Path) -> list[tuple[str, str]]:
    submitter = LocalSubmitter(
        submissions=home / "submissions", lock_dir=home / "locks", pool=lambda: POOL, max_parallel=None
    )
    return [(token, str(found)) for token, found in submitter.start_again()]


def theirs_instead(folder: Path) -> None:
    home = folder.parents[1]
    script = home.parent / "hers.sh"
    script.write_text(f"echo eve >> {home.parent}/executed")
    words = json.dumps(encode(batch_in(home, script)))
    (folder / "queue.json").unlink()
    (folder / "queue.json").write_text(words)
    (folder / "queue.json").chmod(0o644)


def their_script(folder: Path) -> None:
    run = folder.parents[1] / "runs" / "default" / "uid"
    (run / "job.sh").unlink()
    (run / "job.sh").write_text(f"echo eve >> {folder.parents[2]}/executed")


def their_word_of_a_start(folder: Path) -> None:
    words = {"agent": ProcessIdentity.of_this_process().as_details(), "begun": {}}
    (folder / "job-0.json").write_text(json.dumps(words))
    (folder / "job-0.json").chmod(0o644)


def exchanged(home: Path, exchange: object, mode: int) -> Path:
    """Return the folder of a queue of ADA's in which EVE has exchanged something, before it was closed."""
    assert callable(exchange)
    folder = ADA.does(leave, home, "ada")
    EVE.does(exchange, folder)
    for path in (home, *home.rglob("*")):
        path.chmod(path.stat().st_mode & (0o7700 | mode)) if path.is_dir() else None
    return folder


@pytest.mark.parametrize("mode", [0o770, 0o700])
def test_a_queue_that_somebody_exchanged_does_nothing(project: Path, mode: int) -> None:
    folder = exchanged(project / "home", theirs_instead, mode)

    with pytest.raises(NotPrivateError):
        ADA.does(drain, str(folder))
    assert not (project / "executed").exists()


@pytest.mark.parametrize(("exchange", "file"), [(their_script, "job.sh"), (their_word_of_a_start, "job-0.json")])
def test_a_run_of_which_somebody_exchanged_something_fails_and_the_others_of_its_queue_run(
    project: Path, exchange: object, file: str
) -> None:
    folder = exchanged(project / "home", exchange, 0o700)

    ADA.does(drain, str(folder))

    assert (project / "executed").read_text() == "other\n"
    told = read_fold(RunDir(project / "home" / "runs" / "default" / "uid"))
    assert told.state is State.FAILED
    assert (told.reason or "").startswith("it was not started: ")
    assert f"{file} belongs to user {EVE.uid}: hpcml executes and believes only what is your own" in (told.reason or "")
    assert read_fold(RunDir(project / "home" / "runs" / "default" / "other")).decision is None


def test_a_killed_queue_is_not_started_again_with_a_list_that_somebody_exchanged(project: Path) -> None:
    home = project / "home"
    folder = ADA.does(leave_killed, home)
    EVE.does(theirs_instead, folder)
    home.chmod(0o700)
    theirs = (folder / "queue.json").read_text()

    [(batch, why)] = ADA.does(started_again, home)

    assert batch == folder.name
    assert f"queue.json belongs to user {EVE.uid}" in why
    assert (folder / "queue.json").read_text() == theirs
    assert not (folder / "queue.log").exists()


def test_the_folder_of_the_queues_locks_lets_nobody_else_in(project: Path) -> None:
    folder = ADA.does(leave, project / "home", "ada")
    (project / "home").chmod(0o700)

    ADA.does(drain, str(folder))

    assert stat.S_IMODE(queues_of(folder.parent).stat().st_mode) & 0o777 == 0o700


def test_a_queue_that_nobody_touched_runs(project: Path) -> None:
    folder = ADA.does(leave, project / "home", "ada")
    (project / "home").chmod(0o700)

    ADA.does(drain, str(folder))

    assert (project / "executed").read_text() == "ada\nother\n"


def test_the_locks_of_another_are_not_used(project: Path) -> None:
    EVE.does((project / "locks").mkdir, 0o777, umask=0)

    with pytest.raises(NotPrivateError, match=f"belongs to user {EVE.uid}.*XDG_RUNTIME_DIR"):
        ADA.does(claim, Need(cores=1, gpus=0), POOL, project / "locks")
    assert list((project / "locks").iterdir()) == []
