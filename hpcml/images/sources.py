"""What a definition takes from the machine that builds: the sources of its %files, and files of requirements.

Their content decides what is in the image as much as the definition's text, and goes into its key (images/key.py).
Relative sources are relative to the folder of the definition. What Apptainer does with them: it splits each line into
source and destination, lets a shell expand the source, and copies with ``cp -fLr``, so that links are followed.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcml.errors import ConfigError, require
from hpcml.images.sections import head_of, section_name
from hpcml.model.container import begins_section, holds_login

ON_THIS_MACHINE = ("localimage", "docker-archive", "oci-archive", "oci")  # behind Bootstrap:
_OPTION = re.compile(r"(-r|--requirement|-c|--constraint)(?:\s+|=)?(.*)")
_NO_PACKAGE = re.compile(r"(-e\b|--editable\b|\.{0,2}/|file:|\.\.?$)")
_END = "END_OF_REQUIREMENTS"


def digests(sections: Sequence[Sequence[str]], folder: Path, *, written_in: Path) -> dict[str, str]:
    """Return the SHA-256 of what each source of the %files of *sections* holds, by the source as it is written.

    So have the images on this machine that a stage begins from (``Bootstrap: localimage``, ``docker-archive`` ...).

    *folder* is where relative sources lie, *written_in* the definition for messages. Names and whether a file can be
    executed count, times and owners do not. Raises `ConfigError` for a source that is not there or cannot be read.
    """
    found: dict[str, str] = {}
    for base in local_bases(sections):
        path = path_of_base(folder / base)
        require(
            path.exists(), f"{written_in}: From: {base}: there is no such image (relative names are below {folder})"
        )
        found[base] = _digest_of_base(path, f"{written_in}: From: {base}")
    for source in _sources(sections, written_in):
        names = _names(folder, source)
        require(
            bool(names), f"{written_in}: %files {source}: there is no such file (relative names are below {folder})"
        )
        found[source] = _digest([Path(name) for name in names], f"{written_in}: %files {source}")
    return found


def _names(folder: Path, source: str) -> list[str]:
    """Return the paths that a shell makes of *source*, as Apptainer lets one: of ``~``, variables and patterns."""
    word = os.path.expandvars(source)
    require("{" not in word, f"%files {source}: write each name on a line of its own, without braces")
    path = folder / os.path.expanduser(word)  # noqa: PTH111 - Path's raises for a user who is not there
    return sorted(glob.glob(str(path)))  # noqa: PTH207 - of absolute sources, too


def _sources(sections: Sequence[Sequence[str]], written_in: Path) -> Iterator[str]:
    """Yield the sources on this machine; those of ``%files from STAGE`` are in the image of another stage."""
    for head, *lines in sections:
        if section_name([head]) != "%files" or len(head.split()) > 1:
            continue
        for line in lines:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                yield shlex.split(line)[0]
            except ValueError as error:
                raise ConfigError(f"{written_in}: %files {line.strip()}: {error}") from error


def local_bases(sections: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield what stands behind ``From:`` in the stages that begin from an image on this machine."""
    for named in map(head_of, sections):
        if named.get("bootstrap", "").lower() in ON_THIS_MACHINE and named.get("from"):
            yield named["from"]


def path_of_base(written: Path) -> Path:
    """Return the file or folder of what is *written* behind ``From:``, where ``:`` may name one of an archive's."""
    if written.exists() or ":" not in written.name:
        return written
    return written.with_name(written.name.rpartition(":")[0])


def _digest_of_base(path: Path, what: str) -> str:
    """Return what tells this image from another: of a file its SHA-256, of a folder its names, sizes, modes and times.

    The files of a folder are not read, which takes minutes; what this user may not list counts by its own facts alone.
    """
    try:
        if path.is_file():
            return _sha256(path)
        total = hashlib.sha256()
        for place, folders, files in os.walk(path, onerror=_fail_unless_forbidden):
            folders.sort()
            for name in sorted([*folders, *files]):
                found = (Path(place) / name).lstat()
                size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
                facts = (Path(place, name).relative_to(path), found.st_mode, size, found.st_mtime_ns)
                total.update(repr(facts).encode(errors="surrogateescape"))
    except OSError as error:
        raise ConfigError(f"{what}: {error.filename} cannot be read: {error.strerror}") from error
    return total.hexdigest()


def _fail(error: OSError) -> None:
    raise error


def _fail_unless_forbidden(error: OSError) -> None:
    if not isinstance(error, PermissionError):
        raise error


def _digest(paths: Sequence[Path], what: str) -> str:
    total = hashlib.sha256()
    try:
        for path in paths:
            for name, file in _below(path):
                mark = "x" if os.access(file, os.X_OK) else "-"
                content = _sha256(file) if file.is_file() else "folder"
                total.update(f"{name}\0{mark}\0{content}\n".encode(errors="surrogateescape"))
    except OSError as error:
        raise ConfigError(f"{what}: {error.filename} cannot be read: {error.strerror}") from error
    return total.hexdigest()


def _below(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield *path* and all that lies below it, in a steady order, under names that begin with its own."""
    yield path.name, path
    if not path.is_dir():
        return
    for place, folders, files in os.walk(path, onerror=_fail, followlinks=True):
        folders.sort()
        if len(Path(place).parts) - len(path.parts) > 100:
            raise OSError(40, "too many levels of links", place)
        for name in sorted([*folders, *files]):
            found = Path(place) / name
            yield str(Path(path.name) / found.relative_to(path)), found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pip_lines(words: Sequence[str], project: Path) -> tuple[list[str], str]:
    """Return lines of shell that write files of requirements into the image, and the words with which pip reads them.

    *words* are those of ``container.pip``. A file of ``-r FILE`` or ``-c FILE`` is taken in with its content, so that
    the definition says all that is installed; it is relative to *project*. Raises `ConfigError` where one cannot be
    read, or needs what is not in the image.
    """
    lines: list[str] = []
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        match = _OPTION.fullmatch(word)
        if match is None:
            kept.append(word)
            continue
        name = match[2].strip() or next(rest, "")
        require(name != "", f"container.pip: {word} names no file: write '{word} requirements.txt'")
        inside = f"/tmp/hpcml-requirements-{len(lines)}.txt"  # noqa: S108 - in the image that is built
        lines += [f"cat >{inside} <<'{_END}'", *_requirements(project / name), _END]
        kept += [match[1], inside]
    return lines, shlex.join(kept)


def _requirements(path: Path, above: tuple[Path, ...] = ()) -> Iterator[str]:
    """Yield the lines of a file of requirements, those of the files that it names in their place."""
    what = f"container.pip: {path}"
    require(path not in above, f"{what} names itself")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    for line in text.replace("\\\n", " ").splitlines():
        words = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not words:
            continue
        require(not holds_login(words), f"{what} has a URL with a login, which everybody with the image could read")
        require(
            _NO_PACKAGE.match(words) is None,
            f"{what}: {words!r} is a path of this machine: put it into %files of a definition",
        )
        require(not begins_section(words) and words != _END, f"{what}: {words!r} would end the section it stands in")
        match = _OPTION.fullmatch(words)
        if match is None:
            yield words
        else:
            require(match[1].startswith(("-r", "--r")), f"{what}: {words!r}: write it in container.pip=['{words}']")
            yield from _requirements(path.parent / match[2].strip(), (*above, path))
