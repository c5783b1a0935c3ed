"""Images of busybox for commands that run inside: what they say of themselves is what hpcml must overrule."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcml.images.command import ENV_PREFIXES
from hpcml.model.container import Bind
from tests.cluster.apptainer.registry import PATH
from tests.cluster.slurm.account import USER, Account
from tests.images.user import LONGEST_S

BUSYBOX = Path("/bin/busybox")
# As NVIDIA's PyTorch image does, and worse.
SWITCHES = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "NVIDIA_TF32_OVERRIDE": "1"}
OF_THE_IMAGE = {**SWITCHES, "PYTHONPATH": "/of/the/image", "PYTHONNOUSERSITE": ""}


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A user, and the image in which commands run."""

    account: Account
    folder: Path
    image: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": PATH, "HOME": str(self.folder)}

    def __call__(self, argv: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the words to their end."""
        done = self.account.run(argv, cwd=self.folder, environ={**self.environ, **variables})
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Start the words in a session of their own, as the agent does."""
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env={**self.account.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            user=USER,
            group=USER,
            extra_groups=[],
        )
        self.started.append(process)
        return process

    def end_all(self) -> None:
        """End what was started and runs on, as it does where a test has failed, and forget it."""
        for process in self.started:
            process.kill()
            process.wait(LONGEST_S)
            if process.stdout is not None:
                process.stdout.close()
        self.started.clear()


def bind(source: str, destination: str | None = None, *, read_only: bool = False) -> Bind:
    return Bind(source=source, destination=destination or source, read_only=read_only)


def make_tree(folder: Path) -> Path:
    """Make the files of an image in *folder*: busybox under all its names."""
    for name in ("bin", "etc", "tmp", "proc", "sys", "dev", "var/tmp", "root", "home", "usr/bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group"):
        (folder / "etc" / name).touch()
    program = folder / "bin" / "busybox"
    program.write_bytes(BUSYBOX.read_bytes())
    program.chmod(0o755)
    listed = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in set(listed) - {"busybox"}:
        (folder / "bin" / name).symlink_to("busybox")
    return folder


def definition(tree: Path, environment: Mapping[str, str]) -> str:
    """Return a definition upon *tree* whose %environment sets the variables."""
    lines = [f"export {name}='{value}'" for name, value in environment.items()]
    return "\n".join(["Bootstrap: localimage", f"From: {tree}", "%environment", *lines, ""])


def make_archive(tree: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    """Return an image of *tree* as a registry has it, whose ENV sets the variables."""
    layout, bundle, archive = folder / "oci", folder / "bundle", folder / "oci.tar"
    settings = [f"--config.env={name}={value}" for name, value in environment.items()]
    for words in (
        ["umoci", "init", "--layout", layout],
        ["umoci", "new", "--image", f"{layout}:t"],
        ["umoci", "unpack", "--rootless", "--image", f"{layout}:t", bundle],
        ["cp", "-a", f"{tree}/.", bundle / "rootfs"],
        ["umoci", "repack", "--image", f"{layout}:t", bundle],
        ["umoci", "config", "--image", f"{layout}:t", *settings],
        ["skopeo", "copy", "--quiet", f"oci:{layout}:t", f"oci-archive:{archive}:t"],
    ):
        subprocess.run(words, check=True, capture_output=True, env={**os.environ, "PATH": PATH})
    return archive


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of a session."""

    pid: int
    name: str
    group: int
    catches_usr1: bool


def session(leader: int) -> dict[str, Process]:
    """Return the processes of a session by name."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            before, _, after = (path / "stat").read_text().rpartition(")")
            status = (path / "status").read_text()
        except OSError:
            continue  # it has ended
        fields = after.split()
        if int(fields[3]) == leader and fields[0] != "Z":
            caught = int(status.split("SigCgt:")[1].split()[0], 16)
            name = before.partition("(")[2]
            usr1 = bool(caught >> (signal.SIGUSR1 - 1) & 1)
            one = Process(pid=int(path.name), name=name, group=int(fields[2]), catches_usr1=usr1)
            # The oldest of a name: a shell's child has the shell's name until it becomes another program.
            found[name] = min(one, found.get(name, one), key=lambda process: process.pid)
    return found


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Return what *process* prints up to the line *word*."""
    assert process.stdout is not None
    lines = [""]
    impatience = threading.Timer(LONGEST_S, process.kill)  # which ends a wait for a line that never comes
    impatience.start()
    for line in process.stdout:
        lines.append(line)
        if line.strip() == word:
            break
    impatience.cancel()
    assert lines[-1].strip() == word, lines
    return "".join(lines)


def prefixed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the runtime sets *environment* inside the container, for both programs."""
    return {prefix + name: value for name, value in environment.items() for prefix in ENV_PREFIXES}
