"""What ``hpcml run`` says while it watches, and how one comes back to a run."""

import re

import click

from hpcml.cli.main import COMMANDS, cli
from tests.cli.command_line import Hpcml, program
from tests.warm import Process

REPORTS = """
import hpcml_client, os, time
run = hpcml_client.connect()
run.event("training", steps=9)
for step in (1, 2, 3):
    run.metric("loss", 1 / step, step)
    time.sleep(0.05)
while not os.path.exists("go"):
    time.sleep(0.1)
raise SystemExit("step 4 loss nan")
"""


def until(process: Process, text: str) -> str:
    """Read what *process* prints up to the line with *text*, and return that line."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"it ended without {text!r}")


def test_without_a_terminal_a_line_says_how_far_a_run_is_and_the_end_where_everything_lies(hpcml: Hpcml) -> None:
    process = hpcml.start("run", program(REPORTS))
    begin, running = until(process, " in "), until(process, " running ")
    (hpcml.cwd / "go").touch()
    failed, end = until(process, "FAILED"), until(process, "hpcml show ")

    uid = hpcml.runs()[0]["uid"]
    assert begin.split()[:2] == ["run", uid]
    assert running.startswith(f"{uid}  ")
    for words in ("step 3/9", "loss 0.3333", "steps/s", "left"):
        assert words in running
    assert failed.endswith("FAILED loss 0.3333; exit status 1; last line: step 4 loss nan\n")
    assert f"{uid}\n" in end  # its folder
    process.communicate(timeout=300)
    assert hpcml("show").stdout == hpcml("show", "@1").stdout == hpcml("show", "@-1").stdout


def commands_on_runs() -> list[tuple[str, int]]:
    """Return the commands that take runs by their names, each with how many it needs."""
    found = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        words = [each for each in command.params if isinstance(each, click.Argument) and "RUN" in _names(each)]
        if words:
            found.append((name, len(words)))
    return found


def _names(argument: click.Argument) -> list[str]:
    return re.findall(r"\w+", argument.metavar or "") if "WORDS" not in (argument.metavar or "") else []


MORE = {
    "note": ("words",),
    "tag": ("+x",),
    "export": ("--to", "csv", "-o", "out"),
    "rm": ("-n",),
    "top": ("--once",),
    "read": ("--forget",),
}


def test_every_command_takes_the_newest_run_and_the_last_submission(hpcml: Hpcml) -> None:
    assert hpcml("run", program("import hpcml_client as c; c.connect().metric('val_accuracy', .5, 1)")).returncode == 0
    for name, count in commands_on_runs():
        for reference in ("@1", "@-1"):
            more = tuple(f"{word}{reference[1:]}" if word == "out" else word for word in MORE.get(name, ()))
            done = hpcml(name, *([reference] * count), *more)
            assert not any(word in done.stderr for word in ("Traceback", "@", "no run is called")), (name, done.stderr)

    unknown = [hpcml(name, *(["@7"] * count), *MORE.get(name, ())) for name, count in commands_on_runs()]

    assert {done.stderr for done in unknown} == {"hpcml: @7: there are fewer runs than that\n"}
    assert {done.returncode for done in unknown} == {2}


def test_a_run_whose_agent_was_killed_is_waited_for_no_longer(hpcml: Hpcml) -> None:
    done = hpcml("run", program("import os, signal; os.kill(os.getppid(), signal.SIGKILL)"), timeout_s=60)

    assert done.returncode == 1
    assert "LOST: its agent ended without recording an outcome" in done.stderr
    assert "0 of 1 runs completed" in done.stdout
