"""A real Slurm on this machine for the tests, by hand too: ``python -m tests.cluster.slurm.cluster start|stop|...``.

Everything is below one folder and on the loopback interface: a Slurm, MariaDB or munge that is here already is
neither used nor touched. Needs root and Debian's packages (`make services`); its users set SLURM_CONF.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.slurm import configuration

ROOT = Path("/srv/hpcml-slurm")
USER = "hpcuser"
_PROGRAMS = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "sbatch",
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "setpriv",
    "setsid",
)
_FOLDERS = {  # folder -> who owns it
    "etc": "root", "run": "slurm", "log": "slurm", "state": "slurm", "spool": "root", "dev": "root",
    "munge": "munge", "mysql": "mysql", "pmix": "root",
}  # fmt: skip
_NVIDIA_MAJOR = 195
_UP = ("idle", "mixed", "allocated", "completing")
_HOSTS = Path("/etc/hosts")
_MARK = "# hpcml's Slurm test cluster"
_START_TIMEOUT_S = 180
_STOP_TIMEOUT_S = 60


def missing() -> str | None:
    """Say what this machine lacks for a cluster, or return None."""
    if os.geteuid() != 0:
        return "the Slurm test cluster is started by root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The daemons whose files are below *root*."""

    root: Path = ROOT

    @property
    def environ(self) -> dict[str, str]:
        """What a client of this cluster needs in its environment, and a `PATH` that has the daemons."""
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SLURM_CONF": str(self.root / "etc" / "slurm.conf"),
            "MYSQL_UNIX_PORT": str(self.root / "mysql" / "socket"),
            "LC_ALL": "C.UTF-8",
        }

    def start(self) -> None:
        """Start what does not run yet and return once all nodes take jobs; raises `RuntimeError` if they never do."""
        self._write_files()
        self._start_munge()
        self._start_database()
        self.start_accounting()
        self._fill_accounting()
        self.start_controller()
        for node in configuration.NODES:
            self._start_slurmd(node)
        self._wait("the nodes", self._nodes_are_up)
        _name_nodes(configuration.NODES)

    def stop(self) -> None:
        """Stop what `start` started, known by the pid files below *root*; jobs that still run are killed first."""
        if self.is_up():
            self._succeeds("scancel", "--user", USER)
            with suppress(RuntimeError):
                self._wait("jobs to end", lambda: not self._output("squeue", "--noheader"), timeout_s=30)
        for node in configuration.NODES:
            self._end(f"slurmd-{node}", "slurmd")
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self._end(name, name)
        _name_nodes(())

    def is_up(self) -> bool:
        """Tell whether the controller answers."""
        return self.pid("slurmctld", "slurmctld") is not None and "is UP" in self._output("scontrol", "ping")

    def start_controller(self) -> None:
        """Start slurmctld, alone."""
        self._daemon("slurmctld", user="slurm")
        self._wait("slurmctld", self.is_up)

    def stop_controller(self) -> None:
        """Stop slurmctld, alone; jobs go on."""
        self._end("slurmctld", "slurmctld")

    def start_accounting(self) -> None:
        """Start slurmdbd, alone."""
        self._daemon("slurmdbd", user="slurm")
        self._wait("slurmdbd", lambda: self._succeeds("sacctmgr", "-n", "list", "cluster"))

    def stop_accounting(self) -> None:
        """Stop slurmdbd, alone: sacct fails, jobs come and go, and the accounting hears of them later."""
        self._end("slurmdbd", "slurmdbd")

    def fail_node(self, node: str) -> None:
        """Let *node* die as one without power does: its slurmd, and all that it started there.

        Slurm misses it after SlurmdTimeout (20 s), and then fails or requeues its jobs.
        """
        log = self.root / "log" / f"slurmd-{node}.log"  # by which the processes of one node are told from another's
        shepherds = [pid for pid, words in _processes() if words[0].startswith("slurmstepd") and _holds(pid, log)]
        doomed = [*shepherds, *(child for pid in shepherds for child in _descendants(pid))]
        if (pid := self.pid(f"slurmd-{node}", "slurmd")) is not None:
            doomed.insert(0, pid)
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def restore_node(self, node: str) -> None:
        """Bring *node* back, whatever state Slurm keeps it in."""
        self._start_slurmd(node)
        self._succeeds("scontrol", "update", f"NodeName={node}", "State=RESUME")  # refused where nothing is amiss
        self._wait(node, lambda: self._output("sinfo", "-h", "-N", "-n", node, "-o", "%T").partition("\n")[0] in _UP)

    def pid(self, name: str, program: str) -> int | None:
        """Return the pid in the pid file *name*, if it is still that of a *program*."""
        try:
            number = int((self.root / "run" / f"{name}.pid").read_text(encoding="ascii"))
            command = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")[0].decode()
        except (OSError, ValueError):
            return None
        return number if Path(command).name.startswith(program) else None

    def _write_files(self) -> None:
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name, owner in _FOLDERS.items():
            folder = self.root / name
            folder.mkdir(mode=0o755, exist_ok=True)
            shutil.chown(folder, owner, pwd.getpwnam(owner).pw_gid)
        for node in configuration.NODES:
            (self.root / "spool" / node).mkdir(exist_ok=True)
            (self.root / "pmix" / node).mkdir(exist_ok=True)
            (self.root / "pmix" / node).chmod(0o1777)
        for number in range(configuration.GPUS):
            device = self.root / "dev" / f"gpu{number}"
            if not device.exists():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(_NVIDIA_MAJOR, number))
                device.chmod(0o666)
        etc, cgroup = self.root / "etc", Path("/sys/fs/cgroup/devices").is_dir()
        host = socket.gethostname().partition(".")[0]
        (etc / "slurm.conf").write_text(configuration.slurm_conf(self.root, host=host, cgroup=cgroup))
        (etc / "gres.conf").write_text(configuration.gres_conf(self.root))
        (etc / "cgroup.conf").write_text(configuration.cgroup_conf())
        dbd = etc / "slurmdbd.conf"
        dbd.write_text(configuration.slurmdbd_conf(self.root))
        dbd.chmod(0o600)  # slurmdbd insists
        shutil.chown(dbd, "slurm")
        try:
            pwd.getpwnam(USER)
        except KeyError:
            subprocess.run(["/usr/sbin/useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)

    def _start_munge(self) -> None:
        if self.pid("munged", "munged") is not None:
            return
        folder = self.root / "munge"
        key = folder / "key"
        if not key.exists():
            key.write_bytes(os.urandom(128))
            key.chmod(0o400)
            shutil.chown(key, "munge")
        # munged wants its pid file where only it may write; a link puts it beside the others
        self._link("munged", folder / "pid")
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._run("munged", "--force", *(f"--{word}={folder / name}" for word, name in files.items()), user="munge")

    def _start_database(self) -> None:
        folder = self.root / "mysql"
        if not (folder / "data").exists():
            self._run(
                "mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={folder / 'data'}", "--skip-test-db"
            )
        if self.pid("mariadbd", "mariadbd") is None:
            self._link("mariadbd", folder / "pid")
            self._run(
                *("setsid", "--fork", "mariadbd", "--no-defaults", "--user=mysql", "--skip-networking"),
                *(f"--datadir={folder / 'data'}", f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}"),
                *("--skip-log-bin", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"),
                # Nothing here must survive a power cut
                *("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"),
            )
        self._wait("mariadbd", lambda: self._succeeds("mariadb-admin", "--no-defaults", "ping"))
        self._run(
            *("mariadb", "--no-defaults", "--execute"),
            "CREATE DATABASE IF NOT EXISTS slurm_acct_db;"
            "CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;"
            "GRANT ALL ON slurm_acct_db.* TO slurm@localhost;",
        )

    def _fill_accounting(self) -> None:
        if self._output("sacctmgr", "-n", "list", "assoc", f"user={USER}", "format=user"):
            return
        add = ("sacctmgr", "-i", "-Q", "add")
        self._succeeds(*add, "cluster", "hpcml")  # fails where it is there already, from a start that was cut short
        self._succeeds(*add, "account", configuration.ACCOUNT, "Description=tests", "Organization=hpcml")
        self._run(*add, "user", USER, f"Account={configuration.ACCOUNT}", f"DefaultAccount={configuration.ACCOUNT}")

    def _nodes_are_up(self) -> bool:
        return (
            len(self._output("sinfo", "-h", "-N", "-t", "idle,mix,alloc", "-o", "%N", "-p", "qcpu,qgpu").split()) >= 3
        )

    def _start_slurmd(self, node: str) -> None:
        if self.pid(f"slurmd-{node}", "slurmd") is None:
            self._run("slurmd", "-N", node)

    def _link(self, name: str, target: Path) -> None:
        link = self.root / "run" / f"{name}.pid"
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def _daemon(self, program: str, *, user: str) -> None:
        if self.pid(program, program) is None:
            self._run(program, user=user)

    def _run(self, *argv: str, user: str | None = None) -> None:
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        with (self.root / "log" / "start.log").open("ab") as log:  # a daemon keeps its output open: never a pipe
            subprocess.run(
                [*who, *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                check=True,
                timeout=180,
            )

    def _output(self, *argv: str) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, env=self.environ, check=False, timeout=120)
        return done.stdout.strip()

    def _succeeds(self, *argv: str) -> bool:
        done = subprocess.run(argv, capture_output=True, env=self.environ, check=False, timeout=120)
        return done.returncode == 0

    def _wait(self, what: str, ready: Callable[[], bool], *, timeout_s: float = _START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {timeout_s:g} s for {what}: see {self.root / 'log'}")
            time.sleep(0.1)

    def _end(self, name: str, program: str) -> None:
        for number, patience_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, 5)):
            pid = self.pid(name, program)
            if pid is None:
                return
            os.kill(pid, number)  # SIGKILL second: a slurmd that cannot register ignores SIGTERM
            with suppress(RuntimeError):
                self._wait(f"{name} to end", lambda: self.pid(name, program) is None, timeout_s=patience_s)


def _name_nodes(names: Collection[str]) -> None:
    """Let *names*, and none of before, stand for this machine: what meets at MASTER_ADDR looks a node's name up."""
    lines = [line for line in _HOSTS.read_text(encoding="utf-8").splitlines() if not line.endswith(_MARK)]
    if names:
        lines.append(f"127.0.0.1 {' '.join(names)} {_MARK}")
    # Written over, not replaced: in a container it is a mount
    _HOSTS.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(entry.name), [Path(words[0].partition(":")[0]).name, *words[1:]]


def _holds(pid: int, path: Path) -> bool:
    """Tell whether a process has the file open."""
    with suppress(OSError):
        return any(link.readlink() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def main(words: Sequence[str]) -> int:
    """Do what the one word says; return the exit status."""
    cluster = Cluster()
    match list(words):
        case ["start"]:
            if reason := missing():
                sys.stderr.write(f"{reason}\n")
                return 1
            cluster.start()
            sys.stdout.write(f"export SLURM_CONF={cluster.environ['SLURM_CONF']}\n")
        case ["stop"]:
            cluster.stop()
        case ["status"]:
            subprocess.run(["sinfo"], env=cluster.environ, check=False)
            return 0 if cluster.is_up() else 1
        case _:
            sys.stderr.write("usage: python -m tests.cluster.slurm.cluster start|stop|status\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
