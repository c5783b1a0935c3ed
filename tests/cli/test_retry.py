"""Failed runs tried again: the policy as a user meets it, on this machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from hpcml.runs.journal import Event, read_journal
from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, program, said_in_one_line
from tests.cli.terminal import OnTerminal
from tests.cli.test_run import SLEEPS, wait_for
from tests.cli.test_wait import submit

FAILS_ONCE = "import os, sys; again = os.path.exists('again'); open('again', 'w'); sys.exit(0 if again else {code})"
BREAKS_ONCE = (
    "import os, sys; again = os.path.exists('again'); open('again', 'w')\n"
    "if not again: sys.exit('torch.distributed.DistBackendError: NCCL error: unhandled system error')"
)


def the_run(hpcml: Hpcml) -> dict[str, Any]:
    (found,) = hpcml.runs()
    return found


def submissions(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was said of each time that the run was queued again."""
    return [
        record.details
        for path in RunDir(Path(run["path"])).journal_files()
        for record in read_journal(path).records
        if isinstance(record, Event) and record.name == "submitted" and not path.name.startswith("0-")
    ]


def test_a_program_that_failed_is_not_tried_unless_somebody_means_it(hpcml: Hpcml) -> None:
    hpcml("run", program(FAILS_ONCE.format(code=3)))
    run = the_run(hpcml)
    assert (run["state"], run["cause"]) == ("FAILED", "program")

    for words in (("--experiment", "default"), ("--state", "FAILED"), ()):
        refused = hpcml("retry", *words, "-y")
        assert "retried after" not in refused.stdout
    assert the_run(hpcml)["attempt"] == 0
    assert "no: the program failed by itself" in hpcml("retry", "--experiment", "default", "-y").stdout

    meant = hpcml("retry", run["uid"], "-y")
    assert meant.returncode == 0, meant.stderr
    assert hpcml("wait", run["uid"]).returncode == 0
    again = the_run(hpcml)
    assert (again["state"], again["attempt"]) == ("COMPLETED", 1)
    (said,) = submissions(again)
    assert (said["by"], said["why"]) == ("retry", "retried after program: again as it was")


def test_a_run_that_had_started_waits_for_no_other_job_again(hpcml: Hpcml) -> None:
    hpcml("run", program("pass"), "experiment=before")
    hpcml("run", program(FAILS_ONCE.format(code=3)), "resources.dependency=afterok:before")
    before, run = hpcml.runs()

    meant = hpcml("retry", run["uid"], "--cause", "program", "-y")

    assert meant.returncode == 0, meant.stderr
    assert hpcml("wait", run["uid"]).returncode == 0
    said = [json.loads(path.read_text()) for path in (Path(run["path"]) / f for f in ("run.json", "retries/1.json"))]
    assert [words["run"]["resources"]["dependency"] for words in said] == [f"afterok:{before['uid']}", None]


def test_more_time_is_written_down_beside_the_run_which_stays_as_it_was(hpcml: Hpcml) -> None:
    hpcml("run", program("import time; time.sleep(60)"), "resources.walltime=2s")
    run = the_run(hpcml)
    run_dir = RunDir(Path(run["path"]))
    before = run_dir.manifest.read_bytes()

    listed = hpcml("retry", run["uid"], "-n")
    assert listed.returncode == 0, listed.stderr
    assert "time_limit" in listed.stdout
    assert "with a walltime of 00:00:03 instead of 00:00:02" in listed.stdout
    assert not run_dir.retry_manifest(1).exists()

    assert hpcml("retry", run["uid"], "-y").returncode == 0
    assert hpcml("wait", run["uid"]).returncode == 1
    assert run_dir.manifest.read_bytes() == before
    amended = json.loads(run_dir.retry_manifest(1).read_text())
    assert (amended["run"]["resources"]["walltime"], amended["plan"]["stop_after_s"]) == ("00:00:03", 3)
    again = the_run(hpcml)
    assert (again["state"], again["attempt"]) == ("TIMEOUT", 1)
    assert again["reason"].startswith("walltime of 3 s reached")
    assert "00:00:04" in hpcml("retry", run["uid"], "-n").stdout  # 1.5 times what it had last


def test_what_a_person_says_goes_before_the_policy(hpcml: Hpcml) -> None:
    hpcml("run", program("import os, time; time.sleep(int(os.environ['HPCML_ATTEMPT']) == 0 and 60)"),
          "resources.walltime=2s")  # fmt: skip

    done = hpcml("retry", the_run(hpcml)["uid"], "--walltime", "30s", "-y")

    assert "as asked with walltime 30s" in done.stdout
    assert hpcml("wait").returncode == 0


def test_a_cause_that_there_is_not_is_one_line(hpcml: Hpcml) -> None:
    done = hpcml("retry", "--cause", "gremlins", "-y")

    assert done.returncode == 2
    assert "gremlins" in said_in_one_line(done)


def test_without_a_word_all_is_repaired_that_the_cluster_broke_and_nobody_did_since(hpcml: Hpcml) -> None:
    hpcml("run", program(BREAKS_ONCE), "experiment=broken")
    hpcml("run", program("raise SystemExit(3)"), "experiment=wrong")
    done_since = program(
        "import os, sys; sys.exit('NCCL error: unhandled system error' if os.path.exists('again') else 0)"
    )
    hpcml("run", done_since, "experiment=done_since")
    (hpcml.cwd / "again").unlink()
    hpcml("run", done_since, "experiment=done_since")
    (hpcml.cwd / "again").touch()

    done = hpcml("retry", "-y")

    assert done.returncode == 0, done.stderr
    first, left, *rest = done.stdout.splitlines()
    assert "communication" in first
    why = "the program failed by itself (hpcml logs RUN); hpcml retry RUN tries it again as it was"
    assert left == f"not worth another try by themselves: 1 program: {why}"
    assert len(rest) == 1
    hpcml("wait")
    states = [(run["experiment"], run["attempt"], run["state"]) for run in hpcml.runs()]
    assert states[0] == ("broken", 1, "COMPLETED")
    assert [attempt for _, attempt, _ in states[1:]] == [0, 0, 0]
    assert hpcml("retry").returncode == 0  # nothing is left to repair, which is no failure and needs no question


def test_what_completed_or_goes_on_cannot_be_retried(hpcml: Hpcml) -> None:
    (done,) = submit(hpcml, program("pass"))
    hpcml("wait")
    (going,) = submit(hpcml, program(SLEEPS))
    wait_for(hpcml.cwd / "started")

    assert "is COMPLETED: there is nothing to retry" in said_in_one_line(hpcml("retry", done, "-y"))
    assert "is RUNNING: it can be retried once it has ended" in said_in_one_line(hpcml("retry", going, "-y"))
    selected = hpcml("retry", "--experiment", "default", "-y")
    assert (selected.returncode, selected.stdout) == (0, "")
    assert "no failed run matches" in selected.stderr
    hpcml("cancel", going, "-y")


def test_two_who_retry_at_once_queue_one_attempt(hpcml: Hpcml) -> None:
    hpcml("run", program("raise SystemExit(3)"))
    uid = the_run(hpcml)["uid"]

    both = [hpcml.start("retry", uid, "--cause", "program", "-y") for _ in range(2)]
    ends = [(one.communicate(timeout=300), one.returncode) for one in both]

    assert 0 in [code for _, code in ends], ends
    hpcml("wait")
    assert len(submissions(the_run(hpcml))) in (1, 2)  # the slower one may have come after the first one's end
    assert the_run(hpcml)["attempt"] == len(submissions(the_run(hpcml)))


def test_a_run_that_went_on_after_all_is_not_retried(hpcml: Hpcml) -> None:
    hpcml("run", program("raise SystemExit(3)"))
    run = the_run(hpcml)
    asked = OnTerminal(hpcml, "retry", "--cause", "program")
    asked.until("Retry 1 run?")
    subprocess.run(["bash", str(RunDir(Path(run["path"])).script)], env=hpcml.environ, check=False, timeout=300)

    asked.type("y\n")
    asked.end()

    assert the_run(hpcml)["attempt"] == 1
    assert submissions(the_run(hpcml)) == []


def test_what_the_cluster_broke_is_tried_by_itself_as_often_as_is_allowed(hpcml: Hpcml) -> None:
    submit(hpcml, program(BREAKS_ONCE), "schedule.retry=1")
    said = hpcml("wait", "--experiment", "default")
    assert said.returncode == 1
    for done in (said, hpcml("status")):
        assert "may be tried again (schedule.retry): hpcml sync does that" in done.stderr
    assert the_run(hpcml)["attempt"] == 0

    done = hpcml("sync")

    assert hpcml("wait").returncode == 0
    run = the_run(hpcml)
    assert (run["state"], run["attempt"]) == ("COMPLETED", 1)
    assert "retried after communication" in done.stdout + done.stderr


def test_nothing_is_tried_by_itself_unless_that_is_allowed(hpcml: Hpcml) -> None:
    submit(hpcml, program(BREAKS_ONCE))

    assert hpcml("wait", "--experiment", "default").returncode == 1
    hpcml("sync")

    run = the_run(hpcml)
    assert (run["state"], run["cause"], run["attempt"]) == ("FAILED", "communication", 0)


def test_an_experiment_repeats_nothing_that_was_done_under_another_id(hpcml: Hpcml) -> None:
    words = (program(FAILS_ONCE.format(code=1)), "experiment=study")
    assert hpcml("run", *words).returncode == 1
    assert hpcml("run", *words, "--missing").returncode == 0
    failed, done = hpcml.runs()
    assert (failed["state"], done["state"]) == ("FAILED", "COMPLETED")

    for more in ((), ("--cause", "program")):
        left = hpcml("retry", "--experiment", "study", *more, "-y")

        assert f"its configuration was run again as {done['uid']}, which is COMPLETED" in left.stdout
        assert left.stdout.count("\n") == 1
    assert len(submissions(failed)) == 0
    assert hpcml("retry", failed["uid"], "--cause", "program", "-y").returncode == 0
