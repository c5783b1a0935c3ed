"""How the double reads a call of qsub: options, `#PBS` lines, limits, and PBS's refusals word for word."""

from __future__ import annotations

import getopt
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.pbs.model import Chunk, Spec, duration, memory_kb

USAGE = """usage: qsub [-a date_time] [-A account_string] [-c interval]
	[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
	[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
	[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
	[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
	[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version
"""
LETTERS = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"
RESOURCES = {"ncpus", "ngpus", "mem", "walltime", "nodes", "select", "place", "mpiprocs"}
CHUNK_RESOURCES = {"ncpus", "ngpus", "mem", "host", "mpiprocs", "ompthreads"}
# name -> (longest walltime in s, default walltime in s)
QUEUES: dict[str, tuple[int | None, int | None]] = {
    "workq": (None, None),
    "qgpu": (None, None),
    "qprod": (48 * 3600, 24 * 3600),
    "qnvidia": (48 * 3600, 3600),
}
DEPENDENCY = re.compile(r"(after|afterok|afternotok|afterany|before|beforeok|beforenotok|beforeany|on):[\w.\[\]:]+")


class Refused(Exception):  # noqa: N818 - it is an answer
    """PBS's answer to a job that it does not take."""

    def __init__(self, code: int, text: str, *, usage: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = (f"qsub: {text}\n" if text else "") + (USAGE if usage else "")


@dataclass
class Options:
    """The options given on one side: of equal ones the last counts."""

    single: dict[str, str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)  # -W

    def over(self, others: Options) -> Options:
        """Return these and, where they say nothing, *others*."""
        return Options(
            {**others.single, **self.single},
            {**others.resources, **self.resources},
            {**others.other, **self.other},
        )

    def add(self, letter: str, value: str) -> None:
        if letter == "l":
            for part in re.split(r",(?=[a-z_]+=)", value):
                name, _, text = part.partition("=")
                self.resources[name] = text
        elif letter == "W":
            name, _, text = value.partition("=")
            if name == "depend" and not all(DEPENDENCY.fullmatch(part) for part in text.split(",")):
                raise Refused(2, "illegal -W value", usage=True)
            self.other[name] = text
        else:
            self.single[letter] = value


def read(
    argv: list[str], *, cwd: str, environ: dict[str, str], stdin: str | None, array_limit: int
) -> tuple[Spec, int | None]:
    """Return what is asked for and the size of the array, or raise `Refused`; LookupError: the script is on stdin."""
    options = Options()
    try:
        pairs, rest = getopt.getopt(argv, LETTERS)
    except getopt.GetoptError as error:
        letter = "-" if f"--{error.opt}" in error.msg else error.opt
        raise Refused(2, f"invalid option -- '{letter}'", usage=True) from error
    for flag, value in pairs:
        options.add(flag[1], value)
    command = rest if "--" in argv and rest and argv[argv.index(rest[0]) - 1] == "--" else None
    script, name = None, "STDIN"
    if command is None:
        if len(rest) > 1:
            raise Refused(2, "", usage=True)
        script, name = _script(rest, cwd, stdin)
        directives = Options()
        for line in _directives(script):
            _add_directive(directives, line)
        options = options.over(directives)
    _check(options.single)
    size = _array_size(options, array_limit)
    return _spec(options, argv, command, script, name, cwd, environ), size


def _script(rest: list[str], cwd: str, stdin: str | None) -> tuple[str, str]:
    if not rest:
        if stdin is None:
            raise LookupError
        return stdin, "STDIN"
    path = Path(cwd) / rest[0]
    if not path.is_file():
        raise Refused(1, "script file:: No such file or directory")
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    if "\r\n" in text:
        raise Refused(1, "script contains cr, lf")
    return text, path.name


def _directives(script: str) -> list[str]:
    found = []
    for line in script.splitlines():
        if line.startswith("#PBS"):
            found.append(line[4:].strip())
        elif line.strip() and not line.startswith("#"):
            break  # later ones are ignored in silence
    return found


def _add_directive(options: Options, line: str) -> None:
    try:
        pairs, rest = getopt.getopt(shlex.split(line, posix=True), LETTERS)
    except getopt.GetoptError as error:
        raise Refused(1, f"invalid option -- '{error.opt}'\nqsub: directive error: {line} ") from error
    except ValueError as error:
        raise Refused(1, f"directive error: {line} ") from error
    if rest:
        raise Refused(1, f"directive error: {line} ")
    for flag, value in pairs:
        options.add(flag[1], value)


def _array_size(options: Options, limit: int) -> int | None:
    text = options.single.get("J")
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)-(\d+)(?:%(\d+))?", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise Refused(2, "illegal -J value", usage=True)
    if options.single.get("r") == "n":
        raise Refused(2, " cannot submit non-rerunable Array Job", usage=True)
    size = int(match[2]) - int(match[1]) + 1
    if size > limit:
        raise Refused(3, "Array job exceeds server or queue size limit")
    return size


def _check(single: dict[str, str]) -> None:
    legal = {
        "N": r"[A-Za-z0-9_+.-]+", "o": r"[ -~]+", "e": r"[ -~]+", "j": "oe|eo|n", "k": "[oed]+|n", "m": "n|[abej]+",
        "r": "y|n",
    }  # fmt: skip
    for letter, pattern in legal.items():
        if letter in single and not re.fullmatch(pattern, single[letter]):
            raise Refused(2, f"illegal -{letter} value", usage=True)
    if len(single.get("N", "")) > 230:
        raise Refused(2, "Job name is too long ")


def _spec(
    options: Options,
    argv: list[str],
    command: list[str] | None,
    script: str | None,
    name: str,
    cwd: str,
    environ: dict[str, str],
) -> Spec:
    single = options.single
    queue = single.get("q", "workq")
    if queue not in QUEUES:
        raise Refused(170, "Unknown queue")
    longest, usual = QUEUES[queue]
    walltime = usual
    if "walltime" in options.resources:
        walltime = duration(options.resources["walltime"])
        if walltime is None:
            raise Refused(166, "Illegal attribute or resource value Resource_List.walltime")
    if longest is not None and walltime is not None and walltime > longest:
        raise Refused(188, "Job violates queue and/or server resource limits")
    select, chunks = _select(options.resources)
    usual_place = "free" if "select" in options.resources else "pack"
    limit = re.fullmatch(r"[^%]*%(\d+)", single.get("J", ""))
    variables = {f"PBS_O_{key}": environ.get(key, "") for key in ("HOME", "LANG", "LOGNAME", "PATH", "SHELL")}
    variables |= {"PBS_O_WORKDIR": cwd, "PBS_O_SYSTEM": "Linux", "PBS_O_QUEUE": queue, "PBS_O_HOST": "localhost"}
    for item in re.split(r",", single["v"]) if single.get("v") else []:
        key, has_value, value = item.partition("=")
        variables[key] = value if has_value else environ.get(key, "")
    paths = {letter: _output(single.get(letter), cwd) for letter in "oe"}
    return Spec(
        name=single.get("N", name),
        queue=queue,
        select=select,
        chunks=chunks,
        place=options.resources.get("place", usual_place),
        walltime_s=walltime,
        submit_arguments=" ".join(argv),
        argv=command,
        script=script,
        environ=environ,
        home=environ.get("HOME", "/"),
        cwd=cwd,
        account=single.get("A"),
        join=single.get("j", "n"),
        keep=single.get("k", "n"),
        output=paths["o"],
        error=paths["e"],
        mail_points=single.get("m", "a"),
        rerunable=single.get("r", "y") == "y",
        umask=int(options.other.get("umask", "077"), 8),
        depend=options.other.get("depend"),
        hold="u" if "h" in single else "n",
        parallelism=int(limit[1]) if limit else int(options.other.get("max_run_subjobs", 0)) or None,
        variables=variables,
    )


def _output(path: str | None, cwd: str) -> str | None:
    return path if path is None or path.startswith("/") else f"{cwd}/{path}"


def _select(resources: dict[str, str]) -> tuple[str, list[Chunk]]:
    for name in resources:
        if name not in RESOURCES:
            raise Refused(187, f"Unknown resource Resource_List.{name}")
    if "select" not in resources:
        if "place" in resources and "ncpus" in resources:
            raise Refused(5, '"-lresource=" cannot be used with "select" or "place", resource is: ncpus')
        need = {"ncpus": int(resources.get("ncpus", "1"))}
        return f"1:ncpus={need['ncpus']}", [Chunk(need)]
    for name in ("ncpus", "ngpus", "mem", "nodes"):
        if name in resources:
            raise Refused(5, f'"-lresource=" cannot be used with "select" or "place", resource is: {name}')
    text = resources["select"]
    if re.match(r"-\d", text):
        raise Refused(166, "Illegal attribute or resource value Resource_List.select")
    chunks: list[Chunk] = []
    for part in text.split("+"):
        words = part.split(":")
        count = int(words.pop(0)) if words[0].isdigit() else 1
        if count == 0:
            raise Refused(166, "Illegal attribute or resource value")
        chunks += [_chunk(words)] * count
    return text, chunks


def _chunk(words: list[str]) -> Chunk:
    chunk = Chunk({"ncpus": 1})
    for word in words:
        name, _, value = word.partition("=")
        if name not in CHUNK_RESOURCES:
            raise Refused(187, f"Unknown resource: {name}")
        if name == "host":
            chunk.host = value
            continue
        number = memory_kb(value) if name == "mem" else int(value) if value.isdigit() else None
        if number is None:
            raise Refused(166, f"Illegal attribute or resource value select.{name}")
        if name == "mpiprocs":
            chunk.mpiprocs = number
        elif name != "ompthreads":
            chunk.need[name] = number
    return chunk
