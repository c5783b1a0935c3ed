"""What a stage of a Dockerfile is to become, and how spython and Apptainer are told of it; `dockerfile` makes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spython.logger import bot
from spython.main.parse.parsers import DockerParser

from hpcml.errors import ConfigError, require
from hpcml.images.dockerfile_context import is_pattern
from hpcml.images.dockerfile_lines import quoted

STAGED = "/.hpcml-copy"  # where %files lays down what %post puts in place
OWN_TMP = "var/tmp/.hpcml-of-this-build"  # a file that is there where /tmp and /var/tmp are the build's alone
_KEPT = "/.hpcml-kept"  # where %post keeps what other stages copy from /tmp, which is not in the image
_PUT = f"""hpcml_put() {{
    [ ! -d "{STAGED}/$1" ] || {{ mkdir -p "$3"; cp -a "{STAGED}/$1/." "$3/"; return; }}
    case $3 in */) mkdir -p "$3";; *) mkdir -p "$(dirname "$3")";; esac
    if [ -d "$3" ]; then cp -a "{STAGED}/$1" "${{3%/}}/$2"; else cp -a "{STAGED}/$1" "$3"; fi
}}"""
_BIND = f"""hpcml_bind() {{
    if [ -d "{STAGED}/$1" ]; then
        mkdir -p "$3"
        [ -z "$(ls -A "$3")" ] || {{ echo "hpcml: --mount=type=bind: $3 is not empty: use COPY" >&2; exit 1; }}
        cp -a "{STAGED}/$1/." "$3/"
    else
        mkdir -p "$(dirname "$3")"
        [ ! -e "$3" ] || mv "$3" "$3.hpcml-kept"
        cp -a "{STAGED}/$1" "$3"
    fi
}}
hpcml_unbind() {{
    if [ -d "$1" ]; then rm -rf "$1"/* "$1"/.[!.]*; else rm -f "$1"; fi
    [ ! -e "$1.hpcml-kept" ] || mv "$1.hpcml-kept" "$1"
}}"""
# What Docker's kinds `cache` and `tmpfs` show for one RUN; a place that the runtime has mounted (/tmp) stays as it is.
_MOUNT = """hpcml_mount() {
    mkdir -p "$1" "$(dirname "$2")"
    [ ! -e "$2" ] || mv "$2" "$2.hpcml-kept" 2>/dev/null || return 0
    mv "$1" "$2"
}
hpcml_unmount() {
    [ ! -d "$1" ] || return 0
    mv "$2" "$1"
    if [ -e "$2.hpcml-kept" ]; then mv "$2.hpcml-kept" "$2"; else mkdir "$2"; fi
}"""
_FETCH = """hpcml_fetch() {
    mkdir -p "$(dirname "$2")"
    if command -v curl >/dev/null; then curl -fsSL -o "$2" "$1"
    elif command -v wget >/dev/null; then wget -q -O "$2" "$1"
    elif command -v python3 >/dev/null; then
        python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' "$1" "$2"
    else echo "hpcml: ADD $1: the image has no curl, wget or python3: install one before it" >&2; exit 1; fi
}"""
_HOME = """hpcml_home() {
    hpcml_found=$(while IFS=: read -r name _ id _ _ home _ || [ -n "$name" ]; do
        case $1 in "$name"|"$id") echo "$home"; break;; esac; done </etc/passwd)
    export HOME="${hpcml_found:-/}"
    case $hpcml_found/ in # of users of the system, such as sys, whose is /dev
    /|//|/bin/*|/sbin/*|/lib/*|/usr/*|/etc/*|/dev/*|/proc/*|/sys/*|/run/*|/var/) ;;
    *) hpcml_homes="$hpcml_homes $hpcml_found";; esac
}"""
# In Docker each stage has a /tmp of its own. One that others use, too, is never cleared: whoever builds the definition
# without hpcml has the machine's, where the file is not.
_NEW_TMP = f"[ ! -O /{OWN_TMP} ] || rm -rf /tmp/* /tmp/.[!.]* /var/tmp/*"
# A run is neither root nor another user of the image, and Docker starts programs as these: what installers have put
# into their homes is to be read, and what was unpacked for the program alone, as below a folder of mktemp -d. Where a
# folder of the host's is bound there, as APPTAINER_BINDPATH may do, nothing is.
_OPEN = """hpcml_open() {
    for each in /root /home/* /opt/* $hpcml_homes "$@"; do
        case $each in /home/*) [ ! -L /home ] || continue;; esac
        [ -d "$each" ] && [ ! -L "$each" ] || continue
        while read -r _ _ _ _ place _; do
            case $place/ in "$each"/*) continue 2;; esac
            case $each/ in "$place"/*) continue 2;; esac
        done </proc/self/mountinfo
        chmod -R go+rX "$each"
    done
}"""
_OF_TMP = re.compile(r"/+(var/+)?tmp(/|$)")
_FUNCTIONS = {
    "hpcml_put": _PUT.splitlines(),
    "hpcml_bind": _BIND.splitlines(),
    "hpcml_mount": _MOUNT.splitlines(),
    "hpcml_fetch": _FETCH.splitlines(),
    "hpcml_home": _HOME.splitlines(),
}


@dataclass(slots=True, kw_only=True)
class Stage:
    """What one stage is to become, as it is given to spython: the form of each instruction, in order."""

    label: str  # in the definition
    base: str
    name: str | None = None
    environ: list[str] = field(default_factory=list)  # lines of %environment
    labels: list[tuple[str, str]] = field(default_factory=list)
    post: list[str] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)
    from_stages: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # by label
    functions: set[str] = field(default_factory=set)  # of the shell, that post calls
    kept: list[str] = field(default_factory=list)  # of /tmp, for other stages
    workdirs: list[str] = field(default_factory=list)  # but those of the system
    mounted: dict[str, int] = field(default_factory=dict)  # the number of what is shown for a RUN, by id or place
    entrypoint: list[str] | None = None
    command: list[str] | None = None
    directory: str | None = "/"  # None: the image's variables say
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    known: dict[str, str | None] = field(default_factory=dict)  # of ARG and ENV; None: of the image, not known here
    unset: set[str] = field(default_factory=set)  # ARG without a value
    remarks: list[tuple[int, str]] = field(default_factory=list)  # with their lines
    variables: set[str] = field(default_factory=set)  # of ENV, which ARG does not change
    of_base: Mapping[str, str] = field(default_factory=dict)  # its variables
    runs: tuple[list[str] | None, list[str] | None] = (None, None)  # entrypoint and command of the base
    triggers: list[str] = field(default_factory=list)  # of ONBUILD, for stages that begin from this one
    has_command: bool = False  # a CMD of its own, which ENTRYPOINT keeps
    refusal: ConfigError | None = None  # the first instruction that a definition cannot say

    def after(self, label: str, name: str | None) -> Stage:
        """Return a stage that goes on from this one."""
        return replace(
            self,
            label=label,
            name=name,
            environ=[*self.environ],
            labels=[*self.labels],
            post=[*self.post],
            files=[*self.files],
            from_stages={label: [*pairs] for label, pairs in self.from_stages.items()},
            functions={*self.functions},
            workdirs=[*self.workdirs],
            mounted={**self.mounted},
            kept=[],
            known={**self.known},
            unset={*self.unset},
            variables={*self.variables},
            has_command=False,
            triggers=[],
            remarks=[*self.remarks],
        )

    def outlasting(self, name: str) -> str:
        """Return where *name* is once the stage is built, which has not the /tmp that %post has."""
        if not is_of_tmp(name):
            return name
        self.kept.append(name)
        return f"{_KEPT}/{len(self.kept) - 1}{'/*' if is_pattern(name) else ''}"

    def form(self) -> Iterator[str]:
        """Yield the lines of a Dockerfile that spython reads as they are meant."""
        yield f"FROM {self.base} AS {self.label}"
        yield from (f"COPY {source} {target}" for source, target in self.files)
        for other, pairs in self.from_stages.items():
            yield from (f"COPY --from={other} {source} {target}" for source, target in pairs)
        yield from (f"RUN {line}" for line in self.post)
        if self.entrypoint is not None:
            yield f"ENTRYPOINT {json.dumps(self.entrypoint)}"
        if self.command is not None:
            yield f"CMD {json.dumps(self.command)}"


def is_of_tmp(path: str) -> bool:
    """Tell whether *path* is /tmp or /var/tmp, or below: what is not in an image."""
    return _OF_TMP.match(path) is not None


def check(path: Path, stages: Sequence[Stage]) -> None:
    """Let spython make its recipes, and raise `ConfigError` where one is not what was given to it."""
    parser = DockerParser(None, load=False)
    parser.lines = [line for stage in stages for line in stage.form()]
    level, bot.level = bot.level, -5  # it warns of names that it looks for in the current folder
    try:
        parser.parse()
    finally:
        bot.level = level
    for stage in stages:
        recipe = parser.recipe.get(stage.label)
        layers = {other: [list(pair) for pair in pairs] for other, pairs in stage.from_stages.items()}
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


def definition(stage: Stage, stages: Sequence[Stage]) -> Iterator[str]:
    """Yield the lines of the definition for *stage* of *stages*, of which the last is the image."""
    yield "Bootstrap: docker"
    yield f"From: {stage.base}"
    if len(stages) > 1:
        yield f"Stage: {stage.label}"
    if stage.files:
        yield from ["", "%files", *(f"    {source} {target}" for source, target in stage.files)]
    for other, pairs in stage.from_stages.items():
        yield from ["", f"%files from {other}", *(f"    {source} {target}" for source, target in pairs)]
    if stage.labels:
        yield from ["", "%labels", *(f"    {name} {value}" for name, value in stage.labels)]
    if stage.environ:
        yield from ["", "%environment", *(f"    {line}" for line in stage.environ)]
    if stage.post:
        yield from ["", "%post", *(line for name in _FUNCTIONS if name in stage.functions for line in _FUNCTIONS[name])]
        yield from _OPEN.splitlines() if stage is stages[-1] else []
        yield from [_NEW_TMP] if stage is not stages[0] else []
        yield from [f"export HOME={quoted(stage.of_base.get('HOME', '/root'))}", "cd /", *stage.post]
        yield from [f"rm -rf {STAGED}"] if stage.functions - {"hpcml_home"} else []
        for number, name in enumerate(stage.kept):
            is_several = is_pattern(name)
            yield f"mkdir -p {_KEPT}/{number if is_several else ''}; cp -aH {name} {_KEPT}/{number}"
        yield from (
            [" ".join(["hpcml_open", *map(quoted, dict.fromkeys(stage.workdirs))])] if stage is stages[-1] else []
        )
    is_other = (stage.entrypoint, stage.command) != stage.runs
    if stage is stages[-1] and is_other and (stage.entrypoint or stage.command):
        yield from ["", "%runscript", *_runscript(stage.entrypoint or [], stage.command or [])]


def _runscript(entrypoint: list[str], command: list[str]) -> Iterator[str]:
    if command:
        yield f'    [ "$#" -gt 0 ] || set -- {quoted(*command)}'
    yield f'    exec {quoted(*entrypoint)} "$@"'.replace("exec  ", "exec ")
