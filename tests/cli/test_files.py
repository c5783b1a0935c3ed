"""What programs of one's own write: nobody else sees it, it is told at the end, listed, and found by a retry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, said_in_one_line

# As unmodified programs do: resume from ./ckpt if there is one, save the best model and load it again at the end.
RESUMES = """
import os, sys, time
begin = open('ckpt').read() if os.path.exists('ckpt') else 'nothing'
old = open('model.pt').read()
open('ckpt', 'w').write(sys.argv[1])
open('model.pt', 'w').write(sys.argv[1])
time.sleep(1)
os.makedirs('saved/best', exist_ok=True)
open('saved/best/weights', 'w').write('w' * 2000)
print(f"from {begin}, model {old}, at the end {open('model.pt').read()}")
"""


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    (cwd / "train.py").write_text(RESUMES)
    (cwd / ".gitignore").write_text("model.pt\n")
    (cwd / "model.pt").write_text("yours")
    return Hpcml(environ=hpcml_environ, cwd=cwd)


def run_dirs(hpcml: Hpcml) -> list[RunDir]:
    return [RunDir(path) for path in sorted(hpcml.home.glob("runs/default/*"))]


@pytest.mark.parametrize("has_git", [True, False])
def test_two_arms_of_a_sweep_and_a_later_run_begin_where_the_user_left_it(hpcml: Hpcml, *, has_git: bool) -> None:
    if has_git:
        subprocess.run(["git", "init", "-q"], cwd=hpcml.cwd, check=True)
    command = f"workload.command='{sys.executable} train.py " + "${seed}'"
    done = hpcml("run", "-m", command, "seed=20,0", "resources.cpus_per_task=1")
    assert done.returncode == 0, done.stderr
    later = hpcml("run", command, "seed=3")
    assert later.returncode == 0, later.stderr

    printed = sorted(run_dir.stdout(0, 0).read_text() for run_dir in run_dirs(hpcml))
    assert printed == [f"from nothing, model yours, at the end {seed}\n" for seed in (0, 20, 3)]
    assert sorted(path.name for path in hpcml.cwd.iterdir() if path.name != ".git") == [
        *(".gitignore", "model.pt", "train.py"),
    ]
    assert (hpcml.cwd / "model.pt").read_text() == "yours"
    assert "2 runs wrote 6 files, 3.9 KiB: hpcml show --files " in done.stdout
    (last,) = (line for line in later.stdout.splitlines() if line.startswith("wrote"))
    assert last == f"wrote 3 files, 2.0 KiB: hpcml show --files {run_dirs(hpcml)[-1].uid}"


def test_the_files_of_a_run_are_listed_and_go_with_it(hpcml: Hpcml) -> None:
    hpcml("run", f"workload.command={sys.executable} train.py 7")
    (run_dir,) = run_dirs(hpcml)

    listed = hpcml("show", "--files", run_dir.uid)
    assert [line.split() for line in listed.stdout.splitlines()[1:-1]] == [
        ["project/ckpt", "1", "B", "new"],
        ["project/model.pt", "1", "B", "changed"],
        ["project/saved/best/weights", "2.0", "KiB", "new"],
    ]
    assert listed.stdout.splitlines()[-1] == f"wrote 3 files, 2.0 KiB, below {run_dir.work}"
    told = json.loads(hpcml("show", "--files", run_dir.uid, "--json").stdout)
    assert told["directory"] == str(run_dir.work)
    assert told["files"][0] == {"path": "project/ckpt", "size_bytes": 1, "is_new": True}
    assert f"wrote 3 files, 2.0 KiB: hpcml show --files {run_dir.uid}" in hpcml("show", run_dir.uid).stdout

    code = run_dir.code.readlink()
    assert hpcml("rm", run_dir.uid, "-y").returncode == 0
    assert not run_dir.path.exists()
    assert code.is_dir()


def test_a_retry_goes_on_from_its_own_files_with_the_code_of_its_submission(hpcml: Hpcml) -> None:
    (hpcml.cwd / "train.py").write_text(
        "import os, sys; found = os.path.exists('ckpt'); open('ckpt', 'a').write('x')\n"
        "print(open('ckpt').read()); sys.exit(0 if found else 3)"
    )
    hpcml("run", "-m", f"workload.command={sys.executable} train.py", "seed=1,2")
    first, second = run_dirs(hpcml)
    (hpcml.cwd / "train.py").write_text("raise SystemExit('edited')")

    assert hpcml("retry", first.uid, "--cause", "program", "-y").returncode == 0
    assert hpcml("wait", first.uid).returncode == 0

    assert first.stdout(1, 0).read_text() == "xx\n"
    assert (second.work / "project" / "ckpt").read_text() == "x"


def test_a_run_that_is_queued_again_goes_on_from_its_own_files(hpcml: Hpcml) -> None:
    (hpcml.cwd / "train.py").write_text(
        "import os, sys\nif os.path.exists('ckpt'): sys.exit(0)\nopen('ckpt', 'w').close(); sys.exit(75)"
    )

    done = hpcml("run", "-m", f"workload.command={sys.executable} train.py", "seed=1,2")

    assert done.returncode == 0, done.stderr
    assert {run["attempt"] for run in hpcml.runs()} == {1}


def test_runs_in_one_job_have_their_own_files(hpcml: Hpcml) -> None:
    (hpcml.cwd / "train.py").write_text("import os; assert not os.path.exists('ckpt'); open('ckpt', 'w').close()")

    done = hpcml("run", "-m", f"workload.command={sys.executable} train.py", "seed=1,2,3", "schedule.pack=all")

    assert done.returncode == 0, done.stderr
    assert all((run_dir.work / "project" / "ckpt").exists() for run_dir in run_dirs(hpcml))


def test_what_has_no_working_directory_of_its_own_is_said(hpcml: Hpcml) -> None:
    hpcml("run", "workload.command=true", "schedule.snapshot=none")

    done = hpcml("show", "--files", run_dirs(hpcml)[0].uid)

    assert done.returncode == 2
    assert "has no working directory of its own: a recipe and schedule.snapshot=none" in said_in_one_line(done)


def test_data_of_the_users_own_that_runs_overwrite_is_named_at_the_end(hpcml: Hpcml) -> None:
    (hpcml.cwd / "data").mkdir()
    code = "import sys; open('data/' + sys.argv[1], 'w').write('1')"

    done = hpcml("run", "-m", "--", sys.executable, "-c", code, "a,b")
    harmless = hpcml("run", "--", sys.executable, "-c", "import os; os.listdir('data')")

    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "changed while" in line]
    (line,) = lines
    assert line.startswith(f"hpcml: warning: {hpcml.cwd / 'data'} changed while ")
    uid = line.rpartition(" ")[2]
    assert "project/data (shared by runs, and changed while this one ran)" in hpcml("show", uid).stdout
    assert "changed while" not in harmless.stderr
