"""Commands killed at a chosen moment, and programs that find out whether they are alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from tests import warm
from tests.cli.command_line import Hpcml, program

# Python tells its audit hooks before it changes anything outside of the process: the windows in which a kill matters
# lie between these moments. SQLite and the file descriptors of open files do not pass here.
KILLED = """
import os, signal, sys
told, limit = sys.argv.pop(1), int(sys.argv.pop(1))
seen = 0
changing = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.utime", "os.chmod", "os.truncate",
    "shutil.rmtree", "subprocess.Popen", "os.posix_spawn", "os.fork", "os.kill", "os.killpg",
}
def hook(event, arguments):
    global seen
    is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if event not in changing and not is_write:
        return
    seen += 1
    if seen == limit + 1:  # once: this very call passes here, too
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from hpcml.cli.main import main
try:
    main()
finally:
    limit = 10**9
    with open(told, "w") as file:
        file.write(str(seen))
"""
# Says so where another one of the same run is at work; "in" and "out" of one that was not killed stand side by side
ALONE = """
import os, sys, time
os.chdir(os.environ["HPCML_RUN_DIR"])
def say(word):
    with open("said", "a") as file: file.write(word + " ")
def start_of(pid):
    try:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError: return None
    return None if fields[0] in "ZX" else fields[19]
def holder():
    try: pid, start = open("holder").read().split()
    except (OSError, ValueError): return False
    return start_of(pid) == start
if holder(): say("DOUBLED")
with open("holder", "w") as file: file.write(f"{os.getpid()} {start_of(os.getpid())}")
say("in")
time.sleep(float(sys.argv[1]))
say("out")
os.remove("holder")
"""


# What a process does, by a word of its command line; the first that is found
_DOES = {
    "DOUBLED": "program",
    "hpcml-sampler": "sampler",
    "hpcml-metrics": "reader of metrics",
    "hpcml.agent.main": "agent",
    "hpcml.schedulers.local": "queue",
    "hpcml.cli.main": "command",
}

READERS = (["runs"], ["status"], ["compare", "--by", "seed"], ["sync"], ["show", "--json"])
RETRY = ["retry", "-y", "--cause"]
_NEW_ONES = 0.5  # of the submissions
_SPARED = 0.5  # of the commands that submit
_KILLS_A_ROUND = 5
_LEAST_PAUSE_S = 0.7
_PATIENCE_S = 600


def alone(duration_s: float) -> str:
    """Return the override that makes a program which takes so long, and says in ``said`` what it saw, the user's."""
    return program(ALONE, str(duration_s))


def run_killed(hpcml: Hpcml, limit: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run hpcml with *words* and kill it when it is about to change anything outside of itself once more."""
    told = hpcml.cwd / "changes"
    return warm.run(KILLED, str(told), str(limit), *words, environ=hpcml.environ, cwd=hpcml.cwd, timeout_s=300)


def changes_of(hpcml: Hpcml, *words: str) -> int:
    """Run hpcml with *words* to its end and return how often it changes anything outside of itself."""
    done = run_killed(hpcml, 10**9, *words)
    assert done.returncode == 0, done.stderr
    return int((hpcml.cwd / "changes").read_text())


def said(path: str | Path) -> list[str]:
    """Return what the programs of the run in *path* said."""
    file = Path(path) / "said"
    return file.read_text().split() if file.exists() else []


class Started(Protocol):
    """A command that was started."""

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    def communicate(self) -> object: ...


class Done(Protocol):
    """A command that came to its end."""

    @property
    def returncode(self) -> int: ...


class User(Protocol):
    """Somebody who asks commands, on this machine or on a cluster."""

    @property
    def home(self) -> Path: ...
    def __call__(self, *words: str) -> Done: ...
    def start(self, *words: str) -> Started: ...
    def runs(self) -> list[dict[str, Any]]: ...


def processes_of(home: Path) -> dict[int, str]:
    """Return who works for the user's *home* (queues, agents, programs, samplers, commands), and what each does."""
    mark, within = f"HPCML_HOME={home}".encode(), f"HPCML_RUN_DIR={home}/".encode()  # a program has the second alone
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError):
            environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if mark in environ or any(word.startswith(within) for word in environ):
                words = Path(f"/proc/{name}/cmdline").read_text(errors="replace")
                words += "\0" + Path(f"/proc/{name}/comm").read_text(
                    errors="replace"
                )  # a sampler is a fork of its agent
                does = (what for word, what in _DOES.items() if word in words)
                found[int(name)] = next(does, Path(words.partition("\0")[0]).name)
    return found


def hunt(user: User, sweep: Sequence[str], chance: random.Random, kills: int) -> tuple[list[list[str]], Counter[str]]:
    """Submit *sweep* again and again, each time as an experiment of its own, and kill who takes part at random.

    Return the words of all sweeps, and how many of each kind were killed. Meanwhile other commands are asked.
    """
    user.runs()  # makes the store, and starts what the tests share
    began = time.monotonic()
    user.runs()
    # Each command must have a chance to come to its end, on a busy machine too
    pause_s = max(_LEAST_PAUSE_S, 2 * (time.monotonic() - began))
    sweeps: list[list[str]] = []
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        if not sweeps or chance.random() < _NEW_ONES:
            sweeps.append([*sweep, f"experiment=hunted{len(sweeps)}"])
            words = sweeps[-1]
        else:
            words = chance.choice([[*chance.choice(sweeps), "--missing"], ["sync"], [*RETRY, "unknown"]])
        client, reader = user.start(*words), user.start(*chance.choice(READERS))
        commands = {client.pid: "client", reader.pid: "reader"}
        # A command that always is hunted never comes to its end, and nobody else has work
        spared = client.pid if chance.random() < _SPARED else None
        killed += _kill(lambda: {**processes_of(user.home), **commands}, spared, chance, pause_s)  # noqa: B023
        for process in (client, reader):
            process.communicate()
    return sweeps, killed


def _kill(
    prey: Callable[[], Mapping[int, str]], spared: int | None, chance: random.Random, pause_s: float
) -> Counter[str]:
    """Kill one of *prey*, but not *spared*, after each of some pauses; return what those that were killed did.

    Each kind is as likely as any other, however many there are of it. Nobody is killed, and counted, twice.
    """
    killed: Counter[str] = Counter()
    for _ in range(_KILLS_A_ROUND):
        time.sleep(chance.random() * pause_s)
        living = {pid: does for pid, does in prey().items() if pid != spared and _lives(pid)}
        if living:
            kind = chance.choice(sorted(set(living.values())))
            with suppress(ProcessLookupError):
                os.kill(chance.choice(sorted(pid for pid, does in living.items() if does == kind)), signal.SIGKILL)
                killed[kind] += 1
    return killed


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def until_completed(user: User, sweeps: Sequence[Sequence[str]], runs_each: int) -> list[dict[str, Any]]:
    """Do what a user does in the morning: sync, submit what is missing, retry what failed; return the runs.

    Of each sweep as many runs complete as it has.
    """
    end = time.monotonic() + _PATIENCE_S
    while True:
        assert user("sync").returncode == 0
        for words in sweeps:
            assert user(*words, "--missing").returncode in (0, 1)
        user("wait")
        for cause in ("unknown", "agent_killed", "node_failure", "program", "cancelled", "submission"):
            user(*RETRY, cause)
        user("wait")
        runs = user.runs()
        completed = Counter(run["experiment"] for run in runs if run["state"] == "COMPLETED")
        assert all(count <= runs_each for count in completed.values()), runs
        if completed.total() == runs_each * len(sweeps):
            return runs
        assert time.monotonic() < end, runs


def assert_alone_and_whole(runs: Sequence[Mapping[str, Any]]) -> None:
    """Assert that no program of *runs* met another in its directory, and that the last one came to its end."""
    for run in runs:
        words = said(run["path"])
        assert "DOUBLED" not in words, run
        assert run["state"] != "COMPLETED" or words[-2:] == ["in", "out"], run
