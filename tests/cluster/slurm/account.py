"""An ordinary user for jobs, with a Python and a copy of the sources: root's own are often closed to others."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import pwd
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from tests.cluster.slurm.cluster import USER, Cluster

P = ParamSpec("P")
R = TypeVar("R")

REPOSITORY = Path(__file__).resolve().parents[3]
_COPIED = (
    "hpcml",
    "hpcml_client",
    "hpcml_train",
    "conf",
    "recipes",
    "containers",
    "tests/images",
    "tests/schedulers",
    "tests/cluster",
)
_LONGEST_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Runs programs as the user who may submit to *cluster*."""

    cluster: Cluster
    python: Path
    sources: Path

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a fresh login."""
        home = pwd.getpwnam(USER).pw_dir
        path = f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin"
        words = {"HOME": home, "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash", "PATH": path, "LANG": "C.UTF-8"}
        return {**words, "SLURM_CONF": self.cluster.environ["SLURM_CONF"], "PYTHONPATH": str(self.sources)}

    def new_folder(self) -> Path:
        """Return a new folder that belongs to the user and that every node sees."""
        work = self.cluster.root / "work"
        work.mkdir(mode=0o755, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=work))
        shutil.chown(folder, USER, USER)
        return folder

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str] | None = None,
        input: bytes | None = None,  # noqa: A002 - subprocess's word
    ) -> subprocess.CompletedProcess[bytes]:
        """Run *argv* as the user; *environ* is added to that of a fresh login."""
        return subprocess.run(
            argv,
            cwd=cwd,
            env={**self.environ, **(environ or {})},
            input=input,
            capture_output=True,
            timeout=_LONGEST_S,
            check=False,
            user=USER,
            group=USER,
            extra_groups=[],
        )

    def start(self, argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start *argv* as the user, who hears nothing of it; *environ* is as in `run`."""
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=USER,
            group=USER,
            extra_groups=[],
        )

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function of a module as the user; what it returns or raises comes back."""
        return self.call_in({}, function, *args, **kwargs)

    def call_in(self, environ: Mapping[str, str], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do `call` with *environ* added to that of a fresh login."""
        words = pickle.dumps((function.__module__, function.__qualname__, args, kwargs))
        program = [str(self.python), "-m", "tests.cluster.slurm.account"]
        done = self.run(program, cwd=Path("/"), environ=environ, input=words)
        if done.returncode != 0:
            raise RuntimeError(f"{function.__qualname__}: {done.stderr.decode(errors='replace')}")
        outcome = pickle.loads(done.stdout)  # noqa: S301 - written by ourselves
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]


def prepare(cluster: Cluster) -> Account:
    """Return the account with its own copy of the sources as they are now; its Python is kept for the next time."""
    (cluster.root / "sources").mkdir(mode=0o755, exist_ok=True)
    sources = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=cluster.root / "sources"))
    sources.chmod(0o755)
    for name in _COPIED:
        shutil.copytree(REPOSITORY / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    return Account(cluster=cluster, python=_python(cluster), sources=sources)


def _python(cluster: Cluster) -> Path:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    constraints = REPOSITORY / "constraints.txt"
    wanted: list[str] = [*project["dependencies"], *project["optional-dependencies"]["tune"]]
    mark = hashlib.sha256(repr((wanted, constraints.read_text(encoding="utf-8"))).encode()).hexdigest()[:8]
    folder = cluster.root / f"venv-{mark}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([_open_interpreter(), "-m", "venv", str(folder)], check=True, capture_output=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "--constraint", str(constraints), *wanted], check=True)
        (folder / "complete").touch()
    return folder / "bin" / "python"


def _open_interpreter() -> str:
    """Return a Python that the user may run; that of a version manager lies in a home that is closed."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in ("/usr/bin/python3", "/usr/local/bin/python3", os.path.realpath(sys.executable)):
        with suppress(OSError):
            done = subprocess.run([python, "-c", check], user=USER, group=USER, extra_groups=[], check=False)
            if done.returncode == 0:
                return python
    raise RuntimeError(f"no Python 3.11 or newer that {USER} may run: install python3 and python3-venv")


def _answer() -> None:

    module, name, args, kwargs = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - written by `call_in`
    try:
        outcome = getattr(importlib.import_module(module), name)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the caller gets it
        error.__cause__ = error.__context__ = None
        outcome = error
    sys.stdout.buffer.write(pickle.dumps(outcome))


if __name__ == "__main__":
    _answer()
