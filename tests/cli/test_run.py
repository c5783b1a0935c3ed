import json
import os
import signal
import stat
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from hpcml.runs.journal import Event, read_journal
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from tests.cli.command_line import Hpcml, program, said_in_one_line

REPORTS = """
import hpcml_client
with hpcml_client.connect() as run:
    for step in range(20):
        run.metric("loss", 1 / (step + 1), step)
    run.metric("diverged", float("nan"), 0)
    run.note("done")
"""
SLEEPS = "import time; open('started', 'a').write('x'); time.sleep(60)"


def test_a_program_that_reports_is_recorded_whole(hpcml: Hpcml) -> None:
    done = hpcml("run", program(REPORTS), "name=first", "tags=[a]")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["exit_code"], run["name"], run["tags"]) == ("COMPLETED", 0, "first", ["a"])
    loss = run["metrics"]["loss"]
    assert (loss["n"], loss["first"], loss["last"], loss["last_step"]) == (20, 1.0, 0.05, 19)
    assert run["metrics"]["diverged"]["n_nonfinite"] == 1
    assert run["precision_effective"] is None


def test_the_run_directory_is_the_truth(hpcml: Hpcml) -> None:
    hpcml("run", program(REPORTS))
    (before,) = hpcml.runs()
    for file in hpcml.home.glob("store.db*"):
        file.unlink()

    assert hpcml.runs() == [before]


def test_a_run_directory_says_everything_and_is_private(hpcml: Hpcml) -> None:
    subprocess.run(["git", "init", "-q"], cwd=hpcml.cwd, check=True)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    (hpcml.cwd / "train.py").write_text("print('hello')\n")
    subprocess.run([*git, "add", "."], cwd=hpcml.cwd, check=True)
    subprocess.run([*git, "commit", "-qm", "x"], cwd=hpcml.cwd, check=True)
    (hpcml.cwd / "train.py").write_text("print('edited')\n")

    done = hpcml("run", f"workload.command={sys.executable} train.py", "seed=5")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    run_dir = RunDir(Path(run["path"]))
    origin = read_manifest(run_dir.manifest).provenance
    assert stat.S_IMODE(run_dir.path.stat().st_mode) == 0o700
    assert origin.command_line[1:] == ["run", f"workload.command={sys.executable} train.py", "seed=5"]
    assert origin.git_dirty is True
    assert origin.git_commit is not None
    assert len(origin.git_commit) == 40
    assert "+print('edited')" in run_dir.git_diff.read_text()
    assert "numpy" in origin.packages
    assert run_dir.stdout(0, 0).read_text() == "edited\n"


def test_a_run_can_be_started_again_by_hand(hpcml: Hpcml) -> None:
    hpcml("run", program(REPORTS))
    (run,) = hpcml.runs()
    argv = ["bash", str(RunDir(Path(run["path"])).script)]

    left = subprocess.run(argv, env=hpcml.environ, check=True, timeout=300, capture_output=True, text=True)
    assert f"run {run['uid']} is left alone: attempt 0 has COMPLETED" in left.stderr
    (same,) = hpcml.runs()
    assert (same["state"], same["attempt"]) == ("COMPLETED", 0)

    subprocess.run(argv, env={**hpcml.environ, "HPCML_RUN_AGAIN": "1"}, check=True, timeout=300)
    (again,) = hpcml.runs()
    assert (again["state"], again["attempt"]) == ("COMPLETED", 1)
    assert again["metrics"]["loss"]["n"] == 20


def test_a_sweep_runs_every_point_and_json_names_them(hpcml: Hpcml) -> None:
    done = hpcml("run", "-m", program("pass"), "seed=0,1", "precision=fp32,bf16", "--json")

    assert done.returncode == 0, done.stderr
    submitted = json.loads(done.stdout)
    assert len({entry["uid"] for entry in submitted}) == 4
    seeds = [word for entry in submitted for word in entry["overrides"] if word.startswith("seed=")]
    assert seeds == ["seed=0", "seed=0", "seed=1", "seed=1"]  # precisions take turns
    wait_until_ended(hpcml, 4)
    assert {run["state"] for run in hpcml.runs()} == {"COMPLETED"}


def wait_until_ended(hpcml: Hpcml, count: int, timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while sum(run["state"] not in ("PENDING", "RUNNING") for run in hpcml.runs()) < count:
        assert time.monotonic() < end, hpcml.runs()
        time.sleep(0.2)


def test_a_dry_run_shows_the_command_and_changes_nothing(hpcml: Hpcml) -> None:
    done = hpcml("run", "-n", "-m", "precision=fp32,tf32", "+cluster=karolina")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("train.py") == 1, "what the two have in common is said once"
    assert "unset NVIDIA_TF32_OVERRIDE" in done.stdout
    assert not hpcml.home.exists()
    assert list(hpcml.cwd.iterdir()) == []


def test_metrics_can_be_picked_from_what_a_program_prints(hpcml: Hpcml) -> None:
    rule = r'workload.metrics=[{pattern: "epoch (?P<step>[0-9]+) acc=(?P<value>[0-9.]+)", name: accuracy}]'

    done = hpcml("run", program("for i in range(5): print(f'epoch {i} acc={i / 10}')"), rule)

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert run["metrics"]["accuracy"]["n"] == 5
    assert run["metrics"]["accuracy"]["last"] == 0.4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["precision=tf32", "precision.numerics=native"], "precision=tf32 is refused"),
        (["presicion=fp32"], "did you mean precision"),
        (["data=mnist", "data.path=/no/such/place"], "data.path=/no/such/place does not exist"),
        (["workload.command=no-such-program --x"], "no program 'no-such-program'"),
        (["workload.command='unclosed"], "workload.command"),
        (["workload.command="], "workload.command"),
        (["+workload.env.NVIDIA_TF32_OVERRIDE=1"], "would undo precision=fp32"),
        (["workload.cwd=nowhere", "workload.command=true"], "workload.cwd"),
        (["model.recipe=alchemy"], "model.recipe=alchemy"),
        (["resources.cpus_per_task=100000"], "resources.cpus_per_task=100000"),
        (["resources.gpus_per_node=1", "strategy=single", "cluster.gpus_per_node=null"], "gpus_per_node=1"),
        (["-m", "precision=fp32,tf32", "precision.numerics=native"], "precision=tf32 is refused"),
    ],
)
def test_a_mistake_is_one_line_with_exit_code_2_and_leaves_nothing(hpcml: Hpcml, words: list[str], says: str) -> None:
    done = hpcml("run", *words, CUDA_VISIBLE_DEVICES="")

    assert done.returncode == 2
    assert says in said_in_one_line(done)
    assert not hpcml.home.exists()


def test_a_machine_without_the_scheduler_is_said_before_anything_is_written(hpcml: Hpcml, tmp_path: Path) -> None:
    done = hpcml("run", "+cluster=salomon", "resources.account=DD-1-1", PATH=str(tmp_path))

    assert done.returncode == 3
    assert "not on PATH here: qsub, qstat, qdel, qselect" in done.stderr.splitlines()[-1]
    assert hpcml.runs() == []


def test_a_site_that_charges_an_account_gets_none_silently(hpcml: Hpcml) -> None:
    done = hpcml("run", "+cluster=salomon")

    assert done.returncode == 2
    assert "HPCML_ACCOUNT" in said_in_one_line(done)
    dry = hpcml("run", "+cluster=salomon", "--dry-run")
    assert "--account" not in dry.stdout or "YOUR-ACCOUNT" in dry.stdout
    assert "warning: resources.account=YOUR-ACCOUNT stands for" in dry.stderr


def test_a_home_that_cannot_be_written_is_one_line(hpcml: Hpcml, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    done = hpcml("run", program("pass"), HPCML_HOME=str(tmp_path / "file" / "home"))

    assert done.returncode == 2
    assert str(tmp_path / "file") in said_in_one_line(done)


@pytest.mark.parametrize("kind", ["missing folder", "not a database"])
def test_a_store_that_cannot_be_used_is_said_before_anything_runs(hpcml: Hpcml, tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store.db"
    if kind == "missing folder":
        store = tmp_path / "nowhere" / "store.db"
    else:
        store.write_text("these are my notes, not a database\n" * 100)

    done = hpcml("run", program("open('ran', 'w')"), HPCML_STORE=str(store))

    assert done.returncode == 2
    assert str(store if store.parent.exists() else store.parent) in said_in_one_line(done)
    assert not (hpcml.cwd / "ran").exists()


CPP_ENDS = b"terminate called after throwing an instance of 'A'\n  what():  b\n"


@pytest.mark.parametrize(
    ("code", "state", "exit_code", "reason"),
    [
        ("raise SystemExit(3)", "FAILED", 3, "exit status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "FAILED", None, "killed by SIGKILL"),
        (
            "import sys; print('x' * 100_000_000); sys.exit(1)",
            "FAILED",
            1,
            f"exit status 1; last line: {'x' * 237}...",
        ),
        ("print('No file x.dat\\n'); raise SystemExit(2)", "FAILED", 2, "exit status 2; last line: No file x.dat"),
        (
            "import sys; print('loss 1'); print('No file x.dat', file=sys.stderr); sys.exit(2)",
            "FAILED",
            2,
            "exit status 2; last line: No file x.dat",
        ),
        (
            f"import os; os.write(2, {CPP_ENDS!r}); os.abort()",
            "FAILED",
            None,
            "killed by SIGABRT; last exception: A: b",
        ),
        ("raise KeyError('a')", "FAILED", 1, "exit status 1; last exception: KeyError: 'a'"),
        (
            "__import__('x' * 300)",  # too long for a file
            "FAILED",
            1,
            (
                f"this Python does not find {'x' * 300}: activate the environment that has it before hpcml run (if it "
                "is a module of yours: workload.env.PYTHONPATH=FOLDER says in which folder it is, hpcml run -n what is "
                "copied)"
            ),
        ),
    ],
)
def test_a_program_that_fails_is_told_as_it_failed(
    hpcml: Hpcml, code: str, state: str, exit_code: int | None, reason: str
) -> None:
    done = hpcml("run", program(code))

    assert done.returncode == 1
    assert f"{state}: {reason}" in done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["exit_code"], run["reason"]) == (state, exit_code, reason)


def test_the_last_words_of_a_program_that_prints_errors_on_standard_output_are_shown(hpcml: Hpcml) -> None:
    done = hpcml("run", program("print('reading\\nNo file x.dat'); raise SystemExit(2)"))

    assert done.stderr.splitlines()[-2:] == ["    reading", "    No file x.dat"]


def test_the_last_words_of_a_failure_are_shown(hpcml: Hpcml) -> None:
    done = hpcml("run", program("raise ValueError('no such layer: \\x1b[31mconv9')"))

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "    ValueError: no such layer: conv9"


def test_runs_that_fail_alike_are_told_of_once(hpcml: Hpcml) -> None:
    (hpcml.cwd / "fails.py").write_text("import sys\nif sys.argv[2] == '3':\n    raise ValueError('three')\n1 / 0\n")

    done = hpcml("run", "-m", "--", sys.executable, "fails.py", "--n", "1,2,3,4")

    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if " FAILED" in line]
    assert [line.partition(" exception: ")[2] for line in told[:2]] == [
        "ZeroDivisionError: division by zero",
        "ValueError: three",
    ]
    assert told[2].startswith("hpcml: 2 more as ")
    assert len(told) == 3


def test_runs_that_fail_alike_but_for_their_own_numbers_are_told_of_once(hpcml: Hpcml) -> None:
    says = "import sys; s = int(sys.argv[2]); print(f'failed with seed {s} at step {s * 7 + 1}'); sys.exit(1 + s // 2)"

    done = hpcml("run", "-m", "--", sys.executable, "-c", says, "--s", "0..2")

    told = [line.partition(" FAILED")[2].partition(";")[0] for line in done.stderr.splitlines() if " FAILED" in line]
    assert [line.partition(":")[0 if "same" in line else 2] for line in told] == [
        " exit status 1",
        " exit status 2",
        " with the same words",
    ]


def test_a_program_that_goes_on_behind_its_end_is_told_of(hpcml: Hpcml) -> None:
    done = hpcml("run", "--", "bash", "-c", "setsid sleep 61 & sleep 62 &")

    assert "1 of 1 runs ended with their program while it had left 2 processes (" in done.stderr
    (run,) = hpcml.runs()
    shown = " ".join(hpcml("show", str(run["uid"])).stdout.split())
    assert "left behind 2 processes (" in shown
    assert "sleep 61" in shown
    assert "), still at work when its program had ended" in shown


def test_a_run_that_a_program_has_submitted_is_nothing_that_it_left_behind(hpcml: Hpcml) -> None:
    here = hpcml.cwd
    inner = f"touch {here}/begun; while [ ! -e {here}/finish ]; do sleep 0.1; done"
    (here / "submits.sh").write_text(
        f"cd {here} && {sys.executable} -m hpcml run --detach -- bash -c '{inner}' && "
        f"while [ ! -e {here}/begun ]; do sleep 0.1; done"
    )

    done = hpcml("run", "--", "bash", "submits.sh")
    (here / "finish").touch()

    assert done.returncode == 0, done.stderr
    assert "had left" not in done.stderr
    hpcml("wait")
    assert [run["state"] for run in hpcml.runs()] == ["COMPLETED", "COMPLETED"]


def test_a_program_that_hangs_ends_at_its_walltime(hpcml: Hpcml) -> None:
    done = hpcml("run", program("import time; time.sleep(600)"), "resources.walltime=2s")

    assert done.returncode == 1
    (run,) = hpcml.runs()
    assert (run["state"], run["reason"]) == ("TIMEOUT", "walltime of 2 s reached")


def wait_for(file: Path, timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while not file.exists():
        assert time.monotonic() < end, f"{file} did not appear"
        time.sleep(0.05)


def test_ctrl_c_stops_watching_and_the_runs_go_on(hpcml: Hpcml) -> None:
    code = "import os, time; open('started', 'w')\nwhile not os.path.exists('finish'): time.sleep(0.05)"
    watching = hpcml.start("run", program(code))
    wait_for(hpcml.cwd / "started")

    watching.send_signal(signal.SIGINT)
    said, _ = watching.communicate(timeout=300)

    assert watching.returncode == 130
    assert "go on in the background" in said
    assert hpcml.runs()[0]["state"] == "RUNNING"
    (hpcml.cwd / "finish").touch()
    wait_until_ended(hpcml, 1)
    assert hpcml.runs()[0]["state"] == "COMPLETED"


def test_a_second_ctrl_c_cancels_what_runs_and_what_waits(hpcml: Hpcml) -> None:
    watching = hpcml.start("run", "-m", program(SLEEPS), "seed=0,1,2", "cluster.max_parallel=1")
    wait_for(hpcml.cwd / "started")

    watching.send_signal(signal.SIGINT)
    time.sleep(1)
    watching.send_signal(signal.SIGINT)
    said, _ = watching.communicate(timeout=300)

    assert watching.returncode == 130
    assert "Cancelling 3 of 3 runs" in said
    wait_until_ended(hpcml, 3)
    assert {run["state"] for run in hpcml.runs()} == {"CANCELLED"}
    assert (hpcml.cwd / "started").read_text() == "x"  # the others never started


def test_ctrl_c_while_composing_leaves_nothing(hpcml: Hpcml) -> None:
    composing = hpcml.start("run", "-m", program("pass"), "seed=range(50000)")
    time.sleep(1.5)

    composing.send_signal(signal.SIGINT)
    _, said = composing.communicate(timeout=300)

    assert (composing.returncode, said.strip()) == (130, "hpcml: interrupted: none of these runs was submitted")
    assert not list(hpcml.home.glob("runs/*/*"))


def test_ctrl_c_while_run_directories_are_written_leaves_none_or_runs_that_are_known(hpcml: Hpcml) -> None:
    folder = hpcml.home / "runs" / "default"
    writing = hpcml.start("run", "-m", program(SLEEPS), "seed=range(300)", "--detach")
    end = time.monotonic() + 300
    while not (folder.is_dir() and any(folder.iterdir())):
        assert time.monotonic() < end
        time.sleep(0.001)

    writing.send_signal(signal.SIGINT)
    _, said = writing.communicate(timeout=300)

    runs = hpcml.runs()
    assert ("interrupted: none of these runs was submitted" in said) is (not runs)
    assert len(runs) == len(list(folder.iterdir())) in (0, 300)
    assert writing.returncode in (130, 0)  # 0: all was submitted before the signal was heard
    assert {run["state"] for run in runs} <= {"PENDING", "RUNNING"}
    if runs:
        assert hpcml("cancel", "-y", *(run["uid"] for run in runs)).returncode == 0


def test_detached_runs_can_be_cancelled_by_the_end_of_their_id(hpcml: Hpcml) -> None:
    submitted = json.loads(hpcml("run", program(SLEEPS), "--json").stdout)
    wait_for(hpcml.cwd / "started")

    done = hpcml("cancel", submitted[0]["uid"][-5:], "-y")

    assert done.returncode == 0, done.stderr
    wait_until_ended(hpcml, 1)
    (run,) = hpcml.runs()
    assert (run["state"], run["reason"]) == ("CANCELLED", "cancelled by SIGTERM")
    assert "had ended already" in hpcml("cancel", submitted[0]["uid"], "-y").stdout


def test_two_first_users_at_once_lose_nothing(hpcml: Hpcml) -> None:
    both = [hpcml.start("run", "-m", program(REPORTS), f"seed={first},{first + 1}") for first in (0, 2)]
    ends = [(one.communicate(timeout=300), one.returncode) for one in both]

    assert [code for _, code in ends] == [0, 0], ends
    runs = hpcml.runs()
    assert sorted(run["params"]["seed"] for run in runs) == [0, 1, 2, 3]
    assert {(run["state"], run["metrics"]["loss"]["n"]) for run in runs} == {("COMPLETED", 20)}


def test_no_more_runs_at_once_than_cores(hpcml: Hpcml) -> None:
    """Each wants all cores, so the intervals in which they ran must not overlap, whoever submitted them."""
    cores = len(os.sched_getaffinity(0))
    code = "import time; t = time.time(); time.sleep(0.3); open(f'{t}', 'w').write(f'{t} {time.time()}')"
    words = ("run", "-m", program(code), f"resources.cpus_per_task={cores}")
    both = [hpcml.start(*words, f"seed={seeds}") for seeds in ("0,1", "2,3")]
    for one in both:
        one.communicate(timeout=300)

    spans = sorted(tuple(map(float, file.read_text().split())) for file in hpcml.cwd.iterdir())
    assert len(spans) == 4
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_an_agent_that_was_killed_is_found_out_and_its_workload_ends_with_it(hpcml: Hpcml) -> None:
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); open('started', 'w'); time.sleep(60)"
    submitted = json.loads(hpcml("run", program(code), "--json").stdout)
    wait_for(hpcml.cwd / "started")
    run_dir = RunDir(Path(submitted[0]["path"]))
    (agent,) = [
        record.details["pid"]
        for path in run_dir.journal_files()
        for record in read_journal(path).records
        if isinstance(record, Event) and record.name == "attempt_started"
    ]

    os.kill(agent, signal.SIGKILL)
    end = time.monotonic() + 300
    while hpcml.runs()[0]["state"] == "RUNNING":
        assert time.monotonic() < end
        time.sleep(0.2)

    assert hpcml.runs()[0]["state"] == "LOST"
    workload = int((hpcml.cwd / "pid").read_text())
    while Path(f"/proc/{workload}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_hydra_prints_and_nothing_is_submitted(hpcml: Hpcml) -> None:
    for words in (["--cfg", "job"], ["--help"]):
        done = hpcml("run", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    assert not hpcml.home.exists()


def test_a_home_directory_that_cannot_be_written_is_not_needed(hpcml: Hpcml, tmp_path: Path) -> None:
    done = hpcml("run", program("pass"), HOME="/proc/nowhere", HPCML_HOME=str(tmp_path / "elsewhere"))

    assert done.returncode == 0, done.stderr
    refused = hpcml("run", program("pass"), HOME="/proc/nowhere", HPCML_HOME="")
    assert refused.returncode == 2
    assert "/proc/nowhere/.local/share/hpcml" in said_in_one_line(refused)
