"""A real PostgreSQL for the tests, in a folder of its own and on a unix socket alone.

One that is here already is neither used nor touched. PostgreSQL refuses to be root, so root starts it as an ordinary
user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USER = "hpcuser"
SUPERUSER = "postgres"
_BINARIES = "/usr/lib/postgresql"  # Debian keeps those of a server off PATH
_START_TIMEOUT_S = 300
_SETTINGS = (
    "listen_addresses = ''",
    "max_connections = 60",
    "shared_buffers = 16MB",
    "max_wal_size = 128MB",
    # a crash of this machine may cost what is only a test's; a server that is killed loses nothing
    "fsync = off",
    "full_page_writes = off",
    "autovacuum = off",  # of databases that live for seconds
    "jit = off",
    "log_min_messages = warning",
)


def binaries() -> Path | None:
    """Return the folder of the newest server's programs."""
    versions = [path for path in Path(_BINARIES).glob("*/bin") if (path / "initdb").exists()]
    on_path = shutil.which("initdb")
    newest = max(versions, key=lambda path: float(path.parent.name), default=None)
    return newest or (Path(on_path).parent if on_path else None)


def missing() -> str | None:
    """Say what this machine lacks for a server, or return None."""
    lacking = [] if binaries() else ["postgresql"]
    lacking += [] if shutil.which("setpriv") else ["setpriv (util-linux)"]
    return f"not installed: {', '.join(lacking)}" if lacking else None


@dataclass(slots=True)
class Server:
    """A server; its socket and its data lie below *folder*. It dies with the process that started it."""

    folder: Path
    _process: subprocess.Popen[bytes] | None = None

    def url(self, database: str, *, user: str = SUPERUSER, options: str = "") -> str:
        """Return what leads to *database*."""
        return f"postgresql+psycopg://{user}@/{database}?host={self.folder}{options}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Do as superuser what *statement* says, and return what came of it."""
        programs = binaries()
        assert programs is not None
        words = [str(programs / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", str(self.folder)]
        done = subprocess.run(
            [*words, "-U", SUPERUSER, "-d", database, "-c", statement], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self) -> None:
        """Start it, with its data as they are, and return once it answers."""
        programs = binaries()
        assert programs is not None
        words = [str(programs / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        self._process = start_as_user(["setpriv", "--pdeathsig", "QUIT", *words], self.folder / "log")
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        asks = [str(programs / "pg_isready"), "-q", "-h", str(self.folder)]
        while subprocess.run(asks, check=False).returncode:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < give_up_at, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it: SIGQUIT as if it were killed, SIGINT with its clients, cleanly."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_START_TIMEOUT_S)
            self._process = None


def start_as_user(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start *words* as somebody who may be a server: the ordinary user if this is root."""
    become: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    environ = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8"}
    with log.open("ab") as told:
        return subprocess.Popen(
            words, cwd="/", env=environ, stdin=subprocess.DEVNULL, stdout=told, stderr=told, **become
        )


@contextmanager
def running() -> Iterator[Server]:
    """Start a new server, and remove it with all that it had."""
    programs = binaries()
    assert programs is not None
    if os.geteuid() == 0:
        _ensure_user()
    # not below tmp_path, which is root's alone; and the path of a socket must be short
    with tempfile.TemporaryDirectory(prefix="hpcml-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, USER, USER)
        folder.chmod(0o755)
        data = folder / "data"
        # a language whose order of letters differs from that of their numbers, as most sites' servers speak one
        speaks = ["--encoding=UTF8", "--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8"]
        words = ["-D", str(data), "-U", SUPERUSER, "-A", "trust", "--no-sync", *speaks]
        made = start_as_user([str(programs / "initdb"), *words], folder / "log")
        assert made.wait(_START_TIMEOUT_S) == 0, (folder / "log").read_text()
        with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write("\n".join(_SETTINGS) + "\n")
        server = Server(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _ensure_user() -> None:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["/usr/sbin/useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)
