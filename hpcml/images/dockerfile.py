"""Makes a definition of a Dockerfile, or says by line why not: for ``container.dockerfile`` and ``build --dockerfile``.

Two steps. Each instruction is read here and put into the one form of it that spython's parser takes as it is meant;
from these spython makes its recipes, a stage each, which are compared with what was given to it.
What a definition cannot say is refused, and what it says otherwise is remarked on, with the number of the line.
docs/decisions/spython.md has what spython's parser makes of Dockerfiles as people write them.

In %post each RUN is a shell of its own, as in Docker, and what COPY brings is put in place when its turn comes: %files,
which Apptainer does first, only lays it down in `_STAGED`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from spython.logger import bot
from spython.main.parse.parsers import DockerParser

from hpcml.errors import ConfigError, require

_STAGED = "/.hpcml-copy"
_PUT = f"""hpcml_put() {{
    [ ! -d "{_STAGED}/$1" ] || {{ mkdir -p "$3"; cp -a "{_STAGED}/$1/." "$3/"; return; }}
    case $3 in */) mkdir -p "$3";; *) mkdir -p "$(dirname "$3")";; esac
    if [ -d "$3" ]; then cp -a "{_STAGED}/$1" "${{3%/}}/$2"; else cp -a "{_STAGED}/$1" "$3"; fi
}}"""
_INSTRUCTION = re.compile(r"([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S+))?\s+")
_PAIR = re.compile(r"""([A-Za-z_][\w.-]*)=((?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])*)(?:\s+|$)""", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::([-+])([^}]*))?\}|(\w+))")
_ARCHIVE = re.compile(r"\.(tar(?:\.(?:gz|bz2|xz))?|tgz|tbz2|txz)$")
_UNPACK = {
    "tar": "",
    "tar.gz": "z",
    "tgz": "z",
    "tar.bz2": "j",
    "tbz2": "j",
    "tar.xz": "J",
    "txz": "J",
}  # tar's letters
_HEREDOC = re.compile(r"<<-?\s*[\"']?[A-Za-z_]")
# What has no meaning where no daemon runs the image, and what is done instead.
_WITHOUT_MEANING = {
    "EXPOSE": "ports are not closed in an image",
    "VOLUME": "use container.binds",
    "STOPSIGNAL": "the scheduler's signals are sent",
    "HEALTHCHECK": "nobody asks for it",
    "MAINTAINER": "write LABEL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A definition, and what a user should know of how it differs from the Dockerfile: a line each."""

    text: str
    remarks: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Stage:
    """What one stage is to become, as it is given to spython: the form of each instruction, in order."""

    base: str
    name: str | None
    environ: list[str] = field(default_factory=list)  # lines of %environment
    labels: list[tuple[str, str]] = field(default_factory=list)
    post: list[str] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)
    from_stages: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    entrypoint: list[str] | None = None
    command: list[str] | None = None
    directory: str = "/"
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    known: dict[str, str | None] = field(default_factory=dict)  # of ARG and ENV; None: of the image, not known here

    def form(self, number: int) -> Iterator[str]:
        """Yield the lines of a Dockerfile that spython reads as they are meant."""
        yield f"FROM {self.base} AS stage{number}"
        yield from (f"COPY {source} {target}" for source, target in self.files)
        for other, pairs in self.from_stages.items():
            yield from (f"COPY --from=stage{other} {source} {target}" for source, target in pairs)
        yield from (f"RUN {line}" for line in self.post)
        if self.entrypoint is not None:
            yield f"ENTRYPOINT {json.dumps(self.entrypoint)}"
        if self.command is not None:
            yield f"CMD {json.dumps(self.command)}"


def convert(path: Path) -> Converted:
    """Return the definition that the Dockerfile *path* means; raise `ConfigError` with the line that has none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(f"container.dockerfile={path} cannot be read: {why}") from error
    reader = _Reader(path)
    for number, line in _logical_lines(text):
        reader.take(number, line)
    require(bool(reader.stages), f"{path} has no FROM: a Dockerfile begins with one")
    _check(path, reader.stages)
    lines = [line for number, stage in enumerate(reader.stages) for line in _definition(number, stage, reader.stages)]
    return Converted(text="\n".join(lines) + "\n", remarks=tuple(reader.remarks))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the instructions with the numbers of their first lines; comments and continuations are taken out."""
    escape, begun, first = "\\", "", 0
    for number, line in enumerate(text.splitlines(), 1):
        directive = re.fullmatch(r"#\s*escape\s*=\s*(\S)\s*", line)
        if directive and not first:
            escape = directive[1]
        if line.lstrip().startswith("#") or (not line.strip() and not begun):
            continue
        first = first if begun else number
        begun += line.strip() if not begun else f" {line.strip()}" if line.strip() else ""
        if begun.endswith(escape):
            begun = begun[: -len(escape)].rstrip() + " "
        else:
            yield first, begun.strip()
            begun = ""
    if begun.strip():
        yield first, begun.strip()


class _Reader:
    """Takes the instructions in their order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        self.stages: list[_Stage] = []
        self.remarks: list[str] = []
        self._global: dict[str, str | None] = {}
        self._copies = 0
        self._line = 0

    def take(self, number: int, line: str) -> None:
        """Take one instruction; raise `ConfigError` for one that a definition cannot say."""
        self._line = number
        match = _INSTRUCTION.fullmatch(line)
        name, words = (match[1].upper(), (match[2] or "").strip()) if match else (line, "")
        takers: Mapping[str, Callable[[str], None]] = {
            "FROM": self._from, "ARG": self._arg, "ENV": self._env, "LABEL": self._label, "RUN": self._run,
            "COPY": self._copy, "ADD": self._copy, "WORKDIR": self._workdir, "USER": self._user, "SHELL": self._shell,
            "ENTRYPOINT": self._entrypoint, "CMD": self._cmd,
        }  # fmt: skip
        self._require(name in takers or name in _WITHOUT_MEANING or name == "ONBUILD", f"{name} is no instruction")
        self._require(
            name != "ONBUILD", "ONBUILD is for images built from this one: write what it does where it is done"
        )
        self._require(bool(words), f"{name} says nothing")
        self._require(bool(self.stages) or name in ("FROM", "ARG"), f"{name} stands before FROM")
        if name in _WITHOUT_MEANING:
            self._remark(f"{name} is left out: {_WITHOUT_MEANING[name]}")
        elif name == "ADD":
            self._add(words)
        else:
            takers[name](words)

    @property
    def _stage(self) -> _Stage:
        return self.stages[-1]

    def _require(self, holds: bool, what: str) -> None:  # noqa: FBT001 - as errors.require
        require(holds, f"{self.path}:{self._line}: {what}")

    def _remark(self, what: str) -> None:
        self.remarks.append(f"{self.path.name}:{self._line}: {what}")

    def _flags(self, words: str) -> tuple[dict[str, str], str]:
        found = {}
        while match := _FLAG.match(words):
            found[match[1]] = match[2] or ""
            words = words[match.end() :].strip()
        return found, words

    def _expanded(self, words: str, known: Mapping[str, str | None]) -> str:
        """Return *words* with the variables of ARG and ENV in place; those that are not known here are refused."""

        def value(match: re.Match[str]) -> str:
            name, sign, other = match[1] or match[4], match[2], match[3]
            found = known.get(name)
            if sign == "+":
                return other if found else ""
            if not found and sign == "-":
                return str(other)
            self._require(found is not None, f"the value of ${name} is not known here: write it, or ARG {name}=...")
            return str(found)

        return _VARIABLE.sub(value, words)

    def _from(self, words: str) -> None:
        flags, words = self._flags(words)
        self._require(
            not flags, f"--{next(iter(flags), '')}: the image is made for the processor that builds it: leave it out"
        )
        match = re.fullmatch(r"(\S+)(?:\s+(?i:as)\s+(\S+))?", words)
        self._require(match is not None, f"FROM {words}: write FROM IMAGE:TAG, or FROM IMAGE:TAG AS NAME")
        assert match is not None
        base = self._expanded(match[1], self._global)
        self._require(base != "scratch", "FROM scratch is an empty image: begin from one that has a shell")
        earlier = [stage.name for stage in self.stages]
        self._require(
            base not in earlier, f"FROM {base} goes on from another stage: begin from its image, and COPY --from"
        )
        self.stages.append(_Stage(base=base, name=match[2]))

    def _arg(self, words: str) -> None:
        name, sign, value = words.partition("=")
        if not self.stages:
            self._require(bool(sign), f"ARG {name} has no value: there is no --build-arg here: write ARG {name}=...")
            self._global[name] = self._expanded(_unquoted(value), self._global)
            return
        if not sign and self._global.get(name) is not None:
            value = str(self._global[name])
        else:
            self._require(bool(sign), f"ARG {name} has no value: there is no --build-arg here: write ARG {name}=...")
            value = self._expanded(_unquoted(value), self._stage.known)
        self._stage.known[name] = value
        self._stage.post.append(f"export {name}={shlex.quote(value)}")

    def _env(self, words: str) -> None:
        for name, value in self._pairs("ENV", words):
            line = f"export {name}={value}"
            plain = re.fullmatch(r'"([^$`\\"]*)"', value)
            self._stage.known[name] = plain[1] if plain else None
            self._stage.environ.append(line)
            self._stage.post.append(line)

    def _label(self, words: str) -> None:
        for name, value in self._pairs("LABEL", words):
            plain = value[1:-1].replace("\\$", "$").replace('\\"', '"').replace("\\\\", "\\")
            self._stage.labels.append((name, " ".join(self._expanded(plain, self._stage.known).split())))

    def _pairs(self, what: str, words: str) -> Iterator[tuple[str, str]]:
        """Yield the names and values of ENV or LABEL, each value for a shell, in double quotes."""
        if "=" not in words.split(maxsplit=1)[0]:  # the old form: one name, and the rest of the line
            name, _, value = words.partition(" ")
            self._require(
                re.fullmatch(r"[A-Za-z_]\w*", name) is not None and bool(value.strip()),
                f"{what} {words}: write NAME=value",
            )
            yield name, _for_shell(value.strip(), self._stage.known)
            return
        at = 0
        while at < len(words):
            match = _PAIR.match(words, at)
            self._require(match is not None, f"{what} {words[at:]}: write NAME=value, values with spaces in quotes")
            assert match is not None
            self._require(
                what == "LABEL" or re.fullmatch(r"[A-Za-z_]\w*", match[1]) is not None,
                f"{match[1]} is no variable's name",
            )
            yield match[1], _for_shell(match[2], self._stage.known)
            at = match.end()

    def _run(self, words: str) -> None:
        flags, words = self._flags(words)
        for flag, value in flags.items():
            self._require(
                flag == "mount" and value.startswith("type=cache"),
                f"--{flag}={value} is nothing that a build here can do",
            )
            self._remark("--mount=type=cache is left out: nothing is kept from one build to the next")
        self._require(
            _HEREDOC.search(words) is None,
            "a here-document (<<) is not read: write the lines with && or put them into a file",
        )
        argv = _listed(words)
        line = shlex.join(argv) if argv is not None else shlex.join([*self._stage.shell, words])
        self._stage.post.append(line)

    def _workdir(self, words: str) -> None:
        place = self._place(_unquoted(words))
        self._stage.directory = place
        self._stage.post.append(f"mkdir -p {shlex.quote(place)} && cd {shlex.quote(place)}")
        self._remark(f"WORKDIR {place} counts while the image is built; runs begin in their own directory")

    def _place(self, words: str) -> str:
        """Return a path of the image, absolute; with the slash at its end, if there is one."""
        found = self._expanded(words, self._stage.known)
        joined = PurePosixPath(self._stage.directory) / found
        return f"{joined}/" if found.endswith(("/", "/.")) or found == "." else str(joined)

    def _copy(self, words: str, *, unpacks: bool = False) -> None:
        flags, words = self._flags(words)
        for flag in flags:
            self._require(flag in ("from", "chown", "link"), f"--{flag} is nothing that a definition can say: use RUN")
        if "chown" in flags:
            self._remark(f"--chown={flags['chown']} is left out: files of an image are read as yourself")
        names = _listed(words) or self._words(words)
        self._require(len(names) >= 2, f"{words}: write COPY SOURCE... DESTINATION")
        self._require(_HEREDOC.search(words) is None, "a here-document (<<) is not read: put the lines into a file")
        *sources, target = names
        place = self._place(target)
        stage = flags.get("from")
        for source in sources:
            for name in [source] if stage is not None else self._sources(source, place):
                self._require(not re.search(r"\s", name + place), f"{name}: names with spaces are not read: rename it")
                staged = str(self._copies)
                self._copies += 1
                if stage is None:
                    self._stage.files.append((name, f"{_STAGED}/{staged}"))
                else:
                    pairs = self._stage.from_stages.setdefault(self._number(stage), [])
                    pairs.append((self._expanded(name, self._stage.known), f"{_STAGED}/{staged}"))
                if unpacks and (packed := _ARCHIVE.search(name)):
                    self._stage.post.append(
                        f"mkdir -p {shlex.quote(place)} && "
                        f"tar -x{_UNPACK[packed[1]]}f {_STAGED}/{staged} -C {shlex.quote(place)}"
                    )
                else:
                    self._stage.post.append(shlex.join(["hpcml_put", staged, PurePosixPath(name).name or "x", place]))

    def _words(self, words: str) -> list[str]:
        try:
            return shlex.split(words)
        except ValueError as error:
            raise ConfigError(f"{self.path}:{self._line}: {words}: {error}") from error

    def _sources(self, source: str, place: str) -> list[str]:
        """Return the names of what is copied, relative to the folder of the Dockerfile."""
        written = self._expanded(source, self._stage.known).lstrip("/")
        self._require(".." not in PurePosixPath(written).parts, f"{source} lies outside of the Dockerfile's folder")
        found = (
            ["."]
            if written in ("", ".", "./")
            else sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(written))
        )
        self._require(bool(found), f"{source} is not there ({self.folder} is looked into)")
        self._require(len(found) == 1 or place.endswith("/"), f"{source} are several: end {place} with a slash")
        if any((self.folder / name).is_dir() for name in found) and (self.folder / ".dockerignore").exists():
            self._remark(f".dockerignore is not read: all of {source} is copied")
        return found

    def _number(self, stage: str) -> int:
        names = [one.name for one in self.stages[:-1]]
        number = names.index(stage) if stage in names else int(stage) if stage.isdigit() else -1
        self._require(
            0 <= number < len(names),
            f"--from={stage} is no stage above: an image has to be one, by FROM {stage} AS ...",
        )
        return number

    def _add(self, words: str) -> None:
        _, rest = self._flags(words)
        remote = next((word for word in rest.split() if re.match(r"(https?|git|ftp)[:@]", word)), None)
        self._require(remote is None, f"ADD {remote} is not fetched: write RUN with curl or git, and check what came")
        self._copy(words, unpacks=True)

    def _user(self, words: str) -> None:
        if words.partition(":")[0] not in ("root", "0"):
            self._remark(f"USER {words} is left out: %post is done as root of the image, and runs are yours")

    def _shell(self, words: str) -> None:
        argv = _listed(words)
        self._require(argv is not None, f'SHELL {words}: write SHELL ["/bin/bash", "-c"]')
        self._stage.shell = tuple(argv or ())

    def _entrypoint(self, words: str) -> None:
        self._stage.entrypoint = _listed(words) or [*self._stage.shell, words]
        self._stage.command = None

    def _cmd(self, words: str) -> None:
        self._stage.command = _listed(words) or [*self._stage.shell, words]


def _listed(words: str) -> list[str] | None:
    """Return the words of a JSON list, as RUN, COPY and others take; None for anything else."""
    if not words.startswith("["):
        return None
    try:
        found = json.loads(words)
    except ValueError:
        return None
    return found if isinstance(found, list) and found and all(isinstance(word, str) for word in found) else None


def _unquoted(value: str) -> str:
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _for_shell(value: str, known: Mapping[str, str | None]) -> str:
    """Return a value of ENV in double quotes: what Docker leaves literal is, and variables stay those of the shell."""
    out, quote, at = "", "", 0
    while at < len(value):
        sign = value[at]
        if sign in "'\"" and quote in ("", sign):
            quote = "" if quote else sign
        elif sign == "\\" and quote != "'" and at + 1 < len(value):
            at += 1
            out += f"\\{value[at]}" if value[at] in '$`"\\' else value[at] if not quote else f"\\\\{value[at]}"
        elif sign == "$" and quote != "'" and (match := _VARIABLE.match(value, at)):
            name = match[1] or match[4]
            plain = known.get(name)
            is_plain = plain is not None and not match[2] and re.fullmatch(r'[^$`\\"]*', plain)
            out += str(plain) if is_plain else match[0]
            at = match.end() - 1
        else:
            out += f"\\{sign}" if sign in '$`"\\' else sign
        at += 1
    return f'"{out}"'


def _check(path: Path, stages: list[_Stage]) -> None:
    """Let spython make its recipes, and raise `ConfigError` where one is not what was given to it."""
    parser = DockerParser(None, load=False)
    parser.lines = [line for number, stage in enumerate(stages) for line in stage.form(number)]
    level, bot.level = bot.level, -5  # it warns of names that it looks for in the current folder
    try:
        parser.parse()
    finally:
        bot.level = level
    for number, stage in enumerate(stages):
        recipe = parser.recipe.get(f"stage{number}")
        layers = {f"stage{other}": [list(pair) for pair in pairs] for other, pairs in stage.from_stages.items()}
        same = recipe is not None and (
            recipe.fromHeader.strip() == stage.base
            and recipe.install == stage.post
            and recipe.files == [list(pair) for pair in stage.files]
            and dict(recipe.layer_files) == layers
            and recipe.entrypoint == stage.entrypoint
            and recipe.cmd == stage.command
        )
        require(
            same, f"{path}: spython reads the stage FROM {stage.base} otherwise than it is written: write a definition"
        )


def _definition(number: int, stage: _Stage, stages: list[_Stage]) -> Iterator[str]:
    yield "Bootstrap: docker"
    yield f"From: {stage.base}"
    if len(stages) > 1:
        yield f"Stage: stage{number}"
    if stage.files:
        yield from ["", "%files", *(f"    {source} {target}" for source, target in stage.files)]
    for other, pairs in stage.from_stages.items():
        yield from ["", f"%files from stage{other}", *(f"    {source} {target}" for source, target in pairs)]
    if stage.labels:
        yield from ["", "%labels", *(f"    {name} {value}" for name, value in stage.labels)]
    if stage.environ:
        yield from ["", "%environment", *(f"    {line}" for line in stage.environ)]
    if stage.post:
        copies = bool(stage.files or stage.from_stages)
        yield from ["", "%post", *(_PUT.splitlines() if copies else ()), "cd /", *stage.post]
        yield from [f"rm -rf {_STAGED}"] if copies else []
    if number == len(stages) - 1 and (stage.entrypoint or stage.command):
        yield from ["", "%runscript", *_runscript(stage.entrypoint or [], stage.command or [])]


def _runscript(entrypoint: list[str], command: list[str]) -> Iterator[str]:
    if command:
        yield f'    [ "$#" -gt 0 ] || set -- {shlex.join(command)}'
    yield f'    exec {shlex.join(entrypoint)} "$@"'.replace("exec  ", "exec ")
