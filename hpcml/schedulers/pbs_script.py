"""What PBS is asked for, as options of qsub and as a job script; pure text, nothing is started here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import ConfigError, require
from hpcml.schedulers.pbs_nodes import on_every_node
from hpcml.schedulers.request import Request, fill
from hpcml.schedulers.script import body

LONGEST_NAME = 230  # qsub refuses 231: "Job name is too long"
_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_.+-]")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:=,@%+\[\]^-]+")
_DEPENDENCY = re.compile(r"(?:after|afterok|afternotok|afterany|before|beforeok|beforenotok|beforeany|on):\S+")
_CHUNK_RESOURCES = re.compile(r"[A-Za-z_]\w*=[^\s:=+]+(?::[A-Za-z_]\w*=[^\s:=+]+)*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAIL_POINTS = {"NONE": "n", "BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "abe"}
_HATCH = "; what PBS itself has for it can be given by resources.extra_directives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What qsub is told of a job, in PBS's words; None is not said."""

    name: str
    select: str
    log_dir: Path
    queue: str | None = None
    account: str | None = None
    place: str | None = None
    walltime_s: int | None = None
    array_size: int | None = None  # None: a plain job
    parallelism: int | None = None
    depend: str | None = None
    mail_user: str | None = None
    mail_points: str | None = "n"
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # qsub: "illegal -J value" for 0-0
        assert self.array_size is None or self.array_size > 1, "PBS has no array of one"


def ask(request: Request, *, name: str, log_dir: Path, array_size: int | None = None) -> Ask:
    """Say *request* in PBS's words, or raise `ConfigError` for what PBS has no word for."""
    require(
        request.qos is None,
        f"resources.qos={request.qos}: PBS has queues and no quality of service; give resources.partition{_HATCH}",
    )
    require(
        request.exclude is None,
        f"resources.exclude={request.exclude}: PBS cannot be told which nodes to avoid{_HATCH}",
    )
    extra = tuple(text.removeprefix("#PBS").strip() for text in request.extra_directives)
    for text in extra:
        require("\n" not in text, f"the directive {text!r} holds a line break: nothing may add lines to a job script")
    return Ask(
        name=job_name(name),
        select=_select(request),
        log_dir=log_dir,
        # A reservation of PBS is a queue; its id may carry the server's name: R123.server.
        queue=request.reservation.partition(".")[0] if request.reservation else request.partition,
        account=request.account,
        place=_place(request),
        walltime_s=request.walltime_s,
        array_size=array_size,
        parallelism=request.array_parallelism if array_size else None,
        depend=_depend(request.dependency),
        mail_user=request.mail_user,
        mail_points=_mail_points(request),
        extra=extra,
    )


def job_name(text: str) -> str:
    """Return *text* as a name that every PBS takes: no blanks, ASCII, and a letter first as old ones want it."""
    name = _NAME_CHARACTERS.sub("_", text)
    return (name if name[:1].isalpha() else f"j{name}")[:LONGEST_NAME]


def options(wanted: Ask) -> list[tuple[str, ...]]:
    """Return the options of qsub, each as its words, unquoted."""
    extra = [tuple(_words(text)) for text in wanted.extra if text]
    # The name is last, where nothing can replace it: a job whose id got lost is found again by it.
    return [*_own_options(wanted), *extra, ("-N", wanted.name)]


def _own_options(wanted: Ask) -> list[tuple[str, str]]:
    limit = f"%{wanted.parallelism}" if wanted.parallelism else ""
    said: list[tuple[str, str | None]] = [
        ("-q", wanted.queue),
        ("-A", wanted.account),
        ("-l", f"select={wanted.select}"),
        ("-l", None if wanted.place is None else f"place={wanted.place}"),
        ("-l", None if wanted.walltime_s is None else f"walltime={format_time(wanted.walltime_s)}"),
        ("-J", None if wanted.array_size is None else f"0-{wanted.array_size - 1}{limit}"),
        ("-W", None if wanted.depend is None else f"depend={wanted.depend}"),
        ("-W", "umask=022"),  # PBS's own is 077, for everything that the job creates
        ("-j", "oe"),
        ("-k", "oed"),  # written at once to the place of -o, not copied there at the end
        ("-o", log_place(wanted.log_dir)),
        ("-m", wanted.mail_points),
        ("-M", wanted.mail_user),
        ("-r", "y"),
    ]
    return [(flag, value) for flag, value in said if value is not None]


def log_place(folder: Path) -> str:
    """Return what `-o` may be told: the folder, or nowhere if qsub would refuse its name (it takes ASCII only)."""
    text = f"{folder}/"
    return text if text.isascii() and text.isprintable() and not set(text) & set("\"'\\`$^") else "/dev/null"


def qsub_argv(qsub: str, wanted: Ask, script: Path) -> list[str]:
    """Return the recommended submission: no login shell stands between PBS and *script*.

    Such a shell dies of signals meant for the job, and its exit status hides the job's. `#PBS` lines are not read in
    this form, which is why every option is said here again.
    """
    return [qsub, *(word for option in options(wanted) for word in option), "--", "/bin/bash", str(script)]


def render(
    request: Request, wanted: Ask, *, remark: str, script: Path, command: Sequence[str], requeue: Sequence[str] = ()
) -> str:
    """Return the whole job script, which lies at *script*; `qsub SCRIPT` by hand asks for the same as we do.

    *remark* is one line for who opens the file.
    """
    lines = ["#!/bin/bash", f"# {remark}", *(f"#PBS {directive}" for directive in directives(wanted)), ""]
    lines += [
        'cd "${PBS_O_WORKDIR:-.}"',  # PBS starts jobs in the home directory
        'export PATH="${PBS_O_PATH:-$PATH}"  # PBS gives /bin:/usr/bin only; this is where it was submitted',
    ]
    if log_place(wanted.log_dir) == "/dev/null":
        log = f'{shlex.quote(str(wanted.log_dir))}/"${{PBS_JOBID:-by-hand}}".OU'
        lines.append(f"exec >>{log} 2>&1  # not by -o: qsub takes ASCII paths only")
    if request.nodes > 1:
        lines += on_every_node(script, request.cluster.launcher)
    return "\n".join([*lines, *body(request, command, requeue=requeue)]) + "\n"


def directives(wanted: Ask) -> list[str]:
    """Return the options as `#PBS` lines want them; what the user wrote as a directive stays as it was written."""
    own = [f"{flag} {_quoted(value)}" for flag, value in _own_options(wanted)]
    return [*own, *(text for text in wanted.extra if text), f"-N {wanted.name}"]


def format_time(seconds: int) -> str:
    """Return HH:MM:SS, which may exceed a day: PBS refuses days in any form."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _select(request: Request) -> str:
    site = request.cluster
    cpus = request.cpus_per_node
    if cpus is None and (request.exclusive or site.whole_nodes):
        cpus = site.cores_per_node
    chunk = "" if cpus is None else f":ncpus={cpus}"
    if request.gpus_per_node > 0:
        words = fill(":ngpus={gpus}" if site.gpu_request is None else site.gpu_request, request)
        chunk += f":{words.removeprefix(':')}" if words else ""
    if request.mem_mb is not None:
        chunk += f":mem={request.mem_mb}mb"
    if request.constraint is not None:
        require(
            _CHUNK_RESOURCES.fullmatch(request.constraint) is not None,
            f"resources.constraint={request.constraint}: PBS knows no features; write name=value for a resource that "
            "the nodes must have",
        )
        chunk += f":{request.constraint}"
    if request.nodelist is None:
        return f"{request.nodes}{chunk}"
    hosts = request.nodelist.split(",")
    require(
        len(hosts) == request.nodes and all(_HOST.fullmatch(host) for host in hosts),
        f"resources.nodelist={request.nodelist}: PBS wants exactly one name for each of resources.nodes="
        f"{request.nodes}, separated by commas and without brackets",
    )
    return "+".join(f"1{chunk}:host={host}" for host in hosts)


def _place(request: Request) -> str | None:
    # Without scatter PBS puts several chunks on one node where they fit.
    words = ["scatter"] if request.nodes > 1 else []
    if request.exclusive:  # a site of whole nodes sees to that itself
        words.append("excl")
    return ":".join(words) or None


def _depend(text: str | None) -> str | None:
    if text is None:
        return None
    require(
        all(_DEPENDENCY.fullmatch(part) for part in text.split(",")),
        f"resources.dependency={text}: PBS has after, afterok, afternotok, afterany and before*, each as WORD:ID[:ID]",
    )
    return text


def _mail_points(request: Request) -> str | None:
    if request.mail_type is None:
        return "n" if request.mail_user is None else None  # None: PBS's own rule, which is to mail when a job is killed
    words = request.mail_type.upper().split(",")
    known = ", ".join(_MAIL_POINTS)
    require(set(words) <= set(_MAIL_POINTS), f"resources.mail_type={request.mail_type}: PBS has {known}")
    return "".join(sorted({letter for word in words for letter in _MAIL_POINTS[word]} - {"n"})) or "n"


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"resources.extra_directives: {text!r} cannot be split into words: {error}") from error


def _quoted(value: str) -> str:
    if _PLAIN_WORD.fullmatch(value):
        return value
    require('"' not in value and "\n" not in value, f"{value!r} cannot be written as a #PBS line")
    return f'"{value}"'
