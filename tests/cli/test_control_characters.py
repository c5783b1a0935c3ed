"""Whatever others wrote into runs, no terminal obeys it: every command, on a terminal and in a pipe."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest

from hpcml.model.precision import PrecisionName
from hpcml.model.run import Precision
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.cli.terminal import OnTerminal
from tests.store.building import T0, Journal, make_run_dir

UIDS = {letter: f"20260528-202640-{letter * 8}" for letter in "abcd"}
TITLE, CLIPBOARD, LINK = "\x1b]0;owned\x07", "\x1b]52;c;b3duZWQ=\x07", "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\"
DCS, APC, MOVES = "\x1bP$qm\x1b\\", "\x1b_Gi=1\x1b\\", "\x1b[2J\x1b[1;1H\x1b[5A\x1b[?1049h\x1bc\x1b(0"
C1 = "\x9b2J\x9d0;owned\x9c\x90q\x9c"
HOSTILE = f"x{TITLE}{CLIPBOARD}{LINK}{DCS}{APC}{MOVES}{C1}\x1b[31mred\b\b\b\x07\x0e\u202edesrever\u202c\u2066y\r\nz"
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# what rich writes of its own: the cursor hidden and shown, lines of a live display drawn over
OWN = re.compile(r"\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\x1b\[2K|\r")

COMMANDS = [
    ["runs"],
    ["runs", "--columns", "uid,name,reason,tag,note,facts.gpu_model,git_commit,job_id"],
    ["show", "aaaaaaaa"],
    ["status", "aaaaaaaa", "dddddddd"],
    ["top", "--once", "aaaaaaaa", "dddddddd"],
    ["runs", "--best"],
    ["show", "aaaaaaaa", "bbbbbbbb", "--curve"],
    ["diff", "aaaaaaaa", "cccccccc", "--all"],
    ["compare"],
    ["peak"],
    ["query", "SELECT * FROM runs"],
    ["tag", "aaaaaaaa", "+more"],
    ["wait", "aaaaaaaa"],
    ["logs", "aaaaaaaa"],
    ["retry", "--dry-run"],
]
ERRORS = [
    ["show", HOSTILE],
    ["runs", "--where", f"{HOSTILE}=1"],
    ["run", f"model={HOSTILE}"],
    ["run", f"experiment='{HOSTILE}'"],
    ["run", f"--{HOSTILE}"],
    ["query", f"SELECT '{HOSTILE}"],
    ["compare", "--by", HOSTILE],
    [HOSTILE],
    ["--home", f"/proc/{HOSTILE}", "run", "workload.command=true"],
]


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user whose runs came from somebody who would like to own the terminal."""
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    for at, (letter, uid) in enumerate(UIDS.items()):
        precision = Precision(name=PrecisionName.fp32 if letter in "ab" else PrecisionName.tf32)
        run_dir = make_run_dir(
            user.home / "runs", uid, seed=at % 2, precision=precision, tags=[HOSTILE], name=HOSTILE, experiment="e"
        )
        raw = json.loads(run_dir.manifest.read_text())
        raw["run"]["experiment"] = HOSTILE
        raw["run"]["model"]["name"] = raw["run"]["data"]["name"] = raw["run"]["objective"]["metric"] = HOSTILE
        raw["run"]["workload"]["env"] = {"A": HOSTILE}
        for key in ("user", "cwd", "submitted_from", "git_commit", "hpcml_version"):
            raw["provenance"][key] = HOSTILE
        raw["provenance"]["command_line"] = ["hpcml", HOSTILE]
        run_dir.manifest.write_text(json.dumps(raw))
        run_dir.logs.mkdir()
        run_dir.stdout(1, 0).write_bytes(HOSTILE.encode() + b"\x9b2J\xff\xc2\n")
        run_dir.stderr(1, 0).write_bytes(HOSTILE.encode() + b"\n")
        Journal(run_dir, writer="launch").event(
            "submitted", scheduler="local", job_id=HOSTILE, job_name=HOSTILE, hostname=HOSTILE
        )
        agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir, t0=T0 + 1)
        agent.event("attempt_started", hostname=HOSTILE)
        agent.event("facts", gpu_model=HOSTILE, hostname=HOSTILE, **{HOSTILE: HOSTILE})
        rank0.event(HOSTILE, text=HOSTILE, **{HOSTILE: HOSTILE})
        rank0.event("problem", what=HOSTILE)
        for step in range(5):
            rank0.metrics(step, step, **{HOSTILE: at + step / 10, f"{HOSTILE}2": 1.0})
        Journal(run_dir, writer="user").event("note", text=HOSTILE, author=HOSTILE)
        state = "FAILED" if letter == "d" else "COMPLETED"
        agent.event("attempt_ended", 10.0, state=state, exit_code=0, wall_s=10.0, reason=HOSTILE, cause=HOSTILE)
    return user


def obeyed(said: str) -> set[str]:
    """Return what a terminal would obey in *said*, beside colours and ends of lines."""
    plain = COLOUR.sub("", said)
    return {each for each in plain if each not in "\n\t" and unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")}


def test_no_command_passes_on_what_a_terminal_would_obey(hpcml: Hpcml) -> None:
    found = {}
    for words in COMMANDS:
        done = hpcml(*words)
        assert "Traceback" not in done.stderr, (words, done.stderr)
        marks = obeyed(done.stdout) | obeyed(done.stderr)
        if words[0] == "logs":
            marks -= {"\r"}
        if marks:
            found[" ".join(words)] = marks

    assert found == {}


def test_no_error_passes_it_on_and_each_is_one_line(hpcml: Hpcml) -> None:
    for words in ERRORS:
        done = hpcml(*words)
        assert done.returncode != 0, words
        assert obeyed(done.stdout + done.stderr) == set(), (words, done.stderr)
        assert "hpcml: " in said_in_one_line(done)


def test_runs_that_cannot_be_compared_are_listed_each_in_a_line_of_its_own(hpcml: Hpcml) -> None:
    for letter in "cd":
        (manifest,) = hpcml.home.glob(f"runs/*/{UIDS[letter]}/run.json")
        raw = json.loads(manifest.read_text())
        raw["run"]["data"]["name"] = f"{HOSTILE} anew"
        manifest.write_text(json.dumps(raw))

    done = hpcml("compare")

    first, *cells, last = done.stderr.splitlines()
    assert first == "hpcml: no two runs differ in precision alone:"
    assert len(cells) == 2
    assert all(re.match(r"  \S+: model=x\\x1b.*\\r\\nz", cell) for cell in cells), cells
    assert last.startswith("launch the missing arms")
    assert obeyed(done.stderr) == set()


@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["show", "aaaaaaaa"],
        ["status", "aaaaaaaa"],
        ["top", "--once", "aaaaaaaa"],
        ["show", "aaaaaaaa", "--curve"],
        ["compare"],
        ["query", "SELECT * FROM runs"],
        ["logs", "aaaaaaaa"],
        ["show", HOSTILE],
    ],
    ids=lambda words: words[0],
)
def test_neither_does_any_on_a_terminal(hpcml: Hpcml, words: list[str]) -> None:
    screen = OnTerminal(hpcml, *words)
    screen.end()

    assert obeyed(OWN.sub("", screen.said)) == set()
    assert "owned" not in screen.said or words[0] != "logs"
