import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml, program, said_in_one_line
from tests.cli.test_doctor import verdicts

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, or become somebody else")


@pytest.fixture
def done_run(hpcml: Hpcml) -> str:
    """The uid of a run that completed."""
    done = hpcml("run", program("pass"))
    assert done.returncode == 0, done.stderr
    (record,) = hpcml.runs()
    return str(record["uid"])


def test_it_says_where_it_is_how_it_is_used_and_what_is_in_it(hpcml: Hpcml, done_run: str) -> None:
    assert done_run

    lines = hpcml("sync", "--check").stdout.splitlines()
    told = json.loads(hpcml("sync", "--check", "--json", HPCML_STORE_MODE="published").stdout)

    assert lines[0] == str(hpcml.home / "store.db")
    assert "direct: " in lines[1]
    assert "1 run, " in lines[2]
    assert set(told) == {"name", "used", "size_bytes", "runs", "points", "folders", "faults", "unreadable"}
    assert (told["name"], told["runs"]) == (lines[0], 1)
    assert "published: HPCML_STORE_MODE says so" in told["used"]


def test_a_published_store_serves_a_life_as_well_as_any_other(hpcml: Hpcml) -> None:
    with_mode = replace(hpcml, environ={**hpcml.environ, "HPCML_STORE_MODE": "published"})

    done = with_mode("run", "-m", program("pass"), "seed=1,2")

    assert done.returncode == 0, done.stderr
    assert [record["state"] for record in with_mode.runs()] == ["COMPLETED", "COMPLETED"]
    assert with_mode("sync").returncode == 0
    assert with_mode("sync", "--check").returncode == 0
    assert not list(hpcml.home.glob("store.db-*"))


@pytest.mark.parametrize("words", ["runs", "show @1", "sync --check", "sync"])
def test_garbage_in_place_of_the_own_store_is_answered_by_how_to_make_it_anew(
    hpcml: Hpcml, done_run: str, words: str
) -> None:
    store = hpcml.home / "store.db"
    store.write_text("garbage")

    refused = said_in_one_line(hpcml(*words.split()))
    elsewhere = said_in_one_line(hpcml(*words.split(), HPCML_STORE=__file__))

    assert store.read_text() == "garbage"
    command = f"mv {store} {store}.damaged"
    assert f"it was left as it is; {command} and hpcml sync make it anew from the run directories" in refused
    assert "left as it is; choose another path" in elsewhere
    subprocess.run(shlex.split(command), check=True)
    assert hpcml("sync").returncode == 0
    assert [record["uid"] for record in hpcml.runs()] == [done_run]


def test_check_finds_nothing_then_damage_and_the_way_out_works(hpcml: Hpcml, done_run: str) -> None:
    store = hpcml.home / "store.db"
    good = hpcml("sync", "--check")
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, f"nothing is wrong with {store}")
    before = hpcml("runs", "--json").stdout
    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    content = store.read_bytes()
    store.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))

    bad = hpcml("sync", "--check")
    refused = hpcml("runs")

    assert bad.returncode == 1
    assert "hpcml sync makes it anew" in bad.stdout.splitlines()[-1]
    assert refused.returncode == 2
    assert "hpcml sync --check" in said_in_one_line(refused)
    for file in hpcml.home.glob("store.db*"):
        file.unlink()
    assert hpcml("sync").returncode == 0
    assert hpcml("runs", "--json").stdout == before
    assert done_run in before


@pytest.mark.parametrize("words", [["runs"], ["sync"]])
def test_a_pipe_in_the_place_of_a_store_is_told_and_not_waited_for(hpcml: Hpcml, words: list[str]) -> None:
    hpcml.home.mkdir(mode=0o700)
    os.mkfifo(hpcml.home / "store.db")

    done = hpcml(*words, timeout_s=60)

    assert (done.returncode, "is no regular file" in said_in_one_line(done)) == (2, True)


def test_a_backup_is_named_and_replaces_nothing(hpcml: Hpcml, done_run: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"

    written = hpcml("sync", "--backup", str(copy))
    again = hpcml("sync", "--backup", str(copy))
    beside = hpcml("sync", "--backup")

    assert written.stdout.startswith(f"wrote {copy}: ")
    assert again.returncode == 2
    assert "is there already" in said_in_one_line(again)
    assert f"wrote {hpcml.home}/store.db.backup-" in beside.stdout
    assert [record["uid"] for record in json.loads(hpcml("--store", str(copy), "runs", "--json").stdout)] == [done_run]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@as_root
@pytest.mark.parametrize("mode", ["direct", "published"])
def test_a_colleagues_store_is_shown_as_it_was_and_nothing_else(
    hpcml: Hpcml, done_run: str, shared_folder: Path, mode: str
) -> None:
    theirs = shared_folder / "store.db"
    shutil.copyfile(hpcml.home / "store.db", theirs)
    assert hpcml("--store", str(theirs), "runs", HPCML_STORE_MODE=mode).returncode == 0
    theirs.chmod(0o644)
    before = theirs.read_bytes()
    subprocess.run(["mount", "--bind", str(shared_folder), str(shared_folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(shared_folder)], check=True)
        runs = hpcml("--store", str(theirs), "runs", "--json")
        shown = hpcml("--store", str(theirs), "show", done_run)
        refused = [hpcml("--store", str(theirs), *words) for words in (["cancel", done_run], ["sync"], ["status"])]
        doctor = verdicts(hpcml, HPCML_STORE=str(theirs))[1]["store"]
    finally:
        subprocess.run(["umount", "-l", str(shared_folder)], check=True)

    assert [record["uid"] for record in json.loads(runs.stdout)] == [done_run]
    assert said_in_one_line(runs) == (
        f"hpcml: warning: the store {theirs} is on a file system that is mounted read-only: "
        "it is shown as it was at its last ingest"
    )
    assert (shown.returncode, len(shown.stderr.splitlines())) == (0, 1)
    for done in refused:
        assert done.returncode == 2
        assert "is on a file system that is mounted read-only" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    assert doctor[0] == "warn"
    assert "read-only for you" in doctor[1]
    assert theirs.read_bytes() == before


@as_root
def test_a_submission_from_a_home_that_became_read_only_names_the_folder(
    hpcml: Hpcml, done_run: str, shared_folder: Path
) -> None:
    del done_run
    subprocess.run(["mount", "--bind", str(hpcml.home), str(hpcml.home)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(hpcml.home)], check=True)
        done = hpcml("--store", str(shared_folder / "store.db"), "run", "--detach", "--", "true")
    finally:
        subprocess.run(["umount", "-l", str(hpcml.home)], check=True)

    assert done.returncode == 2
    open_ones = hpcml.home / "submissions" / "open"
    assert f"hpcml: {open_ones}: Read-only file system: nothing can be submitted" in done.stderr


@as_root
def test_the_doctor_says_on_what_it_lies_and_how_it_is_used_there(hpcml: Hpcml, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "hpcml-test", str(tmp_path / "small")], check=True)
    try:
        found = verdicts(hpcml, HPCML_STORE=str(tmp_path / "small" / "store.db"))[1]["store"]
        forced = verdicts(hpcml, HPCML_STORE=str(tmp_path / "small" / "store.db"), HPCML_STORE_MODE="published")
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "small")], check=True)

    assert found[0] == "ok"
    assert "on tmpfs, direct: tmpfs is a file system of this machine (made at first use)" in found[1]
    assert "on tmpfs, published: HPCML_STORE_MODE says so" in forced[1]["store"][1]
    assert forced[1]["store"][0] == "ok"
