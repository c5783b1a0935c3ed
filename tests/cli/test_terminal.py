"""What happens only on a terminal, tried on a real one."""

import os
import pty
import shlex
import subprocess
import time
from pathlib import Path

from tests.cli.command_line import HPCML, Hpcml, program


def talk(hpcml: Hpcml, words: list[str], *, prompt: str, answer: str) -> tuple[int, str]:
    """Run hpcml on a terminal, type *answer* once *prompt* is there, and return its exit code and all it said."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*HPCML, *words], env=hpcml.environ, cwd=hpcml.cwd, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said, answered, end = "", False, time.monotonic() + 300
    while time.monotonic() < end:
        try:
            piece = os.read(ours, 4096).decode(errors="replace")
        except OSError:  # Linux's way to say that nobody is at the other end any more
            break
        said += piece
        if prompt in said and not answered:
            os.write(ours, f"{answer}\n".encode())
            answered = True
    os.close(ours)
    return process.wait(timeout=300), said


def test_an_account_is_asked_for_and_is_not_remembered(hpcml: Hpcml, tmp_path: Path) -> None:
    words = ["run", "+cluster=karolina", program("pass")]
    environ = {**hpcml.environ, "PATH": str(tmp_path)}  # no Slurm here: nothing is submitted after the question

    code, said = talk(Hpcml(environ, hpcml.cwd), words, prompt="Account to charge on karolina", answer="OPEN-7-7")

    assert code == 3, said
    assert not (Path(environ["HOME"]) / ".config").exists()


def test_a_terminal_shows_each_run(hpcml: Hpcml) -> None:
    report = "import hpcml_client as c; r = c.connect(); r.metric('val_accuracy', 0.5, 1)"

    code, said = talk(hpcml, ["run", "-m", program(report), "seed=0,1"], prompt="\0", answer="")

    assert code == 0, said
    assert "seed=0" in said
    assert "COMPLETED" in said
    assert "2 of 2 runs completed" in said


def test_a_terminal_shows_how_many_of_many_run_directories_were_read(hpcml: Hpcml) -> None:
    for number in range(1000):
        (folder := hpcml.home / "runs" / "default" / f"20260528-202640-{number:08}").mkdir(parents=True)
        (folder / "run.json").touch()  # which says nothing: that is faster than a run

    piped = hpcml("sync")
    code, said = talk(hpcml, ["sync"], prompt="\0", answer="")

    assert code == 1, said
    assert "reading 1000 run directories" in said
    assert "100%" in said
    assert "reading 1000" not in piped.stdout + piped.stderr


def test_with_a_closed_input_nobody_is_asked(hpcml: Hpcml) -> None:
    assert hpcml("run", program("pass")).returncode == 0
    line = f"{shlex.join(HPCML)} rm @1 <&-"

    done = subprocess.run(["bash", "-c", line], env=hpcml.environ, cwd=hpcml.cwd, capture_output=True, check=False)

    assert b"There is nobody here to ask" in done.stderr
    assert b"Traceback" not in done.stderr
