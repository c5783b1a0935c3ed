"""Renders the `container` configuration as a definition file for Apptainer. Pure but for reading a template.

docs/containers.md describes the templates; `hpcml build` and submissions hand the result to hpcml/images/build. The
same configuration and the same digest of the base image always give the same text, and so the same key in the cache:
labels and variables are sorted, and sections without content are left out.
"""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template

from hpcml.errors import ConfigError, require
from hpcml.images.registry import Reference
from hpcml.model.container import Container
from hpcml.model.image import Definition

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # uname's word -> what registries call it
_DEFAULT = "docker"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_OURS = "org.hpcml."


def host_architecture() -> str:
    """Return the architecture of this machine, as registries call it: amd64 or arm64.

    Another machine has the name that uname gives it.
    """
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def define(
    container: Container,
    base_digest: str,
    *,
    folders: Sequence[Path],
    architecture: str | None = None,
    base_size_bytes: int | None = None,
) -> Definition:
    """Return the definition of *container* on the base image with *base_digest*.

    *base_digest* is ``sha256:...``; *architecture* is amd64 or arm64, None that of this machine; *base_size_bytes* is
    the size of the compressed layers, from which the room for a build is estimated. The template is
    ``<container.name>.def`` in the first of *folders* that has it, else ``docker.def``; its words are ``$base``,
    ``$pinned``, ``$labels``, ``$environment`` and ``$post``.

    Raises `ConfigError` where there is no template, or it uses unknown words, or a label has a name that is not
    allowed.
    """
    reference = Reference.of(container)
    template = _template(container.name, folders)
    words = {
        "base": reference.for_people,
        "pinned": f"{reference.host_and_name}@{base_digest}",
        "labels": "\n".join(_labels(container, reference, base_digest)),
        "environment": "\n".join(_environment(container)),
        "post": "\n".join(_post(container)),
    }
    try:
        text = Template(template.read_text(encoding="utf-8")).substitute(words)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{template}: {error} is no word for a template: use ${', $'.join(words)}; a dollar is written $$"
        ) from error
    return Definition(
        text=_without_empty_sections(text),
        base=reference.for_people,
        base_digest=base_digest,
        architecture=architecture or host_architecture(),
        plain_http=reference.plain_http,
        base_size_bytes=base_size_bytes,
    )


def _template(name: str, folders: Sequence[Path]) -> Path:
    for candidate in (name, _DEFAULT):
        for folder in folders:
            path = folder / f"{candidate}.def"
            if path.is_file():
                return path
    raise ConfigError(f"container={name}: there is no {_DEFAULT}.def in {', '.join(map(str, folders))}")


def _labels(container: Container, reference: Reference, base_digest: str) -> Iterator[str]:
    yield f"{_OURS}base {reference.for_people}"
    yield f"{_OURS}base.digest {base_digest}"
    for name, value in sorted(container.labels.items()):
        require(_LABEL.fullmatch(name) is not None, f"container.labels: {name!r} is no name: use letters, digits . _ -")
        require(not name.startswith(_OURS), f"container.labels: {name} is set by hpcml: choose another name")
        yield f"{name} {value}"


def _environment(container: Container) -> Iterator[str]:
    for name, value in sorted(container.environment.items()):
        yield f"export {name}={shlex.quote(value)}"


def _post(container: Container) -> Iterator[str]:
    if not (container.apt or container.pip or container.post):
        return
    yield from _environment(container)
    if container.apt:
        yield _apt(shlex.join(container.apt))
    if container.pip:
        # NVIDIA's CUDA images have no pip; Ubuntu 24.04's refuses to work outside a virtual environment.
        yield f"python3 -m pip --version >/dev/null 2>&1 || {{ {_apt('python3-pip')}; }}"
        words = shlex.join(container.pip)
        yield f"PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir {words}"
    yield from "\n".join(container.post).splitlines()


def _apt(packages: str) -> str:
    install = f"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {packages}"
    return f"apt-get update && {install} && rm -rf /var/lib/apt/lists/*"


def _without_empty_sections(text: str) -> str:
    """Return *text* without sections that say nothing, so that they do not change the key of the image."""
    sections: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("%"):
            sections.append([])
        sections[-1].append(line)
    head, *others = ("\n".join(section).strip("\n") for section in sections)
    return "\n\n".join([head, *(section for section in others if "\n" in section)]) + "\n"
