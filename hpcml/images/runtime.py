"""The container program of this machine: how it is found, and how Apptainer or Singularity builds images."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from spython.utils import run_command

from hpcml.errors import ImageError, require
from hpcml.images.command import mount_of
from hpcml.images.logins import Login
from hpcml.images.runtimes import ContainerRuntime, runtime_named
from hpcml.model.container import Bind
from hpcml.model.image import LOGIN_VARIABLES, without_login

NAMES = ("apptainer", "singularity")
_STARTER = b"#!/usr/bin/env run-singularity\n"
_SQUASHFS = b"hsqs"
_HEAD_BYTES = 2048
_BINDS = re.compile(r"(APPTAINER|SINGULARITY)_(BIND|BINDPATH|MOUNT)")
_OF_ARCHIVES = (
    ": of what docker save has written make one: Bootstrap: docker-archive and From: with its path in a file x.def, "
    "then hpcml build --definition x.def"
)
_PACKAGES = ("python:", "deb:")
_LIST_PACKAGES = r"""
python3 -I -c '
from importlib.metadata import distributions
for each in distributions():
    print("python:%s\t%s" % (each.metadata["Name"], each.version))
' 2>/dev/null
dpkg-query -W -f 'deb:${Package}\t${Version}\n' 2>/dev/null
true"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The container program that was found."""

    name: str  # of `hpcml.images.runtimes`
    path: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def is_old(self) -> bool:
        """Whether it is a Singularity, which needs --fakeroot to build as an ordinary user."""
        return self.name == "singularity"


def find_runtime(environ: Mapping[str, str], wanted: str | None = None, *, module: str | None = None) -> Runtime:
    """Return the runtime *wanted*, or the first of `NAMES` on PATH; raise `ImageError` where there is none that works.

    It is started once, to ask for its version. *module* is the environment module that provides it on this site, for
    the message.
    """
    names = (wanted,) if wanted else NAMES
    for name in names:
        entry = runtime_named(name)
        path = shutil.which(entry.program, path=environ.get("PATH", ""))
        if path is not None:
            return Runtime(name=name, path=path, version=_version(entry, path, environ))
    hint = f"load its module first (ml {module})" if module else "load its module, or install Apptainer"
    raise ImageError(f"{' and '.join(names)} not found on PATH: {hint}; images can be built elsewhere and imported")


def looks_like_an_image(path: Path) -> bool:
    """Tell whether a file begins like an image: SIF, or the squashfs or ext3 of older Singularities.

    Only the first two kilobytes are read, so that a damaged image looks like one, too. Raises `OSError` where it cannot
    be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    begins = (0, len(_STARTER))  # an older image may begin with a line that makes it a command
    return head[32:41] == b"SIF_MAGIC" or any(
        head[first : first + 4] == _SQUASHFS or head[first + 1080 : first + 1082] == b"\x53\xef" for first in begins
    )


def bytes_cut_off(path: Path) -> int:
    """Return how many bytes a SIF or squashfs lacks at its end, as what was copied in part does; 0 where none is known.

    Its own head says how long it is: https://github.com/apptainer/sif, and squashfs 4.0. Raises `OSError` as above.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    at: tuple[int, ...] = ()
    if head[32:41] == b"SIF_MAGIC":
        at = (112, 120)  # where its data begins, and their size
    elif head.startswith(_SQUASHFS):
        at = (40,)
    says = sum(int.from_bytes(head[first : first + 8], "little") for first in at)
    return max(0, says - path.stat().st_size)


def require_whole(path: Path, named_by: str = "container.path=") -> None:
    """Raise `ConfigError` for a file that is no image, or not a whole one; the message says *named_by* and its path."""
    is_image = looks_like_an_image(path)
    hint = "" if is_image or not tarfile.is_tarfile(path) else _OF_ARCHIVES
    require(is_image, f"{named_by}{path} is no image that Apptainer can start (no SIF, squashfs or ext3){hint}")
    cut_off = bytes_cut_off(path)
    require(cut_off == 0, f"{named_by}{path} is cut off: {cut_off} bytes are missing at its end: copy it again")


def is_squashfs(path: Path) -> bool:
    """Tell whether a file begins as squashfs does, the format of enroot's images; raise `OSError` as above."""
    with path.open("rb") as file:
        return file.read(len(_SQUASHFS)) == _SQUASHFS


def inspect_definition(runtime: Runtime, image: Path, environ: Mapping[str, str]) -> str | None:
    """Return the definition that *image* says it was built from; None where it cannot be read as an image."""
    answer = run_command([runtime.path, "inspect", "--deffile", str(image)], quiet=True, environ=without_login(environ))
    return "".join(answer["message"][:1]) if answer["return_code"] == 0 else None


def installed_packages(runtime: Runtime, image: Path, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the versions of what is installed in *image*: ``python:NAME`` and ``deb:NAME``.

    None where it cannot be started here, unpacked (``--unsquash``) neither. An image without Python or Debian's dpkg
    has none of these.
    """
    for options in ((), ("--unsquash",)):  # the second for a machine without /dev/fuse
        words = [runtime.path, "exec", *options, "--cleanenv", "--contain", str(image), "/bin/sh", "-c", _LIST_PACKAGES]
        answer = run_command(words, quiet=True, environ=without_login(environ))
        if answer["return_code"] == 0:
            break
    else:
        return None
    rows = [line.split("\t") for line in "".join(answer["message"]).splitlines()]
    return {row[0]: row[1] for row in sorted(rows) if len(row) == 2 and row[0].startswith(_PACKAGES)}


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Return the values of *environ* that must not be printed: registry keys, and the passwords of proxies."""
    keys = [environ.get(name) for name in LOGIN_VARIABLES if not name.endswith("USERNAME")]
    passwords = [_password_in(value) for name, value in environ.items() if name.lower().endswith("_proxy")]
    return [value for value in (*keys, *passwords) if value]


def _password_in(url: str) -> str | None:
    try:
        return urlsplit(url).password
    except ValueError:
        return None


def build_environment(
    environ: Mapping[str, str], *, scratch: Path, layers: Path, login: Login | None, plain_http: bool
) -> dict[str, str]:
    """Return the environment of a build: folders with room, and the login, under the names of both programs.

    Folders that the user has chosen stay: APPTAINER_TMPDIR on a local disk helps where the file system of the images
    does not support files of other owners. *scratch* is for temporary files, of %post, too: its /tmp would be that of
    the host, where others may have files of the same name. What is bound into every container here (APPTAINER_BIND, as
    sites set it) is not into one that is built: it need not have these places. *layers* is for downloads; without a
    *login* the registry is asked as anybody. The messages of the program are in English, since failures are recognised
    by them.
    """
    of_post = scratch / "of-post"
    temporary = [Bind(source=str(of_post / name), destination=f"/{name}") for name in ("tmp", "var/tmp")]
    found = {name: value for name, value in without_login(environ).items() if not _BINDS.fullmatch(name)}
    found |= {f"{name.upper()}_MOUNT": "\n".join(map(mount_of, temporary)) for name in NAMES}
    words = {"TMPDIR": str(scratch), "CACHEDIR": str(layers)}
    if plain_http:
        words["NOHTTPS"] = "1"
    if login is not None:
        words |= {"DOCKER_USERNAME": login.user, "DOCKER_PASSWORD": login.password}
    for word, value in words.items():
        chosen = None if word.startswith("DOCKER_") else chosen_place(environ, word)
        for name in NAMES:
            found[f"{name.upper()}_{word}"] = chosen or value
    return {**found, "LC_ALL": "C.UTF-8"}


def chosen_place(environ: Mapping[str, str], word: str) -> str | None:
    """Return the user's choice for *word* (TMPDIR or CACHEDIR) from APPTAINER_... or SINGULARITY_..., else None."""
    return next((value for name in NAMES if (value := environ.get(f"{name.upper()}_{word}"))), None)


def chosen_places(environ: Mapping[str, str]) -> dict[Path, str]:
    """Return the folders that the user has chosen for what a build writes besides the image, and what chose each."""
    names = [f"{name.upper()}_{word}" for word in ("CACHEDIR", "TMPDIR") for name in reversed(NAMES)]
    return {Path(place): name for name in names if (place := environ.get(name))}


def build_command(
    runtime: Runtime, image: Path, definition: Path, *, is_root: bool, options: Sequence[str] = ()
) -> list[str]:
    """Return the command that builds *image* from *definition*, with *options* of its own; it contains no secrets.

    Singularity needs ``--fakeroot`` where the user is not root; Apptainer finds out by itself.
    """
    fakeroot = ["--fakeroot"] if runtime.is_old and not is_root else []
    return [runtime.path, "--nocolor", "build", *fakeroot, *options, str(image), str(definition)]


def find_builder(environ: Mapping[str, str], wanted: str | None = None, *, module: str | None = None) -> Runtime:
    """Return as `find_runtime` one that builds images; raise `ImageError` where *wanted* builds none."""
    if wanted is not None and not runtime_named(wanted).builds:
        entry = runtime_named(wanted)
        raise ImageError(f"{entry.name} takes {entry.takes}, and hpcml builds for Apptainer: set container.runtime")
    return find_runtime(environ, wanted, module=module)


def _version(entry: ContainerRuntime, path: str, environ: Mapping[str, str]) -> str:
    try:
        answer = run_command([path, *entry.version_words], quiet=True, environ=without_login(environ))
    except OSError as error:
        raise ImageError(f"{path} cannot be started: {error.strerror}") from error
    match = entry.version.search("".join(answer["message"]))
    if answer["return_code"] != 0 or match is None:
        said = " ".join("".join(answer["message"]).split())[:200]
        raise ImageError(f"{path} does not work here: {said or 'it says nothing'}")
    return match[0]
