"""What an answer leaves out is said, whoever asks and in whatever form: in one line, with the path and the remedy."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import hpcml
from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.store.building import Journal, make_run_dir

UIDS = [f"20260528-202640-{name}" for name in ("aaaaaa", "bbbbbb", "cccccc")]
BAD_DATE = '"submitted_at": "yesterday"'


def completed(root: Path, uid: str) -> RunDir:
    run_dir = make_run_dir(root, uid, seed=UIDS.index(uid))
    agent = Journal(run_dir, writer="agent", attempt=0)
    agent.event("attempt_started", 0.0)
    Journal(run_dir, attempt=0).metrics(1, 0.5, val_accuracy=0.9, loss=0.25)
    agent.event("attempt_ended", 1.0, state="COMPLETED", exit_code=0, wall_s=1.0)
    return run_dir


@pytest.fixture
def run_dirs(hpcml: Hpcml) -> list[RunDir]:
    return [completed(hpcml.home / "runs", uid) for uid in UIDS]


def with_bad_date(run_dir: RunDir) -> None:
    text = run_dir.manifest.read_text()
    run_dir.manifest.write_text(text.replace('"submitted_at": "2026-05-28T20:26:40+00:00"', BAD_DATE))


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["runs"],
            ["runs", "--json"],
            ["runs", "--csv"],
            ["status"],
            ["show", UIDS[0]],
            ["best"],
            ["query", "SELECT 1"],
        ),
        *(
            ["curves", UIDS[0], "--metric", "loss"],
            ["export", "--to", "csv", "-o", "out"],
            ["report", "-o", "out.html"],
        ),
        *(["diff", UIDS[0], UIDS[1]], ["compare", "--by", "seed"], ["scaling"], ["peak"], ["query", "SELECT 1"]),
    ],
)
def test_every_answer_says_what_it_leaves_out(hpcml: Hpcml, run_dirs: list[RunDir], words: list[str]) -> None:
    run_dirs[2].manifest.write_text("{")

    lines = [line for line in hpcml(*words).stderr.splitlines() if "not read" in line]

    (line,) = lines
    assert line.startswith(f"hpcml: warning: not read for this answer: {run_dirs[2].manifest} is damaged: Expecting")
    assert line.endswith("(put it right, or remove the run's folder)")


@pytest.mark.parametrize("how", ["{", None, "no link", "journal"])
def test_a_run_that_was_read_and_is_damaged_gives_the_answers_of_a_store_made_anew(
    hpcml: Hpcml, run_dirs: list[RunDir], how: str | None, tmp_path: Path
) -> None:
    whole = hpcml("runs", "--csv").stdout
    file = run_dirs[2].journals if how == "journal" else run_dirs[2].manifest
    file.rename(aside := tmp_path / "aside")
    if how == "no link":
        file.symlink_to("nowhere")
    elif how is not None:
        file.write_text(how)

    before = [(done.stdout, done.stderr, done.returncode) for done in map(hpcml, ("runs", "status", "sync"))]
    for part in hpcml.home.glob("store.db*"):
        part.unlink()
    after = [(done.stdout, done.stderr, done.returncode) for done in map(hpcml, ("runs", "status", "sync"))]
    checked = hpcml("store", "check")

    assert before == after
    for _, told, _ in after:
        assert str(file) in told
    assert [code for _, _, code in after] == [0, 0, 1]
    assert checked.returncode == 1
    assert str(file) in checked.stdout
    assert "1 run cannot be read: put right what is damaged, or remove the run's folder" in checked.stdout
    assert "delete it" not in checked.stdout
    file.unlink(missing_ok=True)
    aside.rename(file)
    assert hpcml("runs", "--csv").stdout == whole
    assert (hpcml("sync").returncode, hpcml("store", "check").returncode) == (0, 0)


def test_a_directory_that_says_that_it_is_another_run_is_no_more_what_it_was(
    hpcml: Hpcml, run_dirs: list[RunDir]
) -> None:
    hpcml("runs")
    run_dirs[2].manifest.write_text(run_dirs[2].manifest.read_text().replace(UIDS[2], UIDS[2].replace("c", "d")))

    before = [run["uid"] for run in hpcml.runs()]
    for part in hpcml.home.glob("store.db*"):
        part.unlink()

    assert before == [run["uid"] for run in hpcml.runs()] == [*UIDS[:2], UIDS[2].replace("c", "d")]


def test_what_was_read_stands_while_the_file_system_gives_no_answer(hpcml: Hpcml, run_dirs: list[RunDir]) -> None:
    before = hpcml("runs", "--csv").stdout
    run_dirs[2].manifest.unlink()
    run_dirs[2].manifest.symlink_to("/proc/self/mem")  # whose first byte nobody can read

    answer = hpcml("runs", "--csv")

    assert answer.stdout == before
    assert "run.json cannot be read: Input/output error; what was read of it before stands (put" in answer.stderr


def test_a_copy_stands_in_for_a_run_that_is_damaged(hpcml: Hpcml, run_dirs: list[RunDir], tmp_path: Path) -> None:
    copy = tmp_path / "copies" / UIDS[2]
    shutil.copytree(run_dirs[2].path, copy)
    hpcml("ingest", str(copy.parent))
    run_dirs[2].manifest.write_text("{")

    (found,) = (run for run in hpcml.runs() if run["uid"] == UIDS[2])

    assert found["path"] == str(copy)


@pytest.mark.parametrize("how", ["gone", "folder", "pipe", "nowhere", "empty", "date", "deep", "seed", "uid"])
def test_a_run_whose_manifest_cannot_be_read_ends_no_command(hpcml: Hpcml, run_dirs: list[RunDir], how: str) -> None:
    manifest = run_dirs[2].manifest
    text = manifest.read_text()
    manifest.unlink()
    if how == "folder":
        manifest.mkdir()
    elif how == "pipe":
        os.mkfifo(manifest)
    elif how == "nowhere":
        manifest.symlink_to("nowhere")
    elif how != "gone":
        texts = {"empty": "", "deep": "[" * 100_000, "seed": text.replace('"seed": 2', f'"seed": {10**30}')}
        manifest.write_text({**texts, "uid": text.replace(UIDS[2], "\\ud800"), "date": text}[how])
    if how == "date":
        with_bad_date(run_dirs[2])

    done = hpcml("runs", "--json")

    assert [run["uid"] for run in json.loads(done.stdout)] == UIDS[:2]
    assert str(manifest) in said_in_one_line(done)
    assert hpcml("status").returncode == 0


@pytest.mark.parametrize("command", ["show", "logs", "retry -y", "rm -y", "cancel -y", "wait", "diff aaaaaa"])
def test_a_run_that_is_asked_for_and_cannot_be_read_is_not_said_to_be_absent(
    hpcml: Hpcml, run_dirs: list[RunDir], command: str
) -> None:
    for run_dir in run_dirs[1:]:
        run_dir.manifest.write_text("{")

    done = hpcml(*command.split(), UIDS[2][-6:])

    assert done.returncode == 2
    assert f"hpcml: run {UIDS[2]} cannot be read: {run_dirs[2].manifest} is damaged: " in done.stderr
    assert "no run is called" not in done.stderr


def test_of_many_the_first_is_named_and_sync_lists_all(hpcml: Hpcml, run_dirs: list[RunDir]) -> None:
    for run_dir in run_dirs:
        run_dir.manifest.write_text("")

    assert said_in_one_line(hpcml("runs", "--csv")).endswith("; and 2 more: hpcml sync lists them")
    listed = [line for line in hpcml("sync").stderr.splitlines() if line.startswith("hpcml: ")]
    assert len([line for line in listed if "run.json is damaged" in line]) == 3
    assert not [line for line in listed if "not read for this answer" in line]


def test_the_python_api_says_it_in_its_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dirs = [completed(tmp_path / "runs", uid) for uid in UIDS]
    run_dirs[0].manifest.unlink()

    found = hpcml.open_store(home=tmp_path).runs()

    assert [run.uid for run in found] == UIDS[1:]
    assert f"not read for this answer: {run_dirs[0].manifest} is gone" in caplog.text


def test_a_journal_of_nothing_but_a_hole_costs_no_time_and_is_told(hpcml: Hpcml, run_dirs: list[RunDir]) -> None:
    (hole, behind, between) = (run_dirs[at].journals / name for at, name in enumerate(("0-x-1-rank9.jsonl",) * 3))
    hole.touch()
    os.truncate(hole, 20 << 30)
    written = (run_dirs[1].journals / "0-node7-rank0.jsonl").read_bytes()
    behind.write_bytes(written.replace(b"/0-node7-rank0", b"/0-node7-rank9"))
    os.truncate(behind, 20 << 30)
    lines = written.replace(UIDS[1].encode(), UIDS[2].encode()).splitlines(keepends=True)
    between.write_bytes(lines[0])
    with between.open("r+b") as file:
        file.seek(20 << 30)
        file.write(b"torn\n" + lines[1].replace(b'"i": 1', b'"i": 7'))

    done = hpcml("runs", "--json", timeout_s=300)
    again = hpcml("logs", UIDS[0])

    first, second, third = json.loads(done.stdout)
    assert [run["metrics"]["loss"]["last_step"] for run in (first, second, third)] == [1, 1, 7]
    assert (third["bad_lines"], third["incomplete"] is not None) == (1, True)
    assert "not read for this answer" in done.stderr
    assert "not read" in again.stderr
    told = hpcml("sync").stderr
    assert f"{hole}: its last 21,475 MB hold no line" in told
    assert f"{behind}: its last 21,475 MB hold no line and are not read" in told


def test_logs_follow_no_link_out_and_wait_for_no_pipe(hpcml: Hpcml, run_dirs: list[RunDir], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the key\n")
    run_dirs[0].logs.mkdir()
    run_dirs[0].stdout(0, 0).symlink_to(secret)
    os.mkfifo(run_dirs[0].stderr(0, 0))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0-rank0.out").write_text("the key\n")
    run_dirs[1].logs.symlink_to(tmp_path / "elsewhere")
    run_dirs[2].logs.mkdir()
    (run_dirs[2].logs / "real").write_text("printed\n")
    run_dirs[2].stdout(0, 0).symlink_to("real")

    out, err, folder, inside = (
        hpcml("logs", UIDS[0]),
        hpcml("logs", "--err", UIDS[0]),
        hpcml("logs", UIDS[1]),
        hpcml("logs", UIDS[2]),
    )

    for done in (out, folder):
        assert (done.returncode, done.stdout) == (2, "")
        assert "is a link out of" in said_in_one_line(done)
    assert "is no regular file: it is not shown" in said_in_one_line(err)
    assert inside.stdout == "printed\n"
