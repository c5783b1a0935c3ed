"""Tags and notes: kept with the run, whatever becomes of the store, and without a say in how the run went."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.layout import RunDir
from tests.cli.command_line import HPCML, Hpcml, program, said_in_one_line
from tests.cli.test_run import SLEEPS, wait_for, wait_until_ended
from tests.cli.test_wait import submit
from tests.store.building import T0, Journal, make_run_dir


@pytest.fixture
def recorded(hpcml: Hpcml) -> list[str]:
    """Return the ids of two runs that were recorded, the first tagged when it was submitted."""
    uids = [f"20260528-202640-{letter * 8}" for letter in "ab"]
    for uid, tags in zip(uids, (["first"], []), strict=True):
        run_dir = make_run_dir(hpcml.home / "runs", uid, tags=tags)
        agent = Journal(run_dir, writer="agent", attempt=0)
        agent.event("attempt_started")
        agent.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)
    return uids


def shown(hpcml: Hpcml, uid: str) -> dict[str, Any]:
    done = hpcml("show", uid, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("tag", [" odd", "x" * 250])
def test_a_tag_that_a_run_was_given_otherwise_can_be_taken_away(tag: str, hpcml: Hpcml) -> None:
    uid = "20260528-202640-aaaaaaaa"
    run_dir = make_run_dir(hpcml.home / "runs", uid, tags=[tag, "paper"])
    Journal(run_dir, writer="agent").event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)

    done = hpcml("tag", uid, f"-{tag}")

    assert (done.returncode, done.stdout) == (0, f"{uid}  paper\n"), done.stderr


def without_the_store(hpcml: Hpcml) -> None:
    for file in hpcml.home.glob("store.db*"):
        file.unlink()


def test_tags_come_and_go_and_outlive_the_store(hpcml: Hpcml, recorded: list[str]) -> None:
    one, other = recorded

    done = hpcml("tag", one, other, "+paper", "+draft")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{one}  first, paper, draft", f"{other}  paper, draft"]
    assert hpcml("tag", one, "-draft", "-first", "+final").stdout == f"{one}  paper, final\n"

    before = [shown(hpcml, uid) for uid in recorded]
    without_the_store(hpcml)
    assert hpcml("sync").returncode == 0
    assert [shown(hpcml, uid) for uid in recorded] == before
    assert [run["tags"] for run in hpcml.runs()] == [["paper", "final"], ["paper", "draft"]]
    assert [run["uid"] for run in json.loads(hpcml("runs", "--where", "tag=draft", "--json").stdout)] == [other]


def test_what_changes_nothing_writes_nothing(hpcml: Hpcml, recorded: list[str]) -> None:
    journals = hpcml.home / "runs" / "default" / recorded[0] / "journal"
    before = sorted(journals.iterdir())

    done = hpcml("tag", recorded[0], "+first", "-never")

    assert done.stdout == f"{recorded[0]}  first\n"
    assert sorted(journals.iterdir()) == before


def test_a_selection_is_tagged_as_a_whole(hpcml: Hpcml, recorded: list[str]) -> None:
    done = hpcml("tag", "--where", "tag=first", "+half", "--help")
    assert "Usage" in done.stdout

    done = hpcml("tag", "--where", "tag=first", "-hot", "+half")

    assert done.stdout == f"{recorded[0]}  first, half\n"
    assert "no run matches" in hpcml("tag", "--where", "tag=half", "--state", "FAILED", "+x").stderr


def test_notes_have_an_author_and_a_time_and_outlive_the_store(hpcml: Hpcml, recorded: list[str]) -> None:
    texts = ["seed of figure 3", "-5 % without warm-up", "<b>'); DROP TABLE run; --\n\x1b[31m"]

    said = [hpcml("tag", recorded[0], "--note", each).stdout for each in texts]

    assert said == [f"{recorded[0]}  {count}\n" for count in ("1 note", "2 notes", "3 notes")]
    notes = shown(hpcml, recorded[0])["notes"]
    assert [note["text"] for note in notes] == texts
    assert all(note["at"] > T0 and note["author"] for note in notes)
    without_the_store(hpcml)
    hpcml("sync")
    assert shown(hpcml, recorded[0])["notes"] == notes
    page = hpcml("show", recorded[0]).stdout
    assert "seed of figure 3" in page
    assert "\x1b[31m" not in page
    assert shown(hpcml, recorded[1])["notes"] == []


def test_what_people_say_changes_nothing_of_how_a_run_went(hpcml: Hpcml, recorded: list[str]) -> None:
    tried_twice = RunDir(hpcml.home / "runs" / "default" / recorded[0])
    second = Journal(tried_twice, writer="agent", attempt=1, t0=T0 + 60)
    second.event("attempt_started")
    second.event("attempt_ended", 10.0, state="FAILED", exit_code=3, wall_s=10.0)
    waiting = make_run_dir(hpcml.home / "runs", "20991121-202640-cccccccc")
    before = {uid: shown(hpcml, uid) for uid in (*recorded, waiting.uid)}

    for uid in before:
        hpcml("tag", uid, "+seen")
        hpcml("tag", uid, "--note", "seen, too")

    for uid, was in before.items():
        now = shown(hpcml, uid)
        changed = {key for key in now if now[key] != was[key]}
        assert changed == {"tags", "notes", "events"}, uid
        assert [event for event in now["events"] if event["writer"] != "user"] == was["events"]


def test_a_run_that_goes_on_is_tagged_and_ends_as_it_would_have(hpcml: Hpcml) -> None:
    (uid,) = submit(hpcml, program(SLEEPS))
    wait_for(hpcml.cwd / "started")

    assert hpcml("tag", uid, "+live").returncode == 0

    assert [(run["state"], run["tags"]) for run in hpcml.runs()] == [("RUNNING", ["live"])]
    hpcml("cancel", uid, "-y")
    wait_until_ended(hpcml, 1)
    assert [(run["state"], run["tags"], run["attempt"]) for run in hpcml.runs()] == [("CANCELLED", ["live"], 0)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tag", "aaaaaaaa"], "what to change"),
        (["tag", "+paper"], "which runs"),
        (["tag", "aaaaaaaa", "+"], "a tag has a name"),
        (["tag", "aaaaaaaa", "+two\nlines"], "is no tag"),
        (["tag", "aaaaaaaa", "+" + "x" * 201], "is no tag"),
        (["tag", "nosuchrun", "+paper"], "nosuchrun"),
        (["tag", "nosuchrun", "--note", "x"], "nosuchrun"),
        (["tag", "aaaaaaaa", "--note", " "], "a note says something"),
        (["tag", "aaaaaaaa", "--note", "x" * 70_000], "65536 characters at most"),
    ],
)
@pytest.mark.usefixtures("recorded")
def test_a_mistake_is_one_line_and_changes_nothing(hpcml: Hpcml, words: list[str], says: str) -> None:
    before = hpcml.runs()

    done = hpcml(*words)

    assert done.returncode == 2
    assert says in said_in_one_line(done)
    assert hpcml.runs() == before


def test_one_run_that_cannot_be_written_to_refuses_all(hpcml: Hpcml, recorded: list[str]) -> None:
    one, other = (hpcml.home / "runs" / "default" / uid for uid in recorded)
    hpcml("runs")
    shutil.rmtree(other)

    gone = hpcml("tag", one.name, other.name, "+paper")

    assert gone.returncode == 2
    assert f"{other} is gone (hpcml rm {other.name} forgets it)" in said_in_one_line(gone)
    assert hpcml("show", one.name, "--json").stdout.count('"paper"') == 0


def test_the_run_of_somebody_else_is_left_alone(hpcml: Hpcml, recorded: list[str]) -> None:
    run_dir = hpcml.home / "runs" / "default" / recorded[0]
    if os.geteuid() != 0:
        pytest.skip("only root can give a run to somebody else")
    os.chown(run_dir, 65534, 65534)

    for words in (["tag", recorded[0], "+mine"], ["tag", recorded[0], "--note", "mine"]):
        done = hpcml(*words)
        assert done.returncode == 2
        assert "belongs to somebody else" in said_in_one_line(done)

    assert not list(Path(run_dir / "journal").glob("*user*"))


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_run_on_a_file_system_that_is_read_only_is_one_line(hpcml: Hpcml, recorded: list[str]) -> None:
    run_dir = hpcml.home / "runs" / "default" / recorded[0]
    words = ["unshare", "-m", "sh", "-c", READ_ONLY, str(run_dir), *HPCML, "tag", recorded[0], "--note", "x"]

    done = subprocess.run(words, env=hpcml.environ, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 2
    assert f"{run_dir}/journal is read-only" in said_in_one_line(done)
    assert hpcml("tag", recorded[0], "--note", "x").returncode == 0


def test_many_at_once_lose_no_word(hpcml: Hpcml, recorded: list[str]) -> None:
    words = [("tag", recorded[0], f"+tag{number}") for number in range(4)]
    words += [("tag", recorded[0], "--note", f"note {number}") for number in range(4)]

    at_work = [hpcml.start(*each) for each in words]
    said = [process.communicate(timeout=300)[1] for process in at_work]

    assert [process.returncode for process in at_work] == [0] * len(words), said
    now = shown(hpcml, recorded[0])
    assert sorted(now["tags"]) == ["first", *(f"tag{number}" for number in range(4))]
    assert sorted(note["text"] for note in now["notes"]) == [f"note {number}" for number in range(4)]
