"""Makes a definition of a Dockerfile, or says by line why not: for ``container.dockerfile`` and ``build --dockerfile``.

Two steps. Each instruction is read here and put into the one form of it that spython's parser takes as it is meant;
from these spython makes its recipes, a stage each, which are compared with what was given to it (`dockerfile_stages`).
What a definition cannot say is refused, and what it says otherwise is remarked on, with the number of the line.
docs/decisions/spython.md has what spython's parser makes of Dockerfiles as people write them.

In %post each RUN is a shell of its own, as in Docker, and what COPY brings is put in place when its turn comes: %files,
which Apptainer does first, only lays it down in `STAGED`. A stage that goes on from another one has all that one's
instructions before its own; a stage that the last one does not need is left out, with what a definition could not say.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hpcml.errors import ConfigError, require
from hpcml.images.dockerfile_context import Context, is_pattern, is_source
from hpcml.images.dockerfile_lines import (
    Heredoc,
    Instruction,
    in_double_quotes,
    instructions,
    listed,
    printing,
    quoted,
    unquoted,
    without_heredocs,
)
from hpcml.images.dockerfile_stages import STAGED, Stage, check, definition, is_of_tmp
from hpcml.images.registry import host_architecture
from hpcml.model.container import breaks_line
from hpcml.model.image import BaseSettings

_FLAG = re.compile(r"--([a-z-]+)(?:=(\S+))?\s+")
_VALUE = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])*"""
_PAIR = re.compile(rf"""("[\w./-]+"|[A-Za-z_][\w.-]*)=({_VALUE})(?:\s+|$)""", re.DOTALL)
_ARG = re.compile(rf"([A-Za-z_]\w*)(?:=({_VALUE}))?(?:\s+|$)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(:?[-+?])((?:\\.|\$\{[^}]*\}|[^}\\])*))?\}|(\w+))")
_BASE = re.compile(r"[\w./:@-]+", re.ASCII)
_REMOTE = re.compile(r"(?i)(https?://|git[:@]|ssh:|ftp:)")
_CHMOD = re.compile(r"[0-7]{3,4}|[ugoa]*[-+=][rwxXst]*(,[ugoa]*[-+=][rwxXst]*)*")
_PIP = re.compile(r"\bpip[\d.]*\b.*\binstall\b")
_TO_HOME = re.compile(r"\s--user\b(?!-)")
_TARGETS = ("target", "dst", "destination")
_OF_THE_SYSTEM = re.compile(r"/(?:(?:s?bin|lib(?:x?32|64)?|usr(?!/src/)|etc|dev|proc|sys|run|var)(?:/|$)|$)")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"})  # known to Docker without ARG
# What a program of whoever runs the image writes to: a place in the image, which is read only, would end it.
_OF_WHO_RUNS = {"HOME": "runs have your own home", **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), "runs use /tmp")}
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
    context: Path  # the folder that sources of %files are relative to
    images: tuple[str, ...]  # that its stages begin from, as they are written; the wanted stage's comes last


class _Piece(NamedTuple):
    """A part of a value: what it is, or what the shell of the image has to say."""

    text: str
    is_shell: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A path of the image."""

    word: str  # of the shell of %post, where relative ones count from WORKDIR
    is_folder: bool  # it ends with a slash
    path: str | None  # absolute; None: it has variables of the image


def convert(
    path: Path,
    *,
    context: Path | None = None,
    build_args: Mapping[str, str] | None = None,
    target: str | None = None,
    bases: Mapping[str, BaseSettings] | None = None,
) -> Converted:
    """Return the definition that the Dockerfile *path* means; raise `ConfigError` with the line that has none.

    *context* is the folder that it copies from, None its own; *build_args* are values for its ARG, *target* names the
    stage that is wanted, None the last: as with ``docker build -f PATH --build-arg NAME=VALUE --target STAGE CONTEXT``.
    *bases* has what its images say of themselves, as far as they could be asked; None: nobody has asked yet.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(f"container.dockerfile={path} cannot be read: {why}") from error
    folder = path.parent if context is None else context
    require(folder.is_dir(), f"container.context={folder} is no folder")
    reader = _Reader(path, Context(path, folder), build_args or {}, bases)
    for instruction in instructions(text, path):
        reader.take(instruction)
    require(bool(reader.stages), f"{path} has no FROM: a Dockerfile begins with one")
    needed = reader.needed(target)
    reader.require_build_args_declared()
    for stage in needed:
        if stage.refusal is not None:
            raise stage.refusal
    check(path, needed)
    lines = [line for stage in needed for line in definition(stage, needed)]
    remarks = dict.fromkeys(sorted(remark for stage in needed for remark in stage.remarks))
    return Converted(
        text="\n".join(lines) + "\n",
        remarks=tuple(f"{path.name}:{number}: {what}" for number, what in remarks),
        context=folder,
        images=tuple(stage.base for stage in needed),
    )


class _Reader:
    """Takes the instructions in their order."""

    def __init__(
        self,
        path: Path,
        context: Context,
        build_args: Mapping[str, str],
        bases: Mapping[str, BaseSettings] | None,
    ) -> None:
        self.path = path
        self._context = context
        self._bases = bases
        self._trigger = ""  # which instruction of ONBUILD is being done
        self.stages: list[Stage] = []
        self._images: dict[str, Stage] = {}  # that COPY --from names, by what it says
        self._build_args = build_args
        self._global: dict[str, str | None] = dict(_platforms())
        self._declared: set[str] = set()
        self._copies = 0
        self._line = 0

    def take(self, instruction: Instruction) -> None:
        """Take one instruction; raise `ConfigError` for one that a definition cannot say before the first FROM.

        Of a stage the first such error is kept: nobody may need that stage.
        """
        self._line = instruction.line
        try:
            self._take(instruction)
        except ConfigError as error:
            if not self.stages:
                raise
            self._stage.refusal = self._stage.refusal or error

    def _take(self, instruction: Instruction) -> None:
        name, words = instruction.name, instruction.words
        takers: Mapping[str, Callable[[str], None]] = {
            "FROM": self._from, "ARG": self._arg, "ENV": self._env, "LABEL": self._label, "WORKDIR": self._workdir,
            "USER": self._user, "SHELL": self._shell, "ENTRYPOINT": self._entrypoint, "CMD": self._cmd,
            "ONBUILD": self._onbuild,
        }  # fmt: skip
        with_heredocs: Mapping[str, Callable[[str, Sequence[Heredoc]], None]] = {
            "RUN": self._run, "COPY": self._copy, "ADD": self._add,
        }  # fmt: skip
        is_known = name in takers or name in with_heredocs or name in _WITHOUT_MEANING
        self._require(is_known, f"{name} is no instruction")
        self._require(bool(words), f"{name} says nothing")
        self._require(bool(self.stages) or name in ("FROM", "ARG"), f"{name} stands before FROM")
        if name in _WITHOUT_MEANING:
            self._remark(f"{name} is left out: {_WITHOUT_MEANING[name]}")
        elif name in with_heredocs:
            with_heredocs[name](words, instruction.heredocs)
        else:
            takers[name](words)

    def needed(self, target: str | None) -> list[Stage]:
        """Return the stages that make the one that *target* names, or the last, which comes last; images first."""
        wanted = self.stages[-1]
        if target is not None:
            found = self._above(target, self.stages)
            names = ", ".join(stage.name or str(number) for number, stage in enumerate(self.stages))
            require(found is not None, f"container.target={target}: {self.path} has the stages {names}")
            wanted = found or wanted
        known = {stage.label: stage for stage in (*self._images.values(), *self.stages)}
        labels, left = {wanted.label}, [wanted]
        while left:
            more = [known[label] for label in left.pop().from_stages if label not in labels]
            labels |= {stage.label for stage in more}
            left += more
        return [*(stage for label, stage in known.items() if label in labels and stage is not wanted), wanted]

    def require_build_args_declared(self) -> None:
        """Raise `ConfigError` for a value for which the file has no ARG."""
        unknown = sorted({*self._build_args} - self._declared - _PROXIES)
        names = ", ".join(sorted(self._declared)) or "none"
        require(
            not unknown, f"container.build_args.{''.join(unknown[:1])}: {self.path} has no such ARG: it has {names}"
        )

    @property
    def _stage(self) -> Stage:
        return self.stages[-1]

    def _require(self, holds: bool, what: str) -> None:  # noqa: FBT001 - as errors.require
        require(holds, f"{self.path}:{self._line}: {self._trigger}{what}")

    def _remark(self, what: str) -> None:
        self._stage.remarks.append((self._line, f"{self._trigger}{what}"))

    def _flags(self, words: str) -> tuple[list[tuple[str, str]], str]:
        found = []
        while match := _FLAG.match(words):
            found.append((match[1], match[2] or ""))
            words = words[match.end() :].strip()
        return found, words

    def _expanded(self, words: str, known: Mapping[str, str | None], unset: Iterable[str] = ()) -> str:
        """Return *words* with the variables of ARG and ENV in place; those that are not known here are refused."""
        of_base = self._stage.of_base if self.stages else {}
        there = {name: value for name, value in {**of_base, **known}.items() if name not in unset}
        return "".join(piece.text for piece in self._pieces(words, there, (), has_quotes=False, of_image=False))

    def _pieces(
        self,
        words: str,
        known: Mapping[str, str | None],
        unset: Iterable[str],
        *,
        has_quotes: bool = True,
        of_image: bool = True,
    ) -> Iterator[_Piece]:
        """Yield the parts of *words* as Docker reads them, without quotes and backslashes where it *has_quotes*.

        With *of_image*, variables that are not known here are left to the shell of the image, else they are refused.
        """
        quote, at = "", 0
        while at < len(words):
            sign = words[at]
            if has_quotes and sign in "'\"" and quote in ("", sign):
                quote = "" if quote else sign
            elif has_quotes and sign == "\\" and quote != "'" and at + 1 < len(words):
                at += 1
                yield _Piece(f"\\{words[at]}" if quote and words[at] not in '$"\\' else words[at])
            elif sign == "$" and quote != "'" and (match := _VARIABLE.match(words, at)):
                yield from self._variable(match, known, unset, has_quotes=has_quotes, of_image=of_image)
                at = match.end() - 1
            else:
                is_read = not words.startswith("${", at) or quote == "'"
                self._require(is_read, f"{words}: of ${{NAME...}}, :-, :+, :?, -, + and ? are read: write the value")
                yield _Piece(sign)
            at += 1

    def _variable(
        self,
        match: re.Match[str],
        known: Mapping[str, str | None],
        unset: Iterable[str],
        *,
        has_quotes: bool,
        of_image: bool,
    ) -> Iterator[_Piece]:
        name, sign, other = match[1] or match[4], match[2] or "", match[3] or ""
        value = known.get(name)
        others = [*self._pieces(other, known, unset, has_quotes=has_quotes, of_image=of_image)]
        if value is None and of_image:
            inner = _in_double_quotes(others, closing="\\}")
            yield _Piece(f"${{{name}{sign}{inner}}}" if sign else match[0], is_shell=True)
            return
        hint = f"set container.build_args.{name}" if name in self._declared else f"write it, or ARG {name}=..."
        is_known = value is not None or (bool(sign) and name not in known)
        self._require(is_known, f"the value of ${name} is not known here: {hint}")
        is_there = value is not None and name not in unset and (bool(value) or not sign.startswith(":"))
        self._require(is_there or not sign.endswith("?"), f"${name} has no value: {other or hint}")
        if sign and is_there == sign.endswith("+"):
            yield from others
        elif not sign.endswith("+"):
            yield _Piece(value or "")

    def _here(self, words: str) -> str:
        """Return *words* with the variables of this stage in place."""
        return self._expanded(words, self._stage.known, self._stage.unset)

    def _from(self, words: str) -> None:
        flags, words = self._flags(words)
        match = re.fullmatch(r"(\S+)(?:\s+(?i:as)\s+(\S+))?", words)
        label, name = f"stage{len(self.stages)}", match[2] if match else None
        self.stages.append(Stage(label=label, base="", name=name))
        self._require(match is not None, f"FROM {words}: write FROM IMAGE:TAG, or FROM IMAGE:TAG AS NAME")
        assert match is not None
        image = self._image(match[1])
        earlier = self._above(image, self.stages[:-1]) if not image.isdigit() else None
        if earlier is not None:
            self.stages[-1] = earlier.after(label, name)
            triggers: Sequence[str] = earlier.triggers
        else:
            triggers = self._begin_from(image)
        ours = self._global["TARGETPLATFORM"]
        for flag, value in flags:
            self._require(
                flag == "platform" and self._expanded(value, self._global) == ours,
                f"--{flag}={value}: the image is made for the processor that builds it, {ours}: leave it out",
            )
        for trigger in triggers:
            self._trigger = f"ONBUILD {trigger} of {image}: "
            for instruction in instructions(trigger, self.path):
                self._require(instruction.name not in ("FROM", "ONBUILD"), "is nothing that ONBUILD may do")
                self._take(instruction)
            self._trigger = ""

    def _begin_from(self, image: str) -> Sequence[str]:
        """Let the stage begin from what *image* says of itself; return what that has to be done behind FROM."""
        stage = self._stage
        stage.base = image
        self._require(image != "scratch", "FROM scratch is an empty image: begin from one with a shell")
        settings = (self._bases or {}).get(image)
        if settings is None:
            if self._bases is not None:
                self._remark(f"of {image} is not known what it says of WORKDIR, SHELL, ENV, USER and ONBUILD")
            return ()
        stage.of_base = settings.variables
        stage.variables = {*settings.variables}
        stage.entrypoint, stage.command = [*settings.entrypoint] or None, [*settings.command] or None
        stage.runs = (stage.entrypoint, stage.command)
        self._shell(json.dumps(settings.shell_words))
        if settings.user:
            self._home_of(settings.user)
        if settings.directory != "/":
            self._go_to(self._place(settings.directory))
        return settings.triggers

    def _image(self, words: str) -> str:
        image = self._expanded(words, self._global)
        self._require(_BASE.fullmatch(image) is not None, f"{words}: {image!r} is no image: write NAME:TAG")
        return image

    @staticmethod
    def _above(name: str, stages: Sequence[Stage]) -> Stage | None:
        """Return the stage of *stages* that is called *name*, in letters of any case, or has that number."""
        for stage in reversed(stages):
            if stage.name is not None and stage.name.lower() == name.lower():
                return stage
        return stages[int(name)] if name.isdigit() and int(name) < len(stages) else None

    def _arg(self, words: str) -> None:
        declared, at = [], 0
        while match := _ARG.match(words, at):
            declared.append((match[1], match[2]))
            at = match.end()
        if at < len(words):  # as Docker had it once: one, whose value has spaces
            name, sign, value = words.partition("=")
            self._require(re.fullmatch(r"[A-Za-z_]\w*", name) is not None, f"ARG {name}: write ARG NAME=value")
            declared = [(name, value if sign else None)]
        for name, value in declared:
            self._arg_of(name, value)

    def _arg_of(self, name: str, written: str | None) -> None:
        self._declared.add(name)
        if self.stages and name in self._stage.variables:
            return  # ENV overrides ARG
        known = self._stage.known if self.stages else self._global
        given = self._build_args.get(name)
        if given is not None:
            value = given
        elif written is not None:
            unset = self._stage.unset if self.stages else ()
            there = {**self._stage.of_base, **known} if self.stages else known
            value = "".join(piece.text for piece in self._pieces(written, there, unset, of_image=False))
        elif self.stages and self._global.get(name) is not None:
            value = str(self._global[name])
        else:
            if self.stages:
                self._stage.unset.add(name)
                self._stage.known[name] = ""
                self._remark(f"ARG {name} has no value: container.build_args.{name} gives it one")
            return
        known[name] = value
        if self.stages:
            self._stage.unset.discard(name)
            self._stage.post.append(f"export {name}={quoted(value)}")

    def _env(self, words: str) -> None:
        known, unset = {**self._stage.known}, {*self._stage.unset}  # for all of them as they are before it
        pairs = [(name, [*self._pieces(value, known, unset)]) for name, value in self._pairs("ENV", words)]
        for name, pieces in pairs:
            is_known = not any(piece.is_shell for piece in pieces)
            self._stage.known[name] = "".join(piece.text for piece in pieces) if is_known else None
            self._stage.unset.discard(name)
            self._stage.variables.add(name)
        settings = [(name, f'{name}="{_in_double_quotes(pieces)}"') for name, pieces in pairs]
        self._stage.post.append(" ".join(["export", *(setting for _, setting in settings)]))
        kept_out = {name for name, _ in pairs if name in _OF_WHO_RUNS and not is_of_tmp(self._stage.known[name] or "")}
        for name in sorted(kept_out):
            self._remark(f"ENV {name} counts while the image is built: {_OF_WHO_RUNS[name]}")
        of_runs = [setting for name, setting in settings if name not in kept_out]
        self._stage.environ += [" ".join(["export", *of_runs])] if of_runs else []

    def _label(self, words: str) -> None:
        for name, value in self._pairs("LABEL", words):
            self._require(not name.startswith("org.hpcml."), f"LABEL {name} is set by hpcml: choose another name")
            known = {**self._stage.of_base, **self._stage.known}
            pieces = self._pieces(value, known, self._stage.unset, of_image=False)
            plain = "".join(piece.text for piece in pieces)
            self._require("{{" not in plain, f"LABEL {name}: Apptainer reads {{{{ as its own: write it otherwise")
            self._stage.labels.append((name, " ".join(plain.split())))

    def _pairs(self, what: str, words: str) -> Iterator[tuple[str, str]]:
        """Yield the names and values of ENV or LABEL, each value as it is written."""
        names = r"[A-Za-z_][\w./-]*" if what == "LABEL" else r"[A-Za-z_]\w*"
        if "=" not in words.split(maxsplit=1)[0]:  # the old form: one name, and the rest of the line
            name, _, value = words.partition(" ")
            self._require(
                re.fullmatch(names, name) is not None and bool(value.strip()), f"{what} {words}: write NAME=value"
            )
            yield name, value.strip()
            return
        at = 0
        while at < len(words):
            match = _PAIR.match(words, at)
            self._require(match is not None, f"{what} {words[at:]}: write NAME=value, values with spaces in quotes")
            assert match is not None
            name = unquoted(match[1]) if what == "LABEL" else match[1]
            self._require(re.fullmatch(names, name) is not None, f"{name} is no variable's name")
            yield name, match[2]
            at = match.end()

    def _run(self, words: str, heredocs: Sequence[Heredoc]) -> None:
        flags, words = self._flags(words)
        undone = [line for flag, value in flags if (line := self._run_flag(flag, value)) is not None]
        if any(_PIP.search(part) and _TO_HOME.search(part) for part in re.split(r"[;&|\n]", words)):
            self._remark("pip install --user puts packages into a home, where runs do not look: leave --user out")
        argv = self._list(words)
        if argv:
            line = f"(exec {quoted(*argv)})"  # no words of the shell, nor of definitions
        elif heredocs and not without_heredocs(words):
            line = self._script("".join(each.text for each in heredocs))
        elif heredocs:
            text = f"{words}\n" + "".join(f"{each.text}{each.word}\n" for each in heredocs)
            line = f'{quoted(*self._stage.shell)} "$({printing(text)})"'
        else:
            line = quoted(*self._stage.shell, words)
        self._stage.post += [line, *reversed(undone)]

    def _script(self, text: str) -> str:
        """Return the line that carries out *text*, by the program that its first line names, else by the shell."""
        if not text.startswith("#!"):
            return f'{quoted(*self._stage.shell)} "$({printing(text)})"'
        file = f"{STAGED}-script"
        return f"{printing(text)} >{file}; chmod 755 {file}; {file}; rm {file}"

    def _run_flag(self, flag: str, value: str) -> str | None:
        """Take a flag of RUN; return the line of the shell that takes it back after it, if there is one."""
        facts = dict(part.partition("=")[::2] for part in value.split(","))
        kind = facts.get("type", "bind") if flag == "mount" else ""
        if kind in ("cache", "tmpfs"):
            target = next((facts[name] for name in _TARGETS if facts.get(name)), "")
            self._require(bool(target), f"--{flag}={value}: write target=/where")
            place = self._place(target)
            key = facts.get("id") or place.word if kind == "cache" else self._count()
            store = f"{STAGED}/mounted-{self._stage.mounted.setdefault(key, len(self._stage.mounted))}"
            self._stage.functions.add("hpcml_mount")
            self._stage.post.append(f"hpcml_mount {store} {place.word}")
            if kind == "cache":
                self._remark("--mount=type=cache begins empty: nothing is kept from one build to the next")
            return f"hpcml_unmount {store} {place.word}"
        if kind == "bind":
            target = next((facts[name] for name in _TARGETS if facts.get(name)), "")
            self._require(bool(target), f"--{flag}={value}: write target=/where")
            place = self._place(target)
            source = facts.get("source") or facts.get("src") or ("." if "from" not in facts else "/")
            for number, name in self._staged(source, facts.get("from"), _Place(word="", is_folder=False, path=None)):
                self._stage.post.append(f"hpcml_bind {number} {quoted(_last(name))} {place.word}")
            self._stage.functions.add("hpcml_bind")
            return f"hpcml_unbind {place.word}"
        is_nothing = (flag, value) in {("network", "default"), ("security", "sandbox")}
        self._require(is_nothing, f"--{flag}={value} is nothing that a build here can do")
        return None

    def _workdir(self, words: str) -> None:
        place = self._place(unquoted(words))
        self._go_to(place)
        if place.path is not None and _OF_THE_SYSTEM.match(place.path) is None:
            self._stage.workdirs.append(place.path)
        self._remark(
            f"WORKDIR {place.path or words} counts while the image is built; runs begin in their own directory"
        )

    def _go_to(self, place: _Place) -> None:
        self._stage.directory = place.path
        self._stage.post.append(f"mkdir -p {place.word}; cd {place.word}")

    def _place(self, words: str) -> _Place:
        """Return a path of the image; variables that only the image has are the shell's."""
        is_folder = words.endswith(("/", "/.")) or words == "."
        names = [match[1] or match[4] for match in _VARIABLE.finditer(words) if not match[2]]
        known = {**self._stage.of_base, **self._stage.known}
        of_image = {name for name in names if known.get(name) is None and name not in self._declared}
        if not of_image and (self._stage.directory is not None or words.startswith("/")):
            found = self._here(words)
            is_folder = is_folder or found.endswith(("/", "/."))
            path = str(PurePosixPath(self._stage.directory or "/") / found)
            word = quoted(f"{path}/" if is_folder and path != "/" else path)
            return _Place(word=word, is_folder=is_folder, path=path)
        word, at = "", 0
        for match in _VARIABLE.finditer(words):
            name = match[1] or match[4]
            word += in_double_quotes(words[at : match.start()])
            word += f"${{{name}:?has no value in this image}}" if name in of_image else self._in_quotes(match[0])
            at = match.end()
        return _Place(word=f'"{word}{in_double_quotes(words[at:])}"', is_folder=is_folder, path=None)

    def _in_quotes(self, words: str) -> str:
        return in_double_quotes(self._here(words))

    def _copy(self, words: str, heredocs: Sequence[Heredoc], *, unpacks: bool = False) -> None:
        flags, words = self._flags(words)
        stage, mode = self._copy_flags(flags)
        plain = without_heredocs(words) if heredocs else words
        *sources, target = self._list(plain) or self._words(plain) or [""]
        self._require(len(sources) + len(heredocs) >= 1 and target != "", f"{words}: write COPY SOURCE... DESTINATION")
        place = self._place(target)
        is_several = len(sources) + len(heredocs) > 1
        self._require(place.is_folder or not is_several, f"{words} are several: end {target} with a slash")
        for heredoc in heredocs:
            self._write(heredoc, place, mode)
        for source in sources:
            for number, name in self._staged(source, stage, place):
                self._chmod(mode, number)
                letter = self._context.packed(name) if unpacks and stage is None else None
                if letter is not None:
                    self._stage.post.append(f"mkdir -p {place.word}; tar -x{letter}f {STAGED}/{number} -C {place.word}")
                elif stage is not None and is_pattern(name):  # of each folder that it names what is in it
                    put = f'hpcml_put "{number}/${{each##*/}}" "${{each##*/}}" {place.word}'
                    self._stage.post.append(f"for each in {STAGED}/{number}/*; do {put}; done")
                else:
                    self._stage.post.append(f"hpcml_put {number} {quoted(_last(name))} {place.word}")

    def _copy_flags(self, flags: Sequence[tuple[str, str]]) -> tuple[str | None, str | None]:
        """Return the stage or image that COPY is from, and the mode that its files get; None: said by nobody."""
        stage = mode = None
        for flag, value in flags:
            if flag == "from":
                stage = value
            elif flag == "chmod":
                mode = self._here(value)
                self._require(_CHMOD.fullmatch(mode) is not None, f"--chmod={value}: write --chmod=755")
            elif flag == "chown":
                self._remark(f"--chown={value} is left out: files of an image are read as yourself")
            else:
                self._require(flag == "link", f"--{flag} is nothing that a definition can say: use RUN")
        return stage, mode

    def _write(self, heredoc: Heredoc, place: _Place, mode: str | None) -> None:
        """Make a file of a here-document of COPY."""
        text = heredoc.text if heredoc.is_quoted else self._here_unescaped(heredoc.text)
        number = self._count()
        self._stage.functions.add("hpcml_put")
        self._stage.post.append(f"mkdir -p {STAGED}; {printing(text)} >{STAGED}/{number}")
        self._chmod(mode, number)
        self._stage.post.append(f"hpcml_put {number} {heredoc.word} {place.word}")

    def _chmod(self, mode: str | None, number: str) -> None:
        if mode is None:
            return
        for_all = "" if mode.isdigit() and int(mode[-1], 8) & 4 else f"; chmod -R go+rX {STAGED}/{number}"
        if for_all:
            self._remark(f"--chmod={mode}: everybody may read these files, for an image is read as yourself")
        self._stage.post.append(f"chmod -R {mode} {STAGED}/{number}{for_all}")

    def _here_unescaped(self, text: str) -> str:
        """Return *text* with variables in place, but for those behind a backslash, which goes."""
        parts = re.split(r"\\([$\\])", text)
        return "".join(part if at % 2 else self._here(part) for at, part in enumerate(parts))

    def _staged(self, source: str, stage: str | None, place: _Place) -> Iterator[tuple[str, str]]:
        """Have *source* laid down for %post; yield under which number, and its name in the context or the stage."""
        self._stage.functions.add("hpcml_put")
        if stage is not None:
            number, name = self._count(), self._here(source)
            self._require_name(name, may_be_pattern=True)
            self._require(".." not in PurePosixPath(name).parts, f"{source} lies outside of the stage")
            pairs = self._stage.from_stages.setdefault(self._label_of(stage), [])
            above = self._above(stage, self.stages[:-1])
            source = name if above is None else above.outlasting(name)
            pairs.append((source, f"{STAGED}/{number}{'/' if is_pattern(name) else ''}"))
            yield number, name
            return
        for found in self._sources(source, place):
            number = self._count()
            parts = self._parts(found)
            for name in parts:
                self._require_name(name)
                self._require_inside(name)
                below = PurePosixPath(name).relative_to(found) if name != found else None
                self._stage.files.append((name, f"{STAGED}/{number}" + (f"/{below}" if below else "")))
            self._stage.post += self._removals(found, number)
            if self._context.is_closed(parts):  # by a umask of 077: Docker's programs read it as root
                self._stage.post.append(f"chmod -R go+rX {STAGED}/{number}")
            yield number, found

    def _require_name(self, name: str, *, may_be_pattern: bool = False) -> None:
        """Raise `ConfigError` for a source that a shell would not read as it is written."""
        self._require(not re.search(r"\s", name), f"{name}: names with spaces are not read: rename it")
        is_plain = is_source(name) and (may_be_pattern or not is_pattern(name))
        self._require(is_plain, f"{name}: names with signs of a shell are not read: rename it")

    def _require_inside(self, name: str) -> None:
        """Raise `ConfigError` for a link that Docker copies as it is, and Apptainer with what it leads to."""
        for link, led_to in self._context.links_out(name):
            what = f"{link} leads out of the context, or nowhere: {led_to} would be copied: name it in .dockerignore"
            raise ConfigError(f"{self.path}:{self._line}: {what}")

    def _count(self) -> str:
        self._copies += 1
        return str(self._copies - 1)

    def _words(self, words: str) -> list[str]:
        try:
            return shlex.split(words)
        except ValueError as error:
            raise ConfigError(f"{self.path}:{self._line}: {words}: {error}") from error

    def _sources(self, source: str, place: _Place) -> list[str]:
        """Return the names of what is copied, relative to the context."""
        written = self._here(source).strip("/")
        folder = self._context.folder
        self._require(".." not in PurePosixPath(written).parts, f"{source} lies outside of the context {folder}")
        found = self._context.matching(written)
        if not found and is_pattern(source):
            self._remark(f"{source} is nothing in {folder}: nothing is copied, as in Docker")
            return []
        elsewhere = None if found else self._context.above_with(written)
        where = "" if elsewhere is None else f": set container.context={elsewhere}, where it is"
        self._require(bool(found), f"{source} is not there ({folder} is looked into){where}")
        found = [name for name in found if self._parts(name)]
        self._require(bool(found), f"{source} is kept out by .dockerignore")
        self._require(len(found) == 1 or place.is_folder, f"{source} are several: end the destination with a slash")
        return found

    def _parts(self, name: str) -> list[str]:
        """Return the names, *name* or below it, that are in the context whole."""
        parts = self._context.parts(name)
        if parts is None:
            self._remark(
                f".dockerignore counts for {name} once it is copied: its files are too many, or have odd names"
            )
            return [name]
        return parts

    def _removals(self, name: str, number: str) -> Iterator[str]:
        """Yield the lines that take away what .dockerignore keeps out of *name*, which was copied as a whole."""
        if self._parts(name) != [name]:
            return
        for out in self._context.left_out(name):
            self._require(not breaks_line(out), f"{out!r} has a line break in its name: rename it")
            yield f"rm -rf {quoted(f'{STAGED}/{number}/{out}')}"

    def _label_of(self, stage: str) -> str:
        """Return the label of the stage, or of the image, that ``--from`` names."""
        found = self._above(stage, self.stages[:-1])
        if found is not None:
            return found.label
        self._require(not stage.isdigit(), f"--from={stage} is no stage above")
        image = self._image(stage)
        return self._images.setdefault(image, Stage(label=f"image{len(self._images)}", base=image)).label

    def _add(self, words: str, heredocs: Sequence[Heredoc]) -> None:
        flags, rest = self._flags(words)
        remote = next((word for word in self._list(rest) or rest.split() if _REMOTE.match(word)), None)
        if remote is None:
            self._copy(words, heredocs, unpacks=True)
            return
        names = self._list(rest) or self._words(rest)
        url = self._here(names[0])
        checksum = next((value for flag, value in flags if flag == "checksum"), None)
        self._require(
            url.lower().startswith("http") and len(names) == 2 and not url.endswith((".git", "/")),
            f"ADD {remote} is not fetched: write RUN with curl or git, and check what came",
        )
        self._require(
            checksum is None or re.fullmatch(r"sha256:[0-9a-f]{64}", checksum) is not None,
            f"--checksum={checksum}: write sha256: and 64 hexadecimal digits",
        )
        number, place = self._count(), self._place(names[1])
        self._stage.functions |= {"hpcml_put", "hpcml_fetch"}
        self._stage.post.append(f"hpcml_fetch {quoted(url)} {STAGED}/{number}")
        if checksum is None:
            self._remark(f"ADD {url} is fetched in the image while it is built: add --checksum=sha256:... to check it")
        else:
            self._stage.post.append(f"echo '{checksum[7:]}  {STAGED}/{number}' | sha256sum -c -")
        file = PurePosixPath(url.partition("?")[0]).name
        self._stage.post.append(f"hpcml_put {number} {quoted(file)} {place.word}")

    def _user(self, words: str) -> None:
        self._home_of(self._here(words))
        if words.partition(":")[0] not in ("root", "0"):
            self._remark(f"USER {words} is left out: %post is done as root of the image, and runs are yours")

    def _home_of(self, user: str) -> None:
        """Let HOME be that of *user*, as Docker has it, unless ENV says what it is."""
        if "HOME" not in self._stage.variables:
            self._stage.functions.add("hpcml_home")
            self._stage.post.append(f"hpcml_home {quoted(user.partition(':')[0])}")

    def _onbuild(self, words: str) -> None:
        self._stage.triggers.append(words)
        self._remark("ONBUILD is done where another stage begins from this one, and not in images built upon it")

    def _shell(self, words: str) -> None:
        argv = self._list(words) or []
        is_program = bool(argv) and re.fullmatch(r"[\w./-]+", argv[0]) is not None
        self._require(is_program, f'SHELL {words}: write SHELL ["/bin/bash", "-c"]')
        self._stage.shell = tuple(argv)

    def _entrypoint(self, words: str) -> None:
        argv = self._list(words)
        self._stage.entrypoint = [*self._stage.shell, words] if argv is None else argv or None
        if not self._stage.has_command:
            self._stage.command = None

    def _cmd(self, words: str) -> None:
        argv = self._list(words)
        self._stage.command = [*self._stage.shell, words] if argv is None else argv or None
        self._stage.has_command = True

    def _list(self, words: str) -> list[str] | None:
        """Return the words of a JSON list; raise `ConfigError` for one that would be several lines."""
        found = listed(words)
        is_line = not any(breaks_line(word) for word in found or ())
        self._require(is_line, f"{words}: words with line breaks are not read: write RUN or COPY with <<EOF")
        return found


def _last(name: str) -> str:
    """Return the name that a source has in a folder."""
    return PurePosixPath(name).name or "x"


def _platforms() -> Iterator[tuple[str, str]]:
    """Yield the variables that Docker knows before any ARG: image and builder are of this machine's processor."""
    architecture = host_architecture()
    for what in ("TARGET", "BUILD"):
        yield from {
            f"{what}PLATFORM": f"linux/{architecture}",
            f"{what}OS": "linux",
            f"{what}ARCH": architecture,
            f"{what}VARIANT": "",
        }.items()


def _in_double_quotes(pieces: Iterable[_Piece], *, closing: str = "}") -> str:
    """Return a value as it stands between double quotes of a shell: variables are those of the shell."""
    texts = (each.text if each.is_shell else in_double_quotes(each.text).replace("}", closing) for each in pieces)
    return "".join(texts).replace("{{", '{""{')
