"""Makes the text that Apptainer builds an image from: a definition file, with what the `container` configuration adds.

docs/containers.md describes the files; `hpcml build` and submissions hand the result to hpcml/images/build. The same
file, configuration and digest of the base image always give the same text, and so the same key in the cache: labels and
variables are sorted, and sections without content are left out. Pure but for reading the files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpcml.errors import ConfigError, ImageError, require
from hpcml.images import dockerfile, sources
from hpcml.images.docker_build import DockerImage
from hpcml.images.key import UNRESOLVED, Definition
from hpcml.images.registry import Reference, host_architecture, is_loopback
from hpcml.images.sections import (
    Piece,
    check,
    head_of,
    is_section,
    last_stage,
    pieces_of,
    section_name,
    with_arguments,
)
from hpcml.model.container import Container
from hpcml.paths import resource_dir

_DEFAULT, _DEFAULT_LOCAL = "docker", "local"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_OURS = "org.hpcml."
_ADDS = re.compile(r"%(post|files|setup|pre|app)", re.IGNORECASE)  # as %appinstall
_NAMED_APART = re.compile(r"(?i)\s*(registry|namespace)\s*:")
_FROM = re.compile(r"(?i)(\s*from\s*:\s*)(.*)")


def define(
    container: Container,
    base_digest: str | None,
    *,
    folders: Sequence[Path],
    project: Path,
    architecture: str | None = None,
    base_size_bytes: int | None = None,
    docker_image: DockerImage | None = None,
    archives: Path | None = None,
) -> Definition:
    """Return the definition of *container* on the base image with *base_digest*.

    *base_digest* is ``sha256:...``, or None while it is not known: then the text has the tag, and builds nothing.
    *architecture* is amd64 or arm64, None that of this machine; *base_size_bytes* is the size of the compressed layers,
    from which the room for a build is estimated. Upon a base on this machine (``container.path``) there is no digest to
    give: what the base holds is read. Of a Dockerfile that another program builds, *docker_image* is the image, whose
    archive will lie in *archives*. The text is ``<container.name>.def`` in the first of *folders* that has it, else
    ``docker.def``, or ``local.def``; in its last stage the image is that of *container*, and sections get what it adds.
    Files of requirements that *container* names are relative to *project*, and sources of %files to the definition.

    Raises `ConfigError` where there is no such file, or it builds from no registry or from another image or tag than
    *container* names, or a label has a name that is not allowed.
    """
    reference: Reference | None = None
    if docker_image is not None:
        sections = [[f"Bootstrap: {docker_image.bootstrap}", f"From: {docker_image.archive}"]]
        folder, files, for_people = archives, dict[str, str](), str(container.dockerfile)
        base_digest, pinned = docker_image.image_id, docker_image.archive
    else:
        path, sections, folder = _read(container, folders)
        reference = reference_of(container)
        for_people = reference.for_people if reference is not None else str(local_base_of(container))
        _check(path, sections, container, reference)
        pinned = f"{reference.host_and_name}@{base_digest}" if reference is not None and base_digest else for_people
    _pin(sections[last_stage(sections)], pinned, for_people)
    if docker_image is None:
        assert folder is not None
        files = sources.digests(sections, folder, written_in=path)
        base_digest = f"sha256:{files[for_people]}" if reference is None else base_digest
    runs_here = any(section_name(piece) in ("%setup", "%pre") for piece in sections)
    added = {
        "labels": [*_labels(container, for_people, base_digest or UNRESOLVED)],
        "environment": [*_environment(container)],
        "post": [*_post(container, project)],
    }
    for name, lines in added.items():
        _add(sections, name, lines)
    return Definition(
        text=_joined(sections),
        base=for_people,
        base_digest=base_digest or UNRESOLVED,
        architecture=architecture or host_architecture(),
        plain_http=reference is not None and reference.plain_http,
        base_size_bytes=base_size_bytes,
        files=files,
        folder=str(folder.resolve()) if folder is not None and (files or runs_here or docker_image) else None,
    )


def reference_of(container: Container) -> Reference | None:
    """Return the base image of *container* in a registry; None for one on this machine, or one that is not known here.

    That of a Dockerfile is what its last FROM names, that of the user's own definition what its last From: does.
    Raises `ConfigError` where it cannot be read.
    """
    if container.path is not None:
        return None
    if container.definition is not None:
        path, agent, written = _own_base(container)
        return _reference(written, path) if agent == "docker" else None
    if container.dockerfile is None:
        return Reference.of(container)
    try:
        return _reference(_converted(container).base)
    except ConfigError:  # it may be another program's to build: then its last FROM, as far as it can be read
        with suppress(ConfigError):
            return _reference(dockerfile.base_of(Path(container.dockerfile), container.build_args))
    return None


def local_base_of(container: Container) -> Path | None:
    """Return the file or folder on this machine that *container* is built upon; None for an image of a registry."""
    if container.definition is None:
        return Path(container.path) if container.path is not None else None
    path, agent, written = _own_base(container)
    return path.parent / written if agent != "docker" else None


def _own_base(container: Container) -> tuple[Path, str, str]:
    """Return the user's own definition, and what the head of its last stage says: the kind of its base, and the base.

    Raises `ConfigError` where that is neither an image of a registry nor one on this machine.
    """
    path, sections, _ = _read(container, ())
    agent, written = _head(sections[last_stage(sections)] if sections else [""])
    require(agent != "", f"{path} is no definition of Apptainer's: write Bootstrap: docker into its first line")
    require(
        agent in ("docker", *sources.ON_THIS_MACHINE),
        f"{path} has Bootstrap: {agent}, and hpcml builds upon images of registries (docker) and of this machine "
        f"({', '.join(sources.ON_THIS_MACHINE)}): use apptainer build IMAGE.sif {path.name}, then container=sif",
    )
    require(written != "", f"{path} has no From: write From: ubuntu:24.04, or another image")
    return path, agent, written


def _reference(image: str, written_in: Path | None = None) -> Reference:
    """Return what ``FROM image`` of a Dockerfile means, or ``From: image`` of the definition *written_in*."""
    name, _, digest = image.partition("@")
    try:
        found = Reference.parse(name)
    except ConfigError as error:
        if written_in is None:
            raise
        raise ConfigError(f"{written_in}: From: {image} is no image of a registry: write it as ubuntu:24.04") from error
    return replace(found, digest=digest or None, plain_http=is_loopback(found.host))


def adds_to_base(container: Container, folders: Sequence[Path]) -> Path | None:
    """Return the definition of *container* if it puts programs or files upon its base; None where it does not.

    Only a runtime that starts what hpcml builds has these.
    """
    path, sections, _ = _read(container, folders)
    return path if any(_ADDS.match(line) for piece in sections for line in piece[:1]) else None


def remarks(container: Container, folders: Sequence[Path]) -> tuple[str, ...]:
    """Return what a user should know of the image, a line each: what is not as the Dockerfile says, or not pinned."""
    if container.dockerfile is not None:
        return _converted(container).remarks
    path, sections, _ = _read(container, folders)
    heads = map(_head, sections[: last_stage(sections)])
    earlier = [written for agent, written in heads if agent == "docker" and "@" not in written]
    return tuple(
        f"{path}: From: {each} of an earlier stage has no digest: its tag may mean another" for each in earlier
    )


def require_unchanged(definition: Definition) -> None:
    """Raise `ImageError` where a source of %files is not any more what it was when the definition was made."""
    if not definition.files or definition.folder is None:
        return
    pieces = pieces_of(definition.text)
    folder = Path(definition.folder)
    now = sources.digests(pieces, folder, written_in=folder)
    changed = sorted(name for name, digest in definition.files.items() if now.get(name) != digest)
    if changed:
        raise ImageError(f"%files {changed[0]} of {folder} has changed since this build was asked for: build again")


def _read(container: Container, folders: Sequence[Path]) -> tuple[Path, list[Piece], Path]:
    """Return the file that *container* begins from, its pieces, and the folder that sources of %files count from."""
    if container.dockerfile is not None:
        converted = _converted(container)
        return Path(container.dockerfile), pieces_of(converted.text), converted.context
    path = Path(container.definition) if container.definition is not None else _file(container, folders)
    sections = _sections(path, container.build_args)
    require(bool(sections), f"{path} is empty")
    return path, sections, path.parent


def _converted(container: Container) -> dockerfile.Converted:
    assert container.dockerfile is not None
    return dockerfile.convert(
        Path(container.dockerfile),
        context=Path(container.context) if container.context is not None else None,
        build_args=container.build_args,
        target=container.target,
    )


def _file(container: Container, folders: Sequence[Path]) -> Path:
    name, default = container.name, _DEFAULT if container.path is None else _DEFAULT_LOCAL
    for candidate in (name, default):
        for folder in folders:
            path = folder / f"{candidate}.def"
            if path.is_file():
                return path
    raise ConfigError(f"container={name}: there is no {default}.def in {', '.join(map(str, folders))}")


def _sections(path: Path, build_args: Mapping[str, str]) -> list[Piece]:
    """Return the pieces of a definition, with the values of its arguments; raise `ConfigError` for what is no such."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(f"{path} cannot be read: {why}") from error
    check(text, path)
    return pieces_of(with_arguments(text, build_args, path))


def _head(piece: Sequence[str]) -> tuple[str, str]:
    """Return what a stage says behind ``Bootstrap:``, in small letters, and its base."""
    says = head_of(piece)
    agent, written = says.get("bootstrap", "").lower(), says.get("from", "")
    if agent == "docker":  # ``Registry:`` and ``Namespace:`` come before the name
        written = "/".join(filter(None, (says.get("registry"), says.get("namespace"), written)))
    return agent, written


def _check(path: Path, sections: Sequence[list[str]], container: Container, reference: Reference | None) -> None:
    """Raise `ConfigError` for a definition of the image's name that is of another image than *container* names."""
    if container.definition is not None or container.dockerfile is not None:
        return
    if reference is None:
        _check_local_base(path, sections, str(container.path))
    elif path.stem != _DEFAULT:
        _check_base(path, sections, reference)


def _check_base(path: Path, sections: Sequence[list[str]], reference: Reference) -> None:
    agent, written = _head(sections[last_stage(sections)])
    require(
        agent == "docker" and written != "",
        f"{path}: hpcml builds from registries: begin with Bootstrap: docker and From: {reference.for_people}; "
        "for another kind use apptainer build, and container=sif",
    )
    require("$" not in written, f"{path}: From: {written} is no image: write From: {reference.for_people}")
    name, _, rest = written.partition("@")
    image, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    require(
        f"/{image}".endswith(f"/{reference.name}") or f"library/{image}" == reference.name,
        f"{path} is From: {written}, and container.image={reference.name}: "
        f"for another image add container.name={_DEFAULT}, which has no definition of its own",
    )
    ours = path.parent == resource_dir("containers")  # its tag is the newest, and a cluster may need an older one
    require(
        ours or rest != "" or tag in ("", reference.tag),
        f"{path} is From: {written}, and the tag here is {reference.tag}: set container.tag={tag}, "
        "or write From: without a tag to leave it to the configuration",
    )
    require(
        rest in ("", reference.digest),
        f"{path} is From: {written}: set container.digest={rest}, or write From: without a digest",
    )


def _check_local_base(path: Path, sections: Sequence[list[str]], base: str) -> None:
    agent, written = _head(sections[last_stage(sections)])
    ours = path.parent == resource_dir("containers")
    require(
        agent == "localimage" and (ours or (path.parent / written).resolve() == Path(base).resolve()),
        f"{path} begins from {agent} {written}, and container.path={base}: write Bootstrap: localimage and "
        f"From: {base}",
    )


def _pin(piece: list[str], pinned: str, for_people: str) -> None:
    """Let a stage begin from *pinned*, and say before it what that is for people."""
    note = [f"# {for_people}"] if pinned != for_people else []
    done: list[str] = []
    for line in piece:
        match = _FROM.match(line)
        if match is None and _NAMED_APART.match(line):
            continue  # what is pinned has them
        done += [*note, f"{match[1]}{pinned}"] if match else [line]
    piece[:] = done


def _add(sections: list[Piece], name: str, lines: Sequence[str]) -> None:
    """Add *lines* to the section of that name in the last stage, which is made where there is none."""
    if not lines:
        return
    first = last_stage(sections)
    for piece in sections[first:]:
        if section_name(piece) == f"%{name}":
            while piece and not piece[-1].strip():
                piece.pop()
            piece += [f"    {line}" if name == "labels" else line for line in lines]
            return
    place = next((i for i, piece in enumerate(sections) if i > first and section_name(piece) == "%test"), len(sections))
    sections.insert(place, [f"%{name}", *(f"    {line}" if name == "labels" else line for line in lines)])


def _joined(sections: Sequence[list[str]]) -> str:
    """Return the text, without sections that say nothing, so that they do not change the key of the image."""
    kept = ["\n".join(piece).strip("\n") for piece in sections]
    return "\n\n".join(piece for piece in kept if not is_section([piece]) or "\n" in piece) + "\n"


def _labels(container: Container, base: str, base_digest: str) -> Iterator[str]:
    yield f"{_OURS}base {base}"
    yield f"{_OURS}base.digest {base_digest}"
    for name, value in sorted(container.labels.items()):
        require(_LABEL.fullmatch(name) is not None, f"container.labels: {name!r} is no name: use letters, digits . _ -")
        require(not name.startswith(_OURS), f"container.labels: {name} is set by hpcml: choose another name")
        yield f"{name} {value}"


def _environment(container: Container) -> Iterator[str]:
    for name, value in sorted(container.environment.items()):
        yield f"export {name}={shlex.quote(value)}"


def _post(container: Container, project: Path) -> Iterator[str]:
    if not (container.apt or container.pip or container.post):
        return
    yield from _environment(container)
    if container.apt:
        yield _apt(shlex.join(container.apt))
    if container.pip:
        # NVIDIA's CUDA images have no pip; Ubuntu 24.04's refuses to work outside a virtual environment.
        yield f"python3 -m pip --version >/dev/null 2>&1 || {{ {_apt('python3-pip')}; }}"
        files, words = sources.pip_lines(container.pip, project)
        yield from files
        yield f"PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir {words}"
    yield from "\n".join(container.post).splitlines()


def _apt(packages: str) -> str:
    install = f"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {packages}"
    return f"apt-get update && {install} && rm -rf /var/lib/apt/lists/*"
