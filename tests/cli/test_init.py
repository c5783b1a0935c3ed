"""``hpcml new project``: what it writes is what the next `hpcml run` uses."""

import json
import sys
from pathlib import Path

from tests.cli.command_line import Hpcml, said_in_one_line


def test_what_it_writes_is_used_by_the_next_run_and_never_written_over(hpcml: Hpcml) -> None:
    words = ("--name", "mine", "--metric", "val_loss", "--margin", "0.02")
    report = "import hpcml_client as c; c.connect().metric('val_loss', 0.5, 1)"

    made = hpcml("new", "project", *words)
    ran = hpcml("run", "+experiment=mine", "--", sys.executable, "-c", report)
    again = hpcml("new", "project", *words)

    assert made.stdout.splitlines()[:2] == ["wrote hpcml.yaml", "wrote conf/study/mine.yaml"]
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""  # it reported what it is judged by
    shown = json.loads(hpcml("show", "--json").stdout)
    assert shown["experiment"] == "mine"
    spec = json.loads((Path(shown["path"]) / "run.json").read_text())["run"]
    objective = {key: spec["objective"][key] for key in ("metric", "goal", "margin")}
    assert objective == {"metric": "val_loss", "goal": "min", "margin": 0.02}
    assert again.returncode == 2
    assert "exists already" in said_in_one_line(again)


def test_the_account_is_that_of_the_cluster(hpcml: Hpcml) -> None:
    assert hpcml("new", "project", "--name", "paid", "--cluster", "karolina", "--account", "OPEN-1-2").returncode == 0

    script = hpcml("run", "--dry-run=script", "+experiment=paid", "--", "ls")

    assert "--account=OPEN-1-2" in script.stdout, script.stderr
