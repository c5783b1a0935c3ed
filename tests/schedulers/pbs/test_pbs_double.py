"""The double answers as a real server answered: its refusals literally, its listings line by line."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.pbs.double import PbsDouble

CAPTURES = Path(__file__).resolve().parent / "captures"
# The command as it was typed: a capture's own first line has lost the quotes.
REFUSALS: dict[str, list[str]] = {
    "err-array-single": ["qsub", "-q", "qgpu", "-J", "0-0", "sleep.sh"],
    "err-array-rn": ["qsub", "-h", "-r", "n", "-q", "qgpu", "-J", "0-9", "sleep.sh"],
    "err-array-toolarge": ["qsub", "-q", "qgpu", "-J", "0-20000", "sleep.sh"],
    "err-unknown-queue": ["qsub", "-q", "nosuchqueue", "sleep.sh"],
    "err-missing-script": ["qsub", "-q", "qgpu", "nosuchfile.sh"],
    "err-bad-walltime": ["qsub", "-q", "qgpu", "-l", "walltime=abc", "sleep.sh"],
    "err-unknown-resource": ["qsub", "-q", "qgpu", "-l", "select=1:ncpus=1:foo=1", "sleep.sh"],
    "err-unknown-resource-l": ["qsub", "-q", "qgpu", "-l", "foo=1", "sleep.sh"],
    "err-walltime-above-queue-max": ["qsub", "-q", "qnvidia", "-l", "walltime=72:00:00", "sleep.sh"],
    "err-mix-select-ncpus": ["qsub", "-q", "qgpu", "-l", "select=1:ncpus=1", "-l", "ncpus=4", "sleep.sh"],
    "err-select-zero": ["qsub", "-q", "qgpu", "-l", "select=0:ncpus=1", "sleep.sh"],
    "err-select-negative": ["qsub", "-q", "qgpu", "-l", "select=-1:ncpus=1", "sleep.sh"],
    "err-select-syntax": ["qsub", "-q", "qgpu", "-l", "select=1:ncpus=x", "sleep.sh"],
    "err-k-bad": ["qsub", "-h", "-k", "xyz", "-q", "qgpu", "sleep.sh"],
    "err-r-bad": ["qsub", "-h", "-r", "x", "-q", "qgpu", "sleep.sh"],
    "err-mail-bad": ["qsub", "-h", "-m", "z", "-q", "qgpu", "sleep.sh"],
    "err-dep-bad-type": ["qsub", "-q", "qgpu", "-W", "depend=afternever:0", "sleep.sh"],
    "err-bad-option": ["qsub", "--foo", "sleep.sh"],
    "name-space": ["qsub", "-h", "-q", "qgpu", "-N", "a b", "sleep.sh"],
    "name-unicode": ["qsub", "-h", "-q", "qgpu", "-N", "jób", "sleep.sh"],
    "name-empty": ["qsub", "-h", "-q", "qgpu", "-N", "", "sleep.sh"],
    "path-unicode": ["qsub", "-q", "qgpu", "-j", "oe", "-o", "/home/ün/ž.out", "sleep.sh"],
    "args-qsub": ["qsub", "-q", "qgpu", "sleep.sh", "arg1", "arg2"],
    "qdel-unknown": ["qdel", "999999"],
    "qdel-garbage": ["qdel", "abc"],
    "qdel-W-delay": ["qdel", "-W", "delay=10", "1"],
    "qstat-unknown": ["qstat", "999999"],
    "qstat-garbage": ["qstat", "abc"],
    "qalter-unknown": ["qalter", "-N", "x", "999999"],
    "qsig-unknown": ["qsig", "-s", "SIGUSR1", "999999"],
}
DIRECTIVES = {
    "err-bad-directive": "#!/bin/bash\n#PBS -Y foo\necho hi\n",
    "err-directive-with-comment": "#!/bin/bash\n#PBS -N foo # a comment\necho hi\n",
}
DOWN = {
    "serverdown-qsub": ["qsub", "-q", "qgpu", "sleep.sh"],
    "serverdown-qstat": ["qstat", "-x", "-f", "-F", "json", "1123.pbs01"],
    "serverdown-qstat_plain": ["qstat"],
    "serverdown-qdel": ["qdel", "1123.pbs01"],
    "serverdown-qselect": ["qselect"],
    "serverdown-qsig": ["qsig", "-s", "SIGUSR1", "1123.pbs01"],
    "serverdown-pbsnodes": ["pbsnodes", "-a", "-F", "json"],
}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "sleep.sh").write_text("#!/bin/bash\nsleep 100\n")
    return folder


def captured(name: str) -> tuple[int, str, str]:
    text = (CAPTURES / f"{name}.txt").read_text()
    code = re.search(r"^--- rc=(\d+)", text, re.MULTILINE)
    assert code is not None
    out, _, err = text.partition("--- stdout\n")[2].partition("--- stderr\n")
    return int(code[1]), out, err


def typed(words: list[str], cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=cwd, input=stdin, capture_output=True, text=True, check=False, timeout=60)


def ended(job_id: str, cwd: Path) -> dict[str, str]:
    """Wait for a job's end and return its attributes."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        lines = typed(["qstat", "-x", "-f", "-w", job_id], cwd).stdout.splitlines()
        said = dict(line.strip().partition(" = ")[::2] for line in lines)
        if said.get("job_state") in ("F", "X"):
            return said
        time.sleep(0.05)
    raise AssertionError(f"{job_id} did not end")


def appeared(path: Path) -> None:
    until = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.02)


def submitted(words: list[str], cwd: Path, stdin: str = "") -> str:
    done = typed(["qsub", *words], cwd, stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shapes(text: str) -> str:
    """Replace what differs from run to run: numbers, times and places."""
    text = re.sub(r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \d{4}", "TIME", text)
    return re.sub(r"\d+", "0", text)


@pytest.mark.usefixtures("pbs")
def test_every_refusal_is_literally_that_of_a_real_server(work: Path) -> None:
    answers = {name: typed(words, work) for name, words in REFUSALS.items()}
    answers |= {name: typed(["qsub", "-q", "qgpu"], work, script) for name, script in DIRECTIVES.items()}

    for name, done in answers.items():
        code, out, err = captured(name)
        assert (name, done.returncode, done.stdout, done.stderr.rstrip()) == (name, code, out, err.rstrip())


def test_a_server_that_is_down_is_reported_as_a_real_one(pbs: PbsDouble, work: Path) -> None:
    pbs.set(down=["qsub", "qstat", "qdel", "qselect", "qsig", "pbsnodes"])

    for name, words in DOWN.items():
        done = typed(words, work)
        code, out, err = captured(name)
        assert (name, done.returncode, shapes(done.stdout), done.stderr) == (name, code, shapes(out), err)


@pytest.mark.usefixtures("pbs")
def test_a_job_is_described_by_the_same_attributes_in_the_same_order(work: Path) -> None:
    words = ["-q", "qgpu", "-l", "select=1:ncpus=1", "-l", "walltime=00:10:00", "-j", "oe", "-k", "oed"]
    job = submitted([*words, "-o", f"{work}/", "sleep.sh"], work)

    time.sleep(0.2)
    got = typed(["qstat", "-f", "-w", job], work).stdout

    def keys(text: str) -> list[str]:
        found = [line.partition(" = ")[0].strip() for line in text.splitlines() if " = " in line]
        # A real server adds these two after its first poll of the job.
        return [key for key in found if not key.startswith(("resources_used", "session_id", "jobdir"))]

    assert keys(got) == keys(captured("qstat-f-w")[1])
    assert got.endswith("\n\n")


@pytest.mark.usefixtures("pbs")
def test_a_finished_job_looks_the_same_in_a_table(work: Path) -> None:
    job = submitted(["-N", "envjob", "-q", "qnvidia", "--", "/bin/true"], work)
    ended(job, work)

    done = typed(["qstat", "-x", job], work)

    assert done.stdout == captured("qstat-x-finished")[1]
    assert typed(["qstat", job], work).stderr == captured("qstat-finished-nox")[2]
    assert typed(["qdel", job], work).stderr == f"qdel: Job has finished {job}\n"


@pytest.mark.parametrize(
    ("script", "status", "substate"),
    [
        ("exit 0", "0", "92"),
        ("exit 3", "3", "93"),
        ("exit 256", "0", "92"),
        ("kill -9 $$", "137", "93"),
    ],
)
@pytest.mark.usefixtures("pbs")
def test_scripts_end_with_the_exit_status_of_a_real_server(work: Path, script: str, status: str, substate: str) -> None:
    said = ended(submitted(["-q", "qgpu"], work, f"#!/bin/bash\n{script}\n"), work)

    assert (said["Exit_status"], said["substate"]) == (status, substate)


@pytest.mark.usefixtures("pbs")
def test_without_a_login_shell_a_signal_is_told_by_256(work: Path) -> None:
    said = ended(submitted(["--", "/bin/bash", "-c", "kill -9 $$"], work), work)

    assert (said["Exit_status"], said["comment"].split()[-1]) == ("265", "failed")


@pytest.mark.usefixtures("pbs")
def test_walltime_and_deletion_end_a_job_as_on_a_real_server(work: Path) -> None:
    late = submitted(["-l", "walltime=1", "-j", "oe", "-k", "oed", "-o", "late.out", "--", "/bin/sleep", "60"], work)
    gone = submitted(["--", "/bin/sleep", "60"], work)
    time.sleep(0.3)
    typed(["qdel", gone], work)

    said = ended(gone, work)
    assert (said["substate"], said["Exit_status"]) == ("91", "271")
    assert said["comment"].endswith("and terminated by hpcuser@localhost")
    said = ended(late, work)
    assert (said["substate"], said["Exit_status"]) == ("93", "-29")
    assert said["comment"].endswith("and exceeded resource walltime")
    assert (work / "late.out").read_text().startswith("=>> PBS: job killed: walltime 2 exceeded limit 1")


@pytest.mark.usefixtures("pbs")
def test_the_login_shell_of_a_script_dies_of_a_signal_and_the_other_form_does_not(work: Path) -> None:
    trap = (
        f"trap 'echo got it' USR1; touch '{work}'/$PBS_JOBID.on; for i in 1 2 3 4 5 6 7 8; do sleep 0.3; done; exit 4"
    )
    (work / "trap.sh").write_text(f"#!/bin/bash\n{trap}\n")
    script = submitted(["trap.sh"], work)
    direct = submitted(["-j", "oe", "-k", "oed", "-o", "direct.out", "--", "/bin/bash", f"{work}/trap.sh"], work)
    for job in (script, direct):
        appeared(work / f"{job}.on")
        typed(["qsig", "-s", "SIGUSR1", job], work)

    assert ended(script, work)["Exit_status"] == "266"
    assert ended(direct, work)["Exit_status"] == "4"
    assert "got it" in (work / "direct.out").read_text()


@pytest.mark.usefixtures("pbs")
def test_the_environment_of_a_job_has_the_same_names(work: Path) -> None:
    job = submitted(["-j", "oe", "-k", "oed", "-o", f"{work}/", "-J", "0-1", "--", "/usr/bin/env"], work)
    ended(job, work)

    lines = (work / job.replace("[]", "[1]")).with_name(f"{job.replace('[]', '[1]')}.OU").read_text().splitlines()
    found = dict(line.partition("=")[::2] for line in lines)

    assert found["PATH"] == "/bin:/usr/bin"
    assert (found["PBS_ARRAY_INDEX"], found["PBS_ARRAY_ID"], found["PBS_JOBID"]) == ("1", "1[].pbs01", "1[1].pbs01")
    assert (found["NCPUS"], found["OMP_NUM_THREADS"], found["PBS_NODENUM"]) == ("1", "1", "0")
    assert "CUDA_VISIBLE_DEVICES" not in found


@pytest.mark.usefixtures("pbs")
def test_subjobs_are_x_while_the_array_lives_and_lose_their_record_when_it_is_deleted(work: Path) -> None:
    code = "if [ $PBS_ARRAY_INDEX = 0 ]; then exit 3; else sleep 60; fi"
    array = submitted(["-J", "0-3%2", "-l", "select=1:ncpus=1", "--", "/bin/bash", "-c", code], work)
    first = ended("1[0]", work)
    typed(["qdel", "1[3]"], work)

    table = typed(["qstat", "-t", array], work).stdout.split("\n")[2:]
    assert [line.split()[-2] for line in table if line] == ["B", "X", "R", "R", "X"]
    assert (first["Exit_status"], first["job_state"]) == ("3", "X")
    assert typed(["qdel", "1[3]"], work).stderr == "qdel: Request invalid for finished array subjob 1[3].pbs01\n"

    typed(["qdel", array], work)
    ended(array, work)
    lost, never = ended("1[0]", work), ended("1[3]", work)
    assert (lost["comment"], lost["substate"]) == ("Subjob finished", "91")
    assert "run_count" not in lost
    assert "exec_host" not in never


@pytest.mark.usefixtures("pbs")
def test_dependencies_hold_release_and_remove_jobs(work: Path) -> None:
    good = submitted(["--", "/bin/bash", "-c", f"until [ -e '{work}/go' ]; do sleep 0.05; done"], work)
    bad = submitted(["--", "/bin/bash", "-c", "sleep 0.3; exit 3"], work)
    after_good = submitted(["-W", f"depend=afterok:{good}", "--", "/bin/true"], work)
    after_bad = submitted(["-W", f"depend=afterok:{bad}", "--", "/bin/true"], work)
    unknown = submitted(["-W", "depend=afterok:999999.pbs01", "--", "/bin/true"], work)

    assert " H " in typed(["qstat", after_good], work).stdout
    (work / "go").touch()
    assert ended(after_good, work)["Exit_status"] == "0"
    for job in (after_bad, unknown):
        said = ended(job, work)
        assert (said["substate"], said["Hold_Types"], "Exit_status" in said) == ("92", "s", False)


@pytest.mark.usefixtures("pbs")
def test_nodes_are_full_when_their_cores_or_gpus_are_given_out(work: Path) -> None:
    first = [submitted(["-l", "select=1:ncpus=1:ngpus=4", "--", "/bin/sleep", "60"], work) for _ in range(2)]
    waits = submitted(["-l", "select=1:ngpus=1", "--", "/bin/true"], work)
    never = submitted(["-l", "select=1:ngpus=16", "--", "/bin/true"], work)

    assert "Not Running: Insufficient amount of resource: ngpus" in typed(["qstat", "-f", "-w", waits], work).stdout
    wanted = "comment = Can Never Run: Insufficient amount of resource: ngpus (R: 16 A: 8 T: 8)\n"
    assert wanted in typed(["qstat", "-f", "-w", never], work).stdout
    typed(["qdel", first[0]], work)
    assert ended(waits, work)["exec_host"] == "pbs01/0"


@pytest.mark.usefixtures("pbs")
def test_tasks_on_the_nodes_of_a_job_are_started_as_pbs_does(work: Path, pbs: PbsDouble) -> None:
    code = (
        "cat $PBS_NODEFILE; export HIDDEN=1; "
        f"{pbs.bin}/pbs_tmrsh pbs02 /bin/bash -c 'echo $PBS_NODENUM-$HIDDEN; exit 4'; "
        f"echo rc=$?; {pbs.bin}/pbsdsh -- /bin/bash -c 'exit 7'; echo rc=$?"
    )
    words = ["-l", "select=2:ncpus=1", "-l", "place=scatter", "-j", "oe", "-k", "oed", "-o", "mn.out", "--"]
    ended(submitted([*words, "/bin/bash", "-c", code], work), work)

    lines = (work / "mn.out").read_text().splitlines()
    assert lines[:4] == ["pbs01", "pbs02", "1-", "rc=4"]
    assert lines[-1] == "rc=0"
    assert "pbsdsh: task 0x00000001 exit status 7" in lines


def test_json_has_the_faults_of_the_versions(pbs: PbsDouble, work: Path) -> None:
    jobs = [submitted(["-N", "nan", "-h", "sleep.sh"], work) for _ in range(2)]
    counts = {}
    for how in ("first", "all", "invalid"):
        pbs.set(json=how)
        text = typed(["qstat", "-f", "-F", "json", *jobs], work).stdout
        counts[how] = (text.count('"Job_Name"'), '"Job_Name":\tnan' in text)

    assert counts == {"first": (1, False), "all": (2, False), "invalid": (2, True)}


def test_a_site_without_history_says_so_and_forgets(pbs: PbsDouble, work: Path) -> None:
    job = submitted(["--", "/bin/true"], work)
    ended(job, work)
    pbs.set(history=False)

    done = typed(["qstat", "-x", "-f", "-w", job], work)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"qstat: PBS is not configured to maintain job history {job}\n"
    assert typed(["qstat", job], work).returncode == 153


@pytest.mark.usefixtures("pbs")
def test_an_array_of_ten_thousand_is_taken_in_a_second(work: Path) -> None:
    began = time.monotonic()
    submitted(["-h", "-J", "0-9999", "--", "/bin/true"], work)

    assert time.monotonic() - began < 1.0


def test_ids_may_have_gaps(pbs: PbsDouble, work: Path) -> None:
    first = submitted(["--", "/bin/true"], work)
    pbs.set(next_number=1000)

    assert [first, submitted(["--", "/bin/true"], work)] == ["1.pbs01", "1000.pbs01"]


def test_an_operator_or_a_lost_node_runs_a_job_again(pbs: PbsDouble, work: Path) -> None:
    job = submitted(["--", "/bin/bash", "-c", "echo >> $HOME/runs; [ $(wc -l < $HOME/runs) = 2 ] || sleep 60"], work)
    appeared(Path(os.environ["HOME"]) / "runs")
    assert typed(["qrerun", job], work).stderr == f"qrerun: Unauthorized Request  {job}\n"
    pbs.set(operator=True)
    typed(["qrerun", job], work)

    said = ended(job, work)
    assert (said["run_count"], said["Exit_status"]) == ("2", "0")


@pytest.mark.usefixtures("pbs")
def test_a_users_jobs_are_listed_as_by_a_real_server(work: Path) -> None:
    (work / "term.sh").write_text("#!/bin/bash\nsleep 100\n")
    submitted(["-q", "qgpu", "-l", "walltime=00:10:00", "term.sh"], work)

    listed = typed(["qstat", "-u", "hpcuser"], work).stdout.splitlines()
    expected = captured("qstat-u")[1].splitlines()

    assert listed[:5] == expected[:5]
    assert [len(word) for word in listed[4].split()] == [len(word) for word in expected[4].split()]
    ours, real = listed[5].split(), expected[5].split()
    assert [ours[place] for place in (1, 2, 3, 5, 6, 7, 8)] == [real[place] for place in (1, 2, 3, 5, 6, 7, 8)]
    assert len(ours) == len(real)
    assert typed(["qstat", "-f", "-w", "-u", "hpcuser"], work).stdout == ""
