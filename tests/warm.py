"""A Python that has imported hpcml, or a framework, and forks: a program starts at once, and is a process of its own.

The program, its words, environment, folder and the ends of its pipes come through a socket; what is left of the start
of Python and of the imports is a fork. Whatever the program changes (handlers, the environment, Hydra's globals) ends
with it; it has a pid, can be killed and has an exit code, as any other. What it does not show is whether a module
imports all that it needs, nor what depends on the order of Python's sets: `make test-full` starts a new Python each
time.

`python -m tests.warm FD` is that Python, and with the names of modules one that has imported these instead; it ends
when nobody has the other end of the socket FD any more.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from tests.effort import is_full

ROOT = Path(__file__).resolve().parents[1]
_LONGEST = 1 << 17  # bytes of a request: the kernel takes a message whole, up to about 200 KiB
_OF_PYTHON = ("PYTHON", "LD_", "LC_", "LANG")  # read when a Python starts: who changes these needs a new one
_MET_LATER = ("psycopg", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite", "plotly.graph_objects")
_OVERRIDES = [  # of each kind one
    *("a=1", "a=1.5", "a=null", "a=true", "a=x-y_z:%.w/u", "a.b='x y'", "+a=[1,2]", "++a={b:1,c:d}", "~a"),
    *("a/b=c", "a@b.c=d", "a=0,1,2", "a=range(3)", "a='[{pattern: x, name: x}]'"),
]
_one_at_a_time = threading.Lock()  # tests ask from threads, too


def start(
    code: str,
    *words: str,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stderr: int | None = subprocess.PIPE,
) -> Process:
    """Start `python -c CODE WORDS`, with pipes as stdin and stdout; where *stderr* is None, it is ours."""
    environ = os.environ if environ is None else environ
    if is_full() or not _is_like_ours(environ):
        command, pipe = [sys.executable, "-c", code, *words], subprocess.PIPE
        return subprocess.Popen(command, env=environ, cwd=cwd, stdin=pipe, stdout=pipe, stderr=stderr, text=True)
    return Forked(_server(os.getpid()), code, words, environ=environ, cwd=cwd or Path.cwd(), stderr=stderr)


def run(
    code: str, *words: str, environ: Mapping[str, str], cwd: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `python -c CODE WORDS` to its end, with an end of file on stdin, and return what it said."""
    with start(code, *words, environ=environ, cwd=cwd) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess([*words], process.wait(), out, err)


class Forked:
    """A program that was started; what `subprocess.Popen` has of the same name does the same."""

    def __init__(
        self,
        server: socket.socket,
        code: str,
        words: Sequence[str],
        *,
        environ: Mapping[str, str],
        cwd: Path,
        stderr: int | None,
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._ended, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # pid and status stay apart
        stdin, stdout, err = os.pipe(), os.pipe(), os.pipe() if stderr == subprocess.PIPE else (None, os.dup(2))
        request = {"code": code, "words": list(words), "environ": dict(environ), "cwd": str(cwd)}
        with theirs, _one_at_a_time:
            fds = [theirs.fileno(), stdin[0], stdout[1], err[1]]
            socket.send_fds(server, [json.dumps(request).encode()], fds)
            for fd in fds[1:]:
                os.close(fd)
        self.stdin: TextIO | None = open(stdin[1], "w", encoding="utf-8")  # noqa: SIM115, PTH123 - a pipe
        self.stdout: TextIO | None = open(stdout[0], encoding="utf-8")  # noqa: SIM115, PTH123
        self.stderr: TextIO | None = None if err[0] is None else open(err[0], encoding="utf-8")  # noqa: SIM115, PTH123
        self.pid = int(self._ended.recv(32))

    def poll(self) -> int | None:
        """Return the exit code, or None while it goes on."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; that of a signal is below 0."""
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(int(self._ended.recv(32)))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._ended.close()
        return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        """Write *input*, read all that it says, and wait for its end."""
        said: dict[str, str] = {}
        readers = [
            threading.Thread(target=lambda name=name, pipe=pipe: said.update({name: pipe.read()}), daemon=True)  # type: ignore[misc]
            for name, pipe in {"out": self.stdout, "err": self.stderr}.items()
            if pipe is not None and not pipe.closed
        ]
        for reader in readers:
            reader.start()
        try:
            if self.stdin is not None and not self.stdin.closed:
                with self.stdin:
                    self.stdin.write(input or "")
        except BrokenPipeError:  # it did not wait for it
            pass
        give_up_at = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.join(None if give_up_at is None else max(0.0, give_up_at - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if give_up_at is None else max(0.01, give_up_at - time.monotonic()))
        self._close()
        return said.get("out", ""), said.get("err", "")

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self.wait()

    def _close(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


Process = subprocess.Popen[str] | Forked


def _is_like_ours(environ: Mapping[str, str]) -> bool:
    names = {name for name in {*os.environ, *environ} if name.startswith(_OF_PYTHON)}
    return all(os.environ.get(name) == environ.get(name) for name in names)


@functools.cache
def _server(pid: int) -> socket.socket:  # noqa: ARG001 - one for each process of pytest, also for one that was forked
    return serve([sys.executable, "-m", "tests.warm"], [], os.environ)


def serve(python: Sequence[str], modules: Sequence[str], environ: Mapping[str, str]) -> socket.socket:
    """Start a Python that imports *modules* (none: hpcml's) and then forks; return what `Forked` asks it through."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [*python, str(theirs.fileno()), *modules]
    environ = {**environ, "OPENBLAS_NUM_THREADS": "1"}  # its threads would not live on in what is forked
    started = subprocess.Popen(words, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    started.returncode = 0  # it ends by itself, after the last who can ask: nobody waits for it
    theirs.close()
    atexit.register(ours.close)
    return ours


def _import_all() -> None:
    package = importlib.import_module("hpcml")
    for found in pkgutil.walk_packages(package.__path__, "hpcml."):
        if ".migrations" not in found.name and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for name in _MET_LATER:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    _prepare_hydra()


def _prepare_hydra() -> None:
    """Have done once what each process of `hpcml run` does anew, and which depends on nothing but the code.

    That is a third of composing: the schema of a run, and what the parsers of Hydra and of OmegaConf learn of their
    grammars from the first words that they read.
    """
    importlib.import_module("hpcml.config.schema").register()
    parsers = importlib.import_module("hydra.core.override_parser.overrides_parser")
    parsers.OverridesParser.create().parse_overrides(_OVERRIDES)
    for value in ("${a.b}", "${a}-${b.c}", "x${oc.env:HOME,/x}"):
        importlib.import_module("omegaconf.grammar_parser").parse(value)


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request and tell each one's end; return in each child, and None once nobody can ask any more."""
    going: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    wake.setblocking(False)  # noqa: FBT003 - its signature
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                woken.recv(1 << 12)
                _tell_ends(going)
            if control not in ready:
                continue
            data, fds, _, _ = socket.recv_fds(control, _LONGEST, 4)
            if not data:
                return None
            asking = socket.socket(fileno=fds[0])
            pid = _fork()
            if not pid:
                break
            going[pid] = asking
            asking.send(str(pid).encode())
            for fd in fds[1:]:
                os.close(fd)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for other in (control, asking, woken, wake, *going.values()):
        other.close()
    request: dict[str, Any] = json.loads(data)
    return request, fds[1:]


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's of threads: those here know of forks
        return os.fork()


def _tell_ends(going: dict[int, socket.socket]) -> None:
    while going:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with going.pop(pid) as asking:
            try:
                asking.send(str(status).encode())
            except BrokenPipeError:  # who asked does not want to know
                continue


def _become(request: dict[str, Any], fds: Sequence[int]) -> None:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    time.tzset()
    tempfile.tempdir = None  # asked for again
    sys.argv = ["-c", *request["words"]]
    sys.path[0] = ""  # as with `python -c`


class _End:
    """The end of a program without the teardown of all modules: that of the process is enough, and six times faster."""

    def __init__(self) -> None:
        self.code: int | None = None

    def leave(self) -> None:
        """Be the last that happens at exit."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self.code is not None:
            os._exit(self.code)

    def of(self, code: str) -> None:
        """Execute *code* as a program."""
        try:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - what a test wrote
            self.code = 0
        except SystemExit as ended:
            self.code = 0 if ended.code is None else ended.code if isinstance(ended.code, int) else 1
            raise
        except Exception:
            self.code = 1
            raise


if __name__ == "__main__":
    end = _End()
    atexit.register(end.leave)  # the first is the last
    for module in sys.argv[2:]:
        importlib.import_module(module)
    if not sys.argv[2:]:
        _import_all()
    gc.collect()
    gc.freeze()  # what is there already is nobody's to look through
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked:
        _become(*asked)
        end.of(asked[0]["code"])
