"""A registry on the loopback interface in NVIDIA's place, and the small images that tests find in it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX = Path("/opt/hpcml-apptainer")
PATH = f"{PREFIX}/usr/bin:/usr/local/bin:/usr/bin:/bin"
KEY = "nvapi-a-key-that-nothing-may-print-4711"
_USER = "$oauthtoken"  # literally, as at NGC
# bcrypt of KEY, the one form that docker-registry reads (made by crypt(3)).
_HTPASSWD = f"{_USER}:$2b$04$1d12styyQ.rHK/45PZPSmuZPgNVWDLGPc0/8reIaMBqlz6mDZPP3O\n"
_PROGRAMS = ("umoci", "skopeo", "docker-registry", "mksquashfs", "newuidmap")
_BUSYBOX = Path("/bin/busybox")
_APPLETS = (
    "sh",
    "ls",
    "cat",
    "echo",
    "sleep",
    "mkdir",
    "id",
    "env",
    "dd",
    "rm",
    "true",
    "false",
    "test",
    "grep",
    "head",
)
_SAYS = '#!/bin/sh\necho "${0##*/} $*" 2>/dev/null >>/said || true\n'
_START_TIMEOUT_S = 180


def missing() -> str | None:
    """Say what this machine lacks for images of its own, or return None."""
    if os.geteuid() != 0:
        return "the tests of images begin as root and go on as an ordinary user"
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=f"{PATH}:/usr/sbin:/sbin") is None]
    lacking += [str(path) for path in (PREFIX / "complete", _BUSYBOX) if not path.exists()]
    return f"not installed: {', '.join(lacking)} (tests/cluster/apptainer/provision.sh)" if lacking else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A registry that runs."""

    host: str  # 127.0.0.1:41234
    needs_login: bool
    folder: Path

    @property
    def url(self) -> str:
        """What container.registry has to be."""
        return f"http://{self.host}"

    def push(self, layout: Path, tag: str, name: str) -> None:
        """Put *tag* of the OCI layout *layout* under *name*, as nvidia/pytorch:24.12-py3."""
        login = ["--dest-creds", f"{_USER}:{KEY}"] if self.needs_login else []
        words = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", *login]
        _run([*words, f"oci:{layout}:{tag}", f"docker://{self.host}/{name}"], cwd=layout.parent)


@contextmanager
def running(folder: Path, *, needs_login: bool) -> Iterator[Registry]:
    """Run a registry that keeps its images in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    auth = ""
    if needs_login:
        (folder / "htpasswd").write_text(_HTPASSWD, encoding="utf-8")
        auth = f"auth: {{htpasswd: {{realm: ngc, path: {folder}/htpasswd}}}}\n"
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: warn}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/storage}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n{auth}",
        encoding="utf-8",
    )
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log, env=_environ(folder)
        )
    try:
        _wait_for(port, process, folder)
        yield Registry(host=f"127.0.0.1:{port}", needs_login=needs_login, folder=folder)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(300)


def make_base(
    folder: Path, *, words: str = "", says: Sequence[str] = ("python3",), architecture: str | None = None
) -> Path:
    """Make an OCI layout with the tag `base`: Busybox, and a file that says *words*; return its path.

    Programs named in *says* do nothing but write into /said, where they may, how they were called.
    *architecture* is what the image says of itself, None this machine's.
    """
    layout, bundle, umoci = folder / "oci", folder / "bundle", ["umoci"]
    _unpack_new(layout, bundle)
    root = bundle / "rootfs"
    for name in ("bin", "tmp", "etc", "proc", "sys", "dev", "root", "var", "usr"):
        (root / name).mkdir(exist_ok=True)
    shutil.copy(_BUSYBOX, root / "bin" / "busybox")
    for name in _APPLETS:
        (root / "bin" / name).symlink_to("busybox")
    for name in says:
        program = root / "bin" / name
        program.write_text(_SAYS, encoding="utf-8")
        program.chmod(0o755)
    query = root / "bin" / "dpkg-query"  # as Debian's answers
    query.write_text("#!/bin/sh\necho 'deb:busybox\t1:1.36'\n", encoding="utf-8")
    query.chmod(0o755)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n", encoding="utf-8")
    (root / "etc" / "words").write_text(words, encoding="utf-8")
    _run([*umoci, "repack", "--image", f"{layout}:base", str(bundle)], cwd=folder)
    configure(layout, "PATH=/bin")
    if architecture is not None:
        _run([*umoci, "config", "--image", f"{layout}:base", "--architecture", architecture], cwd=folder)
    shutil.rmtree(bundle)
    return layout


def configure(layout: Path, *variables: str) -> None:
    """Give the image `base` of an OCI layout variables, each as NAME=VALUE."""
    words = [word for variable in variables for word in ("--config.env", variable)]
    _run(["umoci", "config", "--image", f"{layout}:base", *words], cwd=layout.parent)


def _unpack_new(layout: Path, bundle: Path) -> None:
    """Make an OCI layout with an empty image `base`, and unpack that."""
    folder = layout.parent
    folder.mkdir(parents=True, exist_ok=True)
    _run(["umoci", "init", "--layout", str(layout)], cwd=folder)
    _run(["umoci", "new", "--image", f"{layout}:base"], cwd=folder)
    _run(["umoci", "unpack", "--rootless", "--image", f"{layout}:base", str(bundle)], cwd=folder)


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"docker-registry did not start: {(folder / 'log').read_text(encoding='utf-8')[-500:]}")


def _run(words: list[str], *, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, env=_environ(cwd), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} {words[1]}: {done.stderr[-500:]}")


def _environ(home: Path) -> Mapping[str, str]:
    return {"PATH": PATH, "HOME": str(home), "LC_ALL": "C.UTF-8"}
