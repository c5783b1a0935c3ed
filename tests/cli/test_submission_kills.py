"""A submission that is killed between any two changes that it makes: nothing is lost, nothing done twice."""

from __future__ import annotations

import logging

from tests.cli.command_line import Hpcml
from tests.cli.kills import alone, changes_of, run_killed, said
from tests.cli.test_run import wait_until_ended
from tests.effort import times

log = logging.getLogger(__name__)
SWEEP = ("run", "-m", "--detach", alone(0.1), "seed=0,1")
WINDOWS = times(6, 200)
_KILLED = 0.8  # of the windows at least: a submission that makes fewer changes than another may come to its end


def test_a_killed_submission_is_undone_or_finished(hpcml: Hpcml) -> None:
    changes_of(hpcml, *SWEEP, "experiment=first")  # the code is copied once
    whole = changes_of(hpcml, *SWEEP, "experiment=second")
    wait_until_ended(hpcml, 4)
    kills = 0
    log.info("%s kills among the %s changes of a submission", WINDOWS, whole)
    for share in [(number + 0.5) / WINDOWS for number in range(WINDOWS)]:
        experiment = f"experiment=at-{share:.4f}"
        words = (*SWEEP, experiment)

        killed = run_killed(hpcml, int(share * whole), *words)
        assert hpcml("sync").returncode == 0, share
        again = hpcml(*words, "--missing")

        assert killed.returncode in (0, -9), (share, killed.stderr)
        kills += killed.returncode == -9
        assert again.returncode == 0, (share, again.stderr)
        assert hpcml("wait").returncode == 0, share
        runs = [run for run in hpcml.runs() if run["experiment"] == experiment.partition("=")[2]]
        assert [run["state"] for run in runs] == ["COMPLETED"] * 2, (share, runs)
        assert [said(run["path"]) for run in runs] == [["in", "out"]] * 2, share
    assert kills >= _KILLED * WINDOWS
