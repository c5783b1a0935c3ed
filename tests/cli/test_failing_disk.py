"""A file system that answers with an error where nothing else than an answer is expected."""

from __future__ import annotations

import errno
import json
import subprocess
import textwrap
from pathlib import Path

import pytest

from hpcml.cli.main import _say
from tests.cli.command_line import HPCML, Hpcml
from tests.cluster.disk.building import build_failing_disk

LOOPS = "Too many levels of symbolic links (hpcml sync finishes what was begun, once that is put right)"


@pytest.mark.parametrize("words", ["status", "wait", "sync", "run --detach -- true"])
def test_what_the_file_system_refuses_is_one_line_with_the_place(hpcml: Hpcml, words: str) -> None:
    queues = hpcml.home / "submissions" / "queues"
    hpcml.home.mkdir(mode=0o700)
    queues.parent.mkdir(mode=0o700)
    queues.symlink_to("queues")

    done = hpcml(*words.split())

    assert (done.returncode, done.stderr) == (1, f"hpcml: {queues}: {LOOPS}\n")

    queues.unlink()
    assert hpcml("run", "--", "true").returncode == 0


def test_who_may_not_look_into_a_home_is_told_no_more_than_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert _say(PermissionError(errno.EACCES, "Permission denied", "/home/ada/submissions/queues")) == 1

    assert capsys.readouterr().err == "hpcml: /home/ada/submissions/queues: Permission denied\n"


@pytest.mark.parametrize("below", ["", "default"])
def test_runs_that_the_file_system_does_not_list_are_not_passed_over(hpcml: Hpcml, tmp_path: Path, below: str) -> None:
    hpcml("run", "--", "true")
    for path in hpcml.home.glob("store.db*"):
        path.unlink()
    folder = hpcml.home / "runs" / below
    library = build_failing_disk(tmp_path)
    environ = {**hpcml.environ, "LD_PRELOAD": str(library), "FAILS_OPENDIR": str(folder)}

    def without(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HPCML, *words], env=environ, cwd=hpcml.cwd, capture_output=True, text=True, timeout=300, check=False
        )

    done = without("runs", "--json")
    removed = without("rm", "--unused-code", "--yes")

    assert json.loads(done.stdout) == []
    assert done.stderr == f"hpcml: warning: not read for this answer: the runs in {folder}: Input/output error\n"
    assert removed.returncode == 1
    assert f"{folder}: Input/output error" in removed.stderr
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED"]


def test_over_a_quota_what_is_asked_ends_in_one_line_and_doctor_says_why(hpcml: Hpcml, tmp_path: Path) -> None:
    assert hpcml("run", "--", "true").returncode == 0
    for path in hpcml.home.glob("store.db*"):
        path.unlink()  # there is something to be read in
    over = {"LD_PRELOAD": str(build_failing_disk(tmp_path)), "FAILS_WRITE": str(hpcml.home)}

    answer = hpcml("runs", **over)
    examined = hpcml("doctor", "--json", **over)

    assert (answer.returncode, len(answer.stderr.splitlines())) == (2, 1), answer.stderr
    assert f"the store {hpcml.home / 'store.db'} cannot be " in answer.stderr
    assert examined.returncode == 1
    found = {entry["check"]: entry for entry in json.loads(examined.stdout)}
    assert f"nothing can be written to {hpcml.home} (Disk quota exceeded)" in found["HPCML_HOME"]["found"]
    assert [found[what]["verdict"] for what in ("HPCML_HOME", "preflight")] == ["fail", "fail"]
    assert not list(hpcml.home.glob(".probe*"))
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED"]


def test_a_tag_that_the_run_has_no_room_for_is_no_success(hpcml: Hpcml, tmp_path: Path) -> None:
    hpcml("run", "--", "true")
    (run,) = hpcml.runs()
    folder = hpcml.home / "runs" / "default" / run["uid"]

    done = hpcml("tag", run["uid"], "+paper", LD_PRELOAD=str(build_failing_disk(tmp_path)), FAILS_WRITE=str(folder))

    assert done.returncode == 1
    assert f"nothing could be written to {folder / 'journal'}: is the disk full?" in done.stderr


def test_a_run_whose_agent_could_not_begin_says_why(hpcml: Hpcml) -> None:
    code = """
        import os, pathlib
        here = pathlib.Path(os.environ["HPCML_RUN_DIR"])
        for other in here.parent.iterdir():
            if other != here: (other / "run.json").write_text("{")
    """
    (hpcml.cwd / "damage.py").write_text(textwrap.dedent(code))

    done = hpcml("run", "-m", "resources.array_parallelism=1", "--", "python3", "damage.py", "--lr", "1,2")

    assert done.returncode == 1
    assert "FAILED: it was not started: " in done.stderr
    assert "run.json is damaged: " in done.stderr
    assert "no reason known" not in done.stderr
