"""What a killed removal leaves, finished; and what people say of a run is no sign of its life."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml.commands.collect import collect, opened
from hpcml.commands.rm import Copy, delete_tree, find_unused, finish_removals, plan_removal, remove, remove_unused
from hpcml.commands.selection import Selection
from hpcml.commands.submit.submission import Phase, RecordedBatch, Submission, open_submission, this_host
from hpcml.commands.sync import adopt
from hpcml.commands.tag import tag
from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.runs.layout import RunDir, is_by_user
from hpcml.store.database import Database
from hpcml.store.query import find_runs, get_run
from hpcml.store.rows import forget_run
from tests.store.building import Journal, make_run_dir

UID = "20260528-202640-aaaaaaaa"
OTHER = "20260528-202640-bbbbbbbb"
SLURM = Cluster(name="site", scheduler=SchedulerName.slurm)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(home=tmp_path / "home", store_url=str(tmp_path / "home" / "store.db"))


@pytest.fixture
def store(places: Places) -> Iterator[Database]:
    """A store that knows two runs."""
    for uid in (UID, OTHER):
        ended(places.runs, uid)
    with opened(places) as store:
        collect(store, places)
        yield store


def ended(root: Path, uid: str) -> RunDir:
    run_dir = make_run_dir(root, uid)
    agent = Journal(run_dir, writer="agent")
    agent.event("attempt_started")
    agent.event("attempt_ended", 10.0, state="COMPLETED")
    return run_dir


def known(store: Database) -> list[str]:
    return [record.uid for record in find_runs(store)]


@pytest.mark.parametrize("killed", ["after moving aside", "after forgetting", "while deleting"])
def test_a_removal_is_finished_from_wherever_it_got_to(store: Database, places: Places, killed: str) -> None:
    run_dir = RunDir(places.runs / "default" / UID)
    run_dir.path.rename(run_dir.being_removed)
    if killed != "after moving aside":
        forget_run(store, UID)
    if killed == "while deleting":
        (run_dir.being_removed / "run.json").unlink()
    collect(store, places)  # what is half removed is no run meanwhile

    assert finish_removals(places, store) == 1

    collect(store, places)
    assert known(store) == [OTHER]
    assert [path.name for path in (places.runs / "default").iterdir()] == [OTHER]
    assert finish_removals(places, store) == 0


def test_a_run_that_came_back_under_its_name_is_not_forgotten(store: Database, places: Places) -> None:
    run_dir = RunDir(places.runs / "default" / UID)
    shutil.copytree(run_dir.path, run_dir.being_removed)

    assert finish_removals(places, store) == 1

    assert known(store) == [UID, OTHER]
    assert run_dir.manifest.exists()


def test_what_begins_again_between_the_question_and_the_answer_stays(store: Database, places: Places) -> None:
    doomed = plan_removal(places, Selection(references=[UID, OTHER]))
    again = Journal(RunDir(places.runs / "default" / UID), writer="agent", attempt=2)
    again.event("attempt_started")

    done = {removed.uid: removed.trouble for removed in remove(places, doomed)}

    assert done == {UID: f"run {UID} has begun again (RUNNING)", OTHER: None}
    collect(store, places)
    assert known(store) == [UID]


@pytest.mark.usefixtures("store")
def test_runs_read_from_elsewhere_are_not_removed_one_by_one(places: Places, tmp_path: Path) -> None:
    copied = ended(tmp_path / "copied", "20260528-202640-cccccccc")
    adopt(places, [tmp_path / "copied"])

    for forget in (False, True):
        with pytest.raises(ConfigError, match=r"alone; nothing was removed|hpcml sync --forget") as refused:
            plan_removal(places, Selection(references=[copied.uid]), forget=forget)
        assert "\n" not in str(refused.value)

    assert copied.manifest.exists()


@pytest.mark.usefixtures("store")
def test_the_gone_are_not_those_of_a_disk_that_is_not_there(places: Places, tmp_path: Path) -> None:
    copied = ended(tmp_path / "disk", "20260528-202640-cccccccc")
    adopt(places, [tmp_path / "disk"])
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    shutil.rmtree(places.runs / "default" / UID)

    assert [item.record.uid for item in plan_removal(places, Selection(), gone=True)] == [UID]

    (tmp_path / "unmounted").rename(tmp_path / "disk")
    shutil.rmtree(copied.path)
    assert {item.record.uid for item in plan_removal(places, Selection(), gone=True)} == {UID, copied.uid}


def test_a_run_that_lies_behind_a_link_is_left_to_its_owner(store: Database, places: Places, tmp_path: Path) -> None:
    path = places.runs / "default" / UID
    path.rename(tmp_path / UID)
    path.symlink_to(tmp_path / UID)
    collect(store, places)

    with pytest.raises(ConfigError, match="nothing was removed"):
        plan_removal(places, Selection(references=[UID]))

    assert (tmp_path / UID / "run.json").exists()


def test_a_run_that_does_not_end_refuses_all_in_one_line(store: Database, places: Places) -> None:
    for letter in "cd":
        waiting = make_run_dir(places.runs, f"20260528-202640-{letter * 8}", cluster=SLURM)
        Journal(waiting, writer="launch", attempt=0).event("submitted", scheduler="slurm", job_id="4711")
    collect(store, places)

    with pytest.raises(ConfigError, match=r"has not ended \(PENDING\).*; 1 more must stay; nothing was removed"):
        plan_removal(places, Selection(experiment="default"))


@pytest.mark.usefixtures("store")
def test_a_run_that_is_being_retried_stays(places: Places) -> None:
    batch = RecordedBatch(token="s-0", packs=[[str(RunDir(places.runs / "default" / UID).retry_manifest(1))]])  # noqa: S106
    retry = Submission(submission="s", host=this_host(), batches=[batch], attempt=1)
    opened_intent = open_submission(places.open_submissions, retry, Phase.SUBMITTING)

    with pytest.raises(ConfigError, match="is being submitted again"):
        plan_removal(places, Selection(references=[UID]))

    assert len(plan_removal(places, Selection(references=[OTHER]))) == 1
    opened_intent.close()
    assert len(plan_removal(places, Selection(references=[UID]))) == 1


def as_ordinary_user(act: Callable[[], bool]) -> bool:
    """Return what *act* says in a process that is not root's."""
    child = os.fork()
    if child == 0:
        said = False
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            said = act()
        finally:
            os._exit(0 if said else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def of_anybody() -> Iterator[Path]:
    """A folder that every user can reach and write in."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_folders_that_their_owner_made_read_only_are_deleted(of_anybody: Path) -> None:
    def act() -> bool:
        inner = of_anybody / "tree" / "inner" / "innermost"
        inner.mkdir(parents=True)
        (inner / "file").write_text("")
        (of_anybody / "tree" / "link").symlink_to(of_anybody)
        for folder in (inner, inner.parent, inner.parent.parent):
            folder.chmod(0o000 if folder == inner else 0o500)
        return delete_tree(of_anybody / "tree") is None

    assert as_ordinary_user(act)
    assert list(of_anybody.iterdir()) == []
    assert delete_tree(of_anybody / "tree") is None  # somebody was faster


def test_what_a_link_leads_to_is_left_as_it_is(tmp_path: Path) -> None:
    theirs = tmp_path / "project"
    theirs.mkdir()
    theirs.chmod(0o755)
    (tmp_path / "run").symlink_to(theirs)

    assert "cannot be deleted" in (delete_tree(tmp_path / "run") or "")

    assert stat.S_IMODE(theirs.stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that another cannot delete")
def test_what_cannot_be_deleted_is_named(of_anybody: Path) -> None:
    (of_anybody / "tree" / "of_root").mkdir(parents=True)
    (of_anybody / "tree" / "of_root" / "file").write_text("")

    assert as_ordinary_user(
        lambda: (
            re.search(r"/tree cannot be deleted: .*file: Permission denied$", delete_tree(of_anybody / "tree") or "")
            is not None
        )
    )
    assert (of_anybody / "tree" / "of_root" / "file").exists()


def test_code_that_is_wanted_after_the_question_stays(places: Places) -> None:
    copy = places.code / ("0123456789abcdef")
    copy.mkdir(parents=True)
    os.utime(copy, (1, 1))
    assert find_unused(places) == [Copy(path=copy, size_bytes=0)]
    os.utime(copy)

    assert [trouble for _, trouble in remove_unused([Copy(path=copy, size_bytes=0)])] == [
        f"{copy} is wanted by a submission"
    ]

    assert [path.name for path in places.code.iterdir()] == [copy.name]


def test_code_that_a_run_elsewhere_has_stays(store: Database, places: Places, tmp_path: Path) -> None:
    names = [letter * 16 for letter in "abc"]
    for name in names:
        (places.code / name).mkdir(parents=True)
        os.utime(places.code / name, (1, 1))
    (places.runs / "default" / UID / "code").symlink_to(places.code / names[0])
    copied = ended(tmp_path / "copied", "20260528-202640-cccccccc")
    copied.client_path.symlink_to(places.code / names[1])
    adopt(places, [tmp_path / "copied"])

    assert [copy.path.name for copy in find_unused(places)] == [names[2]]
    assert [copy.path.name for copy in find_unused(places, without={UID})] == [names[0], names[2]]
    assert known(store) == [UID, OTHER, copied.uid]


@pytest.mark.parametrize("writer", ["user", "rank0"])
def test_a_tag_is_no_sign_of_life(places: Places, writer: str) -> None:
    run_dir = make_run_dir(places.runs, UID, cluster=SLURM)
    Journal(run_dir, writer="launch").event("submitted", scheduler="slurm", job_id="4711")
    Journal(run_dir, writer="agent").event("attempt_started", job_id="4711", hostname="node7", pid=1)
    rank0 = Journal(run_dir)
    for journal in run_dir.journal_files():
        os.utime(journal, (1, 1))
    if writer == "rank0":
        rank0.event("note")
    tag(places, Selection(references=[UID]), ["+odd"])

    with opened(places) as store:
        collect(store, places, lambda records: {record.uid: None for record in records})

        record = get_run(store, UID)
    assert record.tags == ("odd",)
    assert record.state is (State.LOST if writer == "user" else State.RUNNING)
    assert [is_by_user(path.name) for path in run_dir.journal_files()].count(True) == 1


def test_only_journals_of_people_are_known_as_such() -> None:
    people = ["0-node7-12-user.jsonl", "0-node7-12-user-1.jsonl"]
    others = ["0-a-user-12-agent.jsonl", "0-node7-12-rank0.jsonl", "0-node7-12-superuser.jsonl", "0-node7-12-user.txt"]

    assert [is_by_user(name) for name in [*people, *others]] == [True, True, *[False] * len(others)]
