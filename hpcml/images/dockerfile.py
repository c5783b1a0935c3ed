"""Makes a definition of a simple Dockerfile, or says by line what it cannot say; `docker_build` builds the others.

Read are one FROM, ARG, ENV, RUN, COPY and ADD of local files, WORKDIR, LABEL, CMD and ENTRYPOINT. In %post each RUN is
a shell of its own, as in Docker, and what COPY brings is put in place when its turn comes: %files, which Apptainer does
first, only lays it down in `_STAGED`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from hpcml.errors import ConfigError, require
from hpcml.model.container import breaks_line

_STAGED = "/.hpcml-copy"
_VARIABLE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<sign>:?[-+])(?P<other>[^{}]*))?\}|(?P<odd>\{))")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\s+")
_HEREDOC = re.compile(r"(?:^|\s)\d*<<-?[\"']?\w")
_REMOTE = re.compile(r"(?i)(https?://|git[:@]|ssh:|ftp:)")
_PLAIN_NAME = re.compile(r"(?![-~])[\w./+@=,~-]+")  # Apptainer hands it to a shell as it is written
_CHMOD = re.compile(r"[0-7]{3,4}|[ugoa]*[-+=][rwxXst]*(,[ugoa]*[-+=][rwxXst]*)*")
_MOST_FILES = 1000  # of one COPY with a .dockerignore, each of which is a line of the definition
_INSTEAD = "build it where podman, buildah or docker is, or write a definition"
# What a program of whoever runs the image writes to: a place in the image, which is read only, would end it.
_OF_WHO_RUNS = {"HOME": "runs have your own home", **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), "runs use /tmp")}
_WITHOUT_MEANING = {
    "EXPOSE": "ports are not closed in an image",
    "VOLUME": "use container.binds",
    "STOPSIGNAL": "the scheduler's signals are sent",
    "HEALTHCHECK": "nobody asks for it",
    "MAINTAINER": "write LABEL",
    "USER": "%post is done as root of the image, and runs are yours",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A definition, and what a user should know of how it differs from the Dockerfile: a line each."""

    text: str
    remarks: tuple[str, ...]
    context: Path  # the folder that sources of %files are relative to
    base: str  # as FROM names it


def convert(
    path: Path, *, context: Path | None = None, build_args: Mapping[str, str] | None = None, target: str | None = None
) -> Converted:
    """Return the definition that the Dockerfile *path* means; raise `ConfigError` with the line that has none.

    *context* is the folder that it copies from, None its own; *build_args* are values for its ARG, *target* names its
    stage: as with ``docker build -f PATH --build-arg NAME=VALUE --target STAGE CONTEXT``.
    """
    folder = path.parent if context is None else context
    require(folder.is_dir(), f"container.context={folder} is no folder")
    reader = _Reader(path, folder, build_args or {}, target)
    for part in _parser(path, {}).structure:
        if part["instruction"] != "COMMENT":
            reader.take(part["startline"] + 1, part["instruction"], part["value"].strip())
    require(reader.base != "", f"{path} has no FROM: a Dockerfile begins with one")
    unknown = sorted({*reader.build_args} - reader.declared)
    require(
        not unknown,
        f"container.build_args.{''.join(unknown[:1])}: {path} has no such ARG: it has "
        f"{', '.join(sorted(reader.declared)) or 'none'}",
    )
    text = "\n".join(reader.definition()) + "\n"
    return Converted(text=text, remarks=tuple(reader.remarks), context=folder, base=reader.base)


def base_of(path: Path, build_args: Mapping[str, str]) -> str:
    """Return the image that the last FROM of the Dockerfile *path* names, by its ARG; it may be one of its stages."""
    images = _parser(path, build_args).parent_images
    require(bool(images), f"{path} has no FROM: a Dockerfile begins with one")
    return str(images[-1])


def _parser(path: Path, build_args: Mapping[str, str]) -> Any:  # noqa: ANN401 - of a library without types
    from dockerfile_parse import DockerfileParser  # noqa: PLC0415 - for those who have a Dockerfile

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(f"container.dockerfile={path} cannot be read: {why}") from error
    lines = text.replace("\r\n", "\n")
    return DockerfileParser(fileobj=BytesIO(f"{lines}\n\n".encode()), build_args=dict(build_args))


class _Reader:
    """Takes the instructions in their order; has the parts of the definition afterwards."""

    def __init__(self, path: Path, context: Path, build_args: Mapping[str, str], target: str | None) -> None:
        self.base = ""
        self.remarks: list[str] = []
        self.declared: set[str] = set()
        self.build_args = build_args
        self._path, self._context, self._target = path, context, target
        self._line = 0
        self._known: dict[str, str | None] = {}  # of ARG and ENV; None: it needs a variable of the base
        self._before_from: dict[str, str | None] = {}
        self._of_env: set[str] = set()
        self._has_directory = False  # an absolute WORKDIR: before it counts the base's, which is not known here
        self._n_copies = 0
        self._files: list[str] = []
        self._labels: list[str] = []
        self._environment: list[str] = []
        self._post: list[str] = []
        self._entrypoint: list[str] = []
        self._command: list[str] = []

    def take(self, line: int, name: str, words: str) -> None:
        """Take the instruction *name* of a *line*; raise `ConfigError` for one that a definition cannot say."""
        self._line = line
        takers: Mapping[str, Callable[[str], None]] = {
            "FROM": self._from, "ARG": self._arg, "ENV": self._env, "LABEL": self._label, "WORKDIR": self._workdir,
            "RUN": self._run, "COPY": self._copy, "ADD": self._add, "ENTRYPOINT": self._set_entrypoint,
            "CMD": self._set_command,
        }  # fmt: skip
        self._require(words != "", f"{name} says nothing")
        self._require(self.base != "" or name in ("FROM", "ARG"), f"{name} stands before FROM")
        self._require("{{" not in words, f"{name}: Apptainer reads {{{{ as its own: write it otherwise")
        if name in _WITHOUT_MEANING:
            self._remark(f"{name} {words} is left out: {_WITHOUT_MEANING[name]}")
            return
        self._require(name in takers, f"{name} is nothing that a definition can say: {_INSTEAD}")
        self._require(
            name not in ("RUN", "COPY", "ADD") or _HEREDOC.search(words) is None,
            f"{name} with a here-document: {_INSTEAD}",
        )
        takers[name](words)

    def definition(self) -> Iterator[str]:
        """Yield the lines of the definition."""
        yield from ("Bootstrap: docker", f"From: {self.base}")
        for name, lines in (("files", self._files), ("labels", self._labels), ("environment", self._environment)):
            yield from ["", f"%{name}", *(f"    {line}" for line in lines)] if lines else []
        if self._post:
            yield from ["", "%post", "export HOME=/root", "cd /", *self._post]
            yield from [f"rm -rf {_STAGED}"] if self._n_copies else []
        if self._entrypoint or self._command:
            yield from ["", "%runscript"]
            yield from [f'    [ "$#" -gt 0 ] || set -- {shlex.join(self._command)}'] if self._command else []
            yield f'    exec {shlex.join(self._entrypoint)} "$@"'.replace("exec  ", "exec ")

    def _require(self, holds: bool, what: str) -> None:  # noqa: FBT001 - as errors.require
        require(holds, f"{self._path}:{self._line}: {what}")

    def _remark(self, what: str) -> None:
        self.remarks.append(f"{self._path.name}:{self._line}: {what}")

    def _list(self, words: str) -> list[str] | None:
        """Return the words of a JSON list; None: it is none, and the shell's."""
        try:
            found = json.loads(words) if words.startswith("[") else None
        except ValueError:
            return None
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            return None
        self._require(not any(map(breaks_line, found)), f"{words}: words with line breaks are not read")
        return found

    def _pieces(self, text: str, *, has_base: bool = True) -> Iterator[tuple[str, bool]]:
        """Yield the parts of *text*, and of each whether it is a variable of the base, which only the shell knows.

        Without *has_base* what nobody has declared has no value, as in Docker where it names an image or a file.
        """
        end = 0
        for match in _VARIABLE.finditer(text):
            yield text[end : match.start()], False
            end = match.end()
            name, sign, other = match["plain"] or match["name"], match["sign"], match["other"] or ""
            self._require(
                name is not None and "$" not in other,
                f"{text}: of ${{NAME...}}, :-, :+, - and + with a plain text are read: write the value",
            )
            value = self._known.get(name)
            if value is None and (has_base or name in self._known or not sign):
                yield match[0], True
            elif sign:
                is_there = bool(value) or (value is not None and not sign.startswith(":"))
                yield (other if is_there == sign.endswith("+") else (value or "") if is_there else ""), False
            else:
                yield value or "", False
        yield text[end:], False

    def _plain(self, text: str) -> str:
        """Return *text* with its variables in place; those that are not known here are refused."""
        pieces = [*self._pieces(text, has_base=False)]
        unknown = next((piece for piece, is_shell in pieces if is_shell), "")
        self._require(not unknown, f"the value of {unknown} is not known here: write it, or ARG with a value")
        return "".join(piece for piece, _ in pieces)

    def _in_shell(self, text: str) -> str:
        """Return *text* as one word of the shell of %post, which puts the base's variables in place."""
        pieces = self._pieces(text)
        words = (piece if is_shell else re.sub(r'([$`"\\])', r"\\\1", piece) for piece, is_shell in pieces)
        return f'"{"".join(words)}"'

    def _from(self, words: str) -> None:
        match = re.fullmatch(r"([^\s-]\S*)(?:\s+(?i:as)\s+(\S+))?", words)
        self._require(self.base == "", f"FROM {words} begins another stage: {_INSTEAD}")
        self._require(match is not None, f"FROM {words}: write FROM IMAGE:TAG, without options")
        assert match is not None
        self._require(match[1] != "scratch", "FROM scratch is an empty image: begin from one with a shell")
        self.base = self._plain(match[1])
        self._require(re.fullmatch(r"[\w./:@-]+", self.base) is not None, f"{words} is no image: write NAME:TAG")
        is_it = self._target in (None, "0", match[2])
        self._require(is_it, f"container.target={self._target}: there is no such stage")
        self._before_from, self._known = self._known, {}

    def _arg(self, words: str) -> None:
        for word in _split(words):
            name, sign, value = word.partition("=")
            self._require(_NAME.fullmatch(name) is not None, f"ARG {name}: write ARG NAME=value")
            self.declared.add(name)
            if name in self._of_env:
                continue  # ENV overrides ARG
            found = self.build_args.get(name)
            if found is None:
                found = self._plain(value) if sign else self._before_from.get(name)
            if found is None and self.base:
                self._remark(f"ARG {name} has no value: container.build_args.{name} gives it one")
            self._known[name] = found or ""
            self._post += [f"export {name}={shlex.quote(found)}"] if found is not None and self.base else []

    def _env(self, words: str) -> None:
        settings, known = {}, dict[str, str | None]()
        for name, written in self._pairs("ENV", words):
            self._require(_NAME.fullmatch(name) is not None, f"ENV {name}: it is no variable's name")
            value = _split(written, at_most=0)[0] if written else ""
            is_literal = written.startswith("'") and written.endswith("'")
            is_mixed = "$" in value and not is_literal and ("'" in written or "\\$" in written)
            self._require(not is_mixed, f"ENV {name}={written}: write it between double quotes, without \\$")
            is_of_base = not is_literal and any(is_shell for _, is_shell in self._pieces(value))
            known[name] = None if is_of_base else value if is_literal else self._plain(value)
            settings[name] = f"{name}={shlex.quote(value) if is_literal else self._in_shell(value)}"
        self._known |= known  # all of a line are as the variables were before it
        self._of_env |= known.keys()
        self._post.append(f"export {' '.join(settings.values())}")
        for name in sorted(_OF_WHO_RUNS.keys() & settings.keys()):
            self._remark(f"ENV {name} counts while the image is built: {_OF_WHO_RUNS[name]}")
        of_runs = [setting for name, setting in settings.items() if name not in _OF_WHO_RUNS]
        self._environment += [f"export {' '.join(of_runs)}"] if of_runs else []

    def _label(self, words: str) -> None:
        for written, value in self._pairs("LABEL", words):
            name = "".join(_split(written))
            self._require(not name.startswith("org.hpcml."), f"LABEL {name} is set by hpcml: choose another name")
            plain = self._plain(_split(value, at_most=0)[0] if value else "")
            self._labels.append(f"{name} {' '.join(plain.split())}")

    def _pairs(self, what: str, words: str) -> Iterator[tuple[str, str]]:
        """Yield the names and values of ENV or LABEL, each as it is written."""
        first, *rest = words.split(maxsplit=1)
        if "=" not in first:  # the old form: one name, and the rest of the line
            self._require(bool(rest), f"{what} {words}: write NAME=value")
            yield first, rest[0]
            return
        for word in _split(words, dequote=False):
            name, sign, value = word.partition("=")
            self._require(sign != "", f"{what} {word}: write NAME=value, values with spaces in quotes")
            yield name, value

    def _run(self, words: str) -> None:
        self._require(not words.startswith("--"), f"RUN {words}: {_INSTEAD}")
        argv = self._list(words)
        self._post.append(f"(exec {shlex.join(argv)})" if argv else shlex.join(["/bin/sh", "-c", words]))

    def _workdir(self, words: str) -> None:
        place = _split(words, at_most=0)[0]
        self._require_place(place)
        self._has_directory = True
        word = self._in_shell(place)
        self._post.append(f"mkdir -p {word}; cd {word}")
        self._remark(f"WORKDIR {words} counts while the image is built; runs begin in their own directory")

    def _require_place(self, path: str) -> None:
        """Raise `ConfigError` for a relative path of the image where it is not known what it counts from."""
        hint = "what the base says is not known here: write WORKDIR /where before it"
        self._require(path.startswith(("/", "$")) or self._has_directory, f"{path}: {hint}")

    def _add(self, words: str) -> None:
        self._copy(words, is_add=True)

    def _copy(self, words: str, *, is_add: bool = False) -> None:
        mode = None
        while match := _FLAG.match(words):
            words = words[match.end() :].strip()
            if match[1] == "chmod":
                mode = self._plain(match[2] or "")
                self._require(_CHMOD.fullmatch(mode) is not None, f"--chmod={mode}: write --chmod=755")
            elif match[1] == "chown":
                self._remark(f"--chown={match[2]} is left out: files of an image are read as yourself")
            else:
                self._require(match[1] == "link", f"{match[0].strip()}: {_INSTEAD}")
        *sources, place = self._list(words) or _split(words) or [""]
        self._require(bool(sources), f"{words}: write COPY SOURCE... DESTINATION")
        self._require_place(place)
        names = [name for source in sources for name in self._sources(self._plain(source), is_add=is_add)]
        is_folder = place in (".", "..") or place.endswith(("/", "/.", "/.."))
        is_one = len(names) == 1 and len(sources) == 1
        self._require(is_folder or is_one, f"{words} are several: end {place} with a slash")
        for name in names:
            self._put(name, self._in_shell(place), mode, is_folder=is_folder)

    def _sources(self, source: str, *, is_add: bool) -> list[str]:
        """Return the names of what is copied, relative to the context."""
        self._require(not is_add or _REMOTE.match(source) is None, f"ADD {source}: {_INSTEAD}, or RUN with curl or git")
        written = source.strip("/") or "."
        self._require(".." not in PurePosixPath(written).parts, f"{source} lies outside of the context {self._context}")
        found = (
            ["."] if written == "." else sorted(str(p.relative_to(self._context)) for p in self._context.glob(written))
        )
        self._require(bool(found), f"{source} is not there ({self._context} is looked into)")
        for name in found:
            path = self._context / name
            is_packed = is_add and path.is_file() and tarfile.is_tarfile(path)
            self._require(not is_packed, f"ADD {name} is an archive, which Docker unpacks: write COPY, and RUN tar")
        return found

    def _put(self, name: str, place: str, mode: str | None, *, is_folder: bool) -> None:
        """Lay down the file or folder *name* by %files, and put it into its place in %post."""
        staged = f"{_STAGED}/{self._n_copies}"
        self._n_copies += 1
        path, kept = self._context / name, self._kept(name)
        self._require(kept != [], f"{name} is kept out by .dockerignore")
        for part in [name] if kept is None else kept:
            is_plain = part == "." or _PLAIN_NAME.fullmatch(part) is not None
            self._require(is_plain, f"{part!r}: names with signs of a shell are not read: rename it")
            below = os.path.relpath(part, name if path.is_dir() else path.parent.relative_to(self._context))
            self._files.append(f"{part} {staged}" + (f"/{below}" if below != "." else ""))
        self._post += [f"chmod -R {mode} {staged}"] if mode is not None else []
        self._post.append(f"chmod -R go+rX {staged}")  # an image is read as yourself, and not as its root
        if path.is_dir():
            self._post.append(f"mkdir -p {place}; cp -a {staged}/. {place}")
        else:
            folder = place if is_folder else f'"$(dirname {place})"'
            self._post.append(f"mkdir -p {folder}; cp -a {staged}/{path.name} {place}")

    def _kept(self, name: str) -> list[str] | None:
        """Return the files of *name* that .dockerignore leaves; None: it says nothing, and *name* is taken whole."""
        beside = self._path.with_name(f"{self._path.name}.dockerignore")
        found = next((file for file in (beside, self._context / ".dockerignore") if file.is_file()), None)
        if found is None:
            return None
        from pathspec import PathSpec  # noqa: PLC0415 - for those who have such a file

        lines = [line.strip() for line in found.read_text(encoding="utf-8-sig").splitlines()]
        patterns = [re.sub(r"^(!?)/?", r"\1/", line) for line in lines if line and not line.startswith("#")]
        spec = PathSpec.from_lines("gitignore", patterns)  # all of them count from the context
        path = self._context / name
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if not file.is_dir())
        names = [str(file.relative_to(self._context)) for file in files]
        kept = [file for file in names if not spec.match_file(file)]
        self._require(
            len(kept) <= _MOST_FILES, f"{name} has {len(kept)} files that .dockerignore leaves: name what is copied"
        )
        return None if kept == names else kept

    def _set_entrypoint(self, words: str) -> None:
        self._entrypoint = self._argv(words)

    def _set_command(self, words: str) -> None:
        self._command = self._argv(words)

    def _argv(self, words: str) -> list[str]:
        argv = self._list(words)
        return ["/bin/sh", "-c", words] if argv is None else argv


def _split(words: str, *, at_most: int | None = None, dequote: bool = True) -> list[str]:
    """Return *words* as Docker splits them, with or without their quotes and backslashes."""
    from dockerfile_parse.util import WordSplitter  # noqa: PLC0415 - for those who have a Dockerfile

    return [*WordSplitter(words).split(maxsplit=at_most, dequote=dequote)]
