"""Lets podman, buildah or docker build a Dockerfile, whose image Apptainer then takes as an archive.

Its key has the id of that image, which the program's own cache of layers keeps as long as the Dockerfile and what it
copies are the same.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ImageError
from hpcml.images.key import UNRESOLVED
from hpcml.model.container import Container
from hpcml.model.image import without_login
from hpcml.runs.atomic import draft_of
from hpcml.runs.private import make_folder

_PROGRAMS = ("podman", "buildah", "docker")
_STDERR = 2  # whatever Python calls by that name, as a notebook does
_TIMEOUT_S = 60  # to say whether it works at all


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerImage:
    """An image that a program of `_PROGRAMS` has built, or would build: then its id is UNRESOLVED."""

    program: str
    image_id: str = UNRESOLVED  # sha256:...

    @property
    def bootstrap(self) -> str:
        """How Apptainer is to read `archive`: docker writes its own format, the others OCI's."""
        return "docker-archive" if self.program == "docker" else "oci-archive"

    @property
    def archive(self) -> str:
        """The name of the file that `save` writes."""
        return f"{self.image_id.rpartition(':')[2]}.tar"


def find_program(environ: Mapping[str, str]) -> str | None:
    """Return the first of podman, buildah and docker that works on this machine, or None."""
    for program in _PROGRAMS:
        words = [program, "info"]  # that of docker fails where it has no daemon
        try:
            done = subprocess.run(words, env=dict(environ), capture_output=True, check=False, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return program
    return None


def build_image(program: str, container: Container, environ: Mapping[str, str]) -> DockerImage:
    """Build the Dockerfile of *container*; what *program* prints goes to stderr. Raises `ImageError` where it fails."""
    assert container.dockerfile is not None
    context = container.context or str(Path(container.dockerfile).parent)
    with tempfile.TemporaryDirectory(prefix="hpcml-docker-") as folder:
        file = Path(folder) / "id"
        words = [program, "build", "--iidfile", str(file), "--file", container.dockerfile]
        for name, value in sorted(container.build_args.items()):
            words += ["--build-arg", f"{name}={value}"]
        words += ["--target", container.target] if container.target is not None else []
        words += ["--layers"] if program == "buildah" else []  # which the others keep without being asked
        _run([*words, context], environ, f"{container.dockerfile} was not built")
        return DockerImage(program=program, image_id=file.read_text(encoding="ascii").strip())


def save(image: DockerImage, folder: Path, environ: Mapping[str, str]) -> Path:
    """Write the archive of *image* into *folder* unless it is there; raise `ImageError` where that fails."""
    path = folder / image.archive
    if path.exists():
        return path
    draft = draft_of(path)
    words = {
        "podman": ["podman", "save", "--format", "oci-archive", "--output", str(draft), image.image_id],
        "buildah": ["buildah", "push", image.image_id.rpartition(":")[2], f"oci-archive:{draft}"],
        "docker": ["docker", "save", "--output", str(draft), image.image_id],
    }
    make_folder(folder, parents=True)
    try:
        _run(words[image.program], environ, f"{path} was not written")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _run(words: list[str], environ: Mapping[str, str], what_failed: str) -> None:
    try:
        done = subprocess.run(words, env=without_login(environ), stdin=subprocess.DEVNULL, stdout=_STDERR, check=False)
    except OSError as error:
        raise ImageError(f"{words[0]} cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        raise ImageError(f"{what_failed}: {words[0]} {words[1]} ended with exit status {done.returncode}")
