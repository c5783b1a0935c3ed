"""Refuses a command line of the user's own that cannot start, or would not do what it seems to say, before it queues.

There is no shell between hpcml and the program. What only a shell understands would reach the program as a word, which
would fail in the job, or do something else without a word.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from hpcml.commands.submit.python_start import module_of, no_module, no_python
from hpcml.config.guess import did_you_mean
from hpcml.config.program import PINNING
from hpcml.errors import ConfigError
from hpcml.model.cluster import SchedulerName
from hpcml.model.container import ContainerKind
from hpcml.model.launcher import LAUNCHING_MODULES
from hpcml.model.run import Run
from hpcml.paths import home_of_user
from hpcml.runs.plan import Plan
from hpcml.schedulers.registry import SUBMITS

_OPERATORS = frozenset({"|", "||", "|&", "&&", "&", ";", ">", ">>", "<", "2>", "2>>", "2>&1", "&>", ">&2"})
_GLUED = re.compile(r"[12&]?>>?[^>=<].*|<[^>=<][^>]*|[^;]+;", re.DOTALL)  # >log, 2>err, make; but not <eos>
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_HOME = re.compile(r"(?:--?[\w-]+=)?~(?:/.*)?", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Z_][A-Z0-9_]*)\})")  # not ${lr}, which a program with Hydra may take
_TAKES_CODE = re.compile(r"-[A-Za-z]*[cems]")  # -c, -lc, -e; -m and -s take a module and standard input

_WRAPPERS = frozenset(
    {
        *("env", "nice", "ionice", "time", "timeout", "stdbuf", "setsid", *PINNING),
        *("srun", "mpirun", "mpiexec", "horovodrun", "uv", "poetry", "pixi"),
    }
)
# Started in another folder; of what pins to cores, -C has cores behind it.
_ELSEWHERE = frozenset({"-C", "--chdir", "-D", "--wdir", "-wdir", "--directory"})
_INTERPRETERS: Mapping[str, tuple[str, ...]] = {
    "python": (".py", ".pyc"),
    "torchrun": (".py",),
    "deepspeed": (".py",),
    "accelerate": (".py",),
    "bash": (".sh", ".bash"),
    "sh": (".sh",),
    "zsh": (".sh", ".zsh"),
    "Rscript": (".R", ".r"),
    "julia": (".jl",),
    "perl": (".pl",),
}
_NOTEBOOK = ".ipynb"
_ASK_NOBODY = frozenset({"python", "bash", "sh", "zsh", "julia"})  # which read what is typed
_BEHIND_THE_SCENES = ("tmux", "screen")
_STARTERS: Mapping[str, str] = {".py": "python ", ".sh": "bash ", ".R": "Rscript ", ".jl": "julia "}
_RUNS_NONE = frozenset({"-", "--version", "--help", "--module", "-V", "-h"})
_LOOKED_AT = 4096  # bytes of a program's beginning


class PythonStart:
    """What is asked of Python and of scripts, each question once: most of a sweep's thousands start the same one."""

    def __init__(self) -> None:
        self.no_module = functools.cache(no_module)
        self.no_python = functools.cache(no_python)


def check_startable(plan: Plan, run: Run, asked: PythonStart, *, is_inside: bool) -> None:
    """Raise `ConfigError`, with what to write instead, where *run*'s own command could not start as planned.

    *asked* is for all runs of a sweep.

    *is_inside*: it starts in an image, of whose files only those below the working directory are known. On a cluster
    the PATH is that of the job, so that only paths are looked at.
    """
    assert run.workload.command is not None
    for problem in _problems(plan.argv, Path(plan.cwd), run, asked, is_inside=is_inside):
        raise ConfigError(problem)


def named_files(words: Sequence[str], cwd: Path) -> list[str]:
    """Return those of *words* that name what is executed: a program by its path, and an interpreter's script."""
    script = _script(words, cwd, is_sought=True)
    return [word for word in (words[0] if os.sep in words[0] else None, script) if word is not None]


def _problems(words: Sequence[str], cwd: Path, run: Run, asked: PythonStart, *, is_inside: bool) -> Iterator[str]:
    is_here = run.cluster.scheduler is SchedulerName.local
    yield from _no_program_but_a_word(words, cwd)
    yield from _meant_for_a_shell(run.workload.command or "", words, is_exact=run.workload.args is not None)
    if not is_inside and (is_here or os.sep in words[0]):
        yield from _no_program(words, cwd, is_here=is_here)
    yield from _no_script(words, cwd, is_inside=is_inside)
    path = run.workload.env.get("PYTHONPATH", "" if is_inside else os.environ.get("PYTHONPATH", ""))
    is_known = not is_inside and has_known_python(run)
    if (name := module_of(words)) is not None:
        lost = asked.no_module(name, words[0], cwd, path, is_inside=is_inside, is_here=is_here and is_known)
        yield from [lost] if lost else []
    script = python_script(words, cwd)
    if script is not None and is_known and (wrong := asked.no_python(script, words[0], cwd)):
        yield f"{wrong}, says Python {platform.python_version()} here, and so does that of the command"


def has_known_python(run: Run) -> bool:
    """Tell whether the Python of a user's own command is, as far as anybody knows, the one that is found here."""
    site = run.cluster
    is_inside = run.container.kind is not ContainerKind.none
    return not (is_inside or site.modules or site.prelude or "PATH" in run.workload.env)


def python_script(words: Sequence[str], cwd: Path) -> Path | None:
    """Return the script that the first of *words* has its Python run, by its name; None where that is not certain.

    Not those of `uv run` and `conda run`, which choose a Python by themselves.
    """
    is_starter = ".py" in (_suffixes(words[0]) or ()) or words[0].endswith(".py")
    script = next((word for word in named_files(words, cwd)[::-1] if word.endswith(".py")), None)
    return cwd / script if is_starter and script is not None and _is_file(cwd / script) else None


def _no_program_but_a_word(words: Sequence[str], cwd: Path) -> Iterator[str]:
    """Yield what to write instead of a first word that starts no program, or one that ends before its work does."""
    first, rest = PurePath(words[0]).name, list(words[1:])
    if words[0] in _SHELLS_OWN:
        yield f"{words[0]!r} is a word of the shell, and no program: {_SHELLS_OWN[words[0]](rest)}"
    if first in SUBMITS and not any(word in ("--wait", "-W") or word.startswith("-Wblock") for word in rest):
        script = next((word for word in rest if _is_file(cwd / word)), "job.sh")
        yield (
            f"{first} submits another job and ends, and the run would be over before that begins: hpcml submits by "
            f"itself: hpcml run +cluster=NAME -- bash {script}"
        )
    if first in _BEHIND_THE_SCENES:
        yield (
            f"{first} leaves the program behind and ends, and the run would be over at once: leave it out; "
            "hpcml run --detach goes on when you log out"
        )
    if first in ("conda", "mamba", "micromamba") and rest[:1] == ["activate"]:
        name = rest[1] if len(rest) > 1 else "NAME"
        yield f"{first} activate is for shells: do it before hpcml run, or write {first} run -n {name} python ..."
    if first == "hpcml" and rest[:1] == ["run"]:
        yield "hpcml run inside of hpcml run: write the program itself behind the --"
    if not rest and (_suffixes(words[0]) is not None and re.sub(r"[\d.]+$", "", first) in _ASK_NOBODY):
        yield f"{words[0]} alone reads what is typed, and nobody is there to type: write what it is to run"


def _of_source(rest: Sequence[str]) -> str:
    script = PurePath(rest[0]) if rest else PurePath("env/bin/activate")
    python = f", or write {script.parent}/python train.py" if script.name == "activate" else ""
    return f"activate an environment before hpcml run, whose PATH the program gets{python}"


def _of_export(rest: Sequence[str]) -> str:
    name, _, value = (rest[0] if rest else "NAME=VALUE").partition("=")
    return f"write workload.env.{name}={shlex.quote(value)} in front of the --"


_SHELLS_OWN: Mapping[str, Callable[[Sequence[str]], str]] = {
    "source": _of_source,
    ".": _of_source,
    "export": _of_export,
    "cd": lambda rest: f"write workload.cwd={shlex.quote(rest[0] if rest else 'FOLDER')} in front of the --",
    **dict.fromkeys(
        ("module", "ml"),
        lambda rest: (
            "load it before hpcml run; for the jobs of a cluster write "
            f"'cluster.modules=[{','.join(rest[rest[:1] == ['load'] :])}]' in front of the --"
        ),
    ),
    **dict.fromkeys(
        ("eval", "exec", "ulimit", "alias", "set", "unset", "if", "for", "while"),
        lambda _: "give the whole line to bash -c '...'",
    ),
}


def _meant_for_a_shell(command: str, words: Sequence[str], *, is_exact: bool) -> Iterator[str]:
    remedy = f"write bash -c '{command}'" if "'" not in command else "give the whole line to bash -c"
    for word in () if is_exact else _unquoted(command):
        if word in _OPERATORS or _GLUED.fullmatch(word):
            yield f"{word!r} in {command!r}: no shell reads this, and it would be an argument: {remedy}"
    for word, before in zip(words, ["", *words], strict=False):
        if _TAKES_CODE.fullmatch(before) or re.search(r"\s", word):
            continue  # code, or a text
        if is_exact and word in _OPERATORS and not before.startswith("-"):  # awk -F '|'
            yield f"{word!r} would be an argument, since no shell reads this: {remedy}"
        if _HOME.fullmatch(word):
            told = word.replace("~", str(home_of_user()).rstrip("/"), 1)
            yield f"{word!r}: no shell is there to replace ~: write {told}"
        for found in _VARIABLE.finditer(word):
            name = found[1] or found[2]
            value = os.environ.get(name)
            write = f"it is not set here; if the job sets it, {remedy}"
            if value is not None:
                write = f"write {word.replace(found[0], value)}, or for the job's own value {remedy}"
            yield f"{word!r}: no shell is there to replace {found[0]}: {write}"
    first = PurePath(words[0]).name
    if any(f",{start}" in word for word in words[1:] for start in (words[0], first)):
        yield (
            f"workload.command={command!r} is one command, whatever its commas: sweep its own flags, as in hpcml run "
            f"-m -- {first} ... --lr 0.1,0.5, or write workload.command=choice('...','...')"
        )


def _unquoted(command: str) -> list[str]:
    """Return the words of *command* in which nothing is quoted: those that a shell would read as its own."""
    return [word for word in _QUOTED.sub("\0", command).split() if "\0" not in word]


def _no_program(words: Sequence[str], cwd: Path, *, is_here: bool) -> Iterator[str]:
    program = words[0]
    if program.endswith(_NOTEBOOK) and _is_file(cwd / program):
        yield _notebook(program)
        return
    if os.sep not in program:
        if shutil.which(program) is None:
            yield f"there is no program {program!r} here{_hint(program, cwd)}"
        return
    path = cwd / program
    if not os.path.lexists(path):
        if is_here or _is_dir(path.parent) or not PurePath(program).is_absolute():
            yield f"there is no program {program!r} here{_hint(program, cwd)}"
    elif _is_dir(path):
        yield f"{program} is a folder, not a program: name the file to start"
    elif _is_file(path) and not os.access(path, os.X_OK):
        starter = _STARTERS.get(path.suffix)
        other = f", or write {starter}{program}" if starter else ""
        yield f"{program} is there, and may not be executed: chmod +x {shlex.quote(program)}{other}"
    elif _is_file(path):
        yield from _no_interpreter(program, path, is_here=is_here)


def _no_interpreter(program: str, path: Path, *, is_here: bool) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT)
    except OSError:
        return  # which may be executed all the same
    if not head.startswith(b"#!"):
        if b"\0" not in head:  # text; what the kernel takes for a program is not
            starter = "python" if path.suffix == ".py" else "bash"
            yield f"{program} does not begin with #!, so nothing says what reads it: write {starter} {program}"
        return
    line = head.partition(b"\n")[0][2:].decode(errors="replace")
    if line.endswith("\r"):
        yield f"{program} has the line ends of Windows, which its first line is read with: sed -i 's/\\r$//' {program}"
        return
    interpreter, *others = line.split() or [""]
    if is_here and (wrong := _unfit(interpreter, others)):
        yield f"{program} is to be read by {wrong}: mend that line"


def _unfit(interpreter: str, others: Sequence[str]) -> str | None:
    """Return which interpreter of a first line cannot be started, and why; None where nothing speaks against it."""
    said = f"{interpreter!r}, as its first line says, which"
    if not os.path.exists(interpreter):  # noqa: PTH110 - Path.exists raises where a name is too long
        return f"{said} is not here"
    if _is_dir(Path(interpreter)):
        return f"{said} is a folder" + (": a path in a first line ends at its first space" if others else "")
    if not os.access(interpreter, os.X_OK):
        return f"{said} may not be executed"
    named = others[0] if others and PurePath(interpreter).name == "env" else "-"
    if not named.startswith("-") and "=" not in named and shutil.which(named) is None:  # else env looks otherwise
        return f"{named!r}, as its first line says, which is not here"
    return None


def _hint(program: str, cwd: Path) -> str:
    guess = None if program in _INTERPRETERS else did_you_mean(program, _INTERPRETERS)
    elsewhere = f"; {guess or 'activate the environment that has it before hpcml run, or write its path'}"
    return next(_hints(program, cwd), "" if os.sep in program else elsewhere)


def _hints(program: str, cwd: Path) -> Iterator[str]:
    if re.search(r"\s", program):
        yield ": it is one word; leave out the quotes around the whole command, or write bash -c '...'"
    if found := re.fullmatch(r"([A-Z_][A-Z0-9_]*)=(.*)", program, re.DOTALL):
        yield f": a variable is set in front of the --, by workload.env.{found[1]}={shlex.quote(found[2])}"
    if re.fullmatch(r"\+?[\w.]+=.*", program, re.DOTALL):
        yield ": settings of the run stand in front of the --"
    if "," in program:
        yield ": the program itself is not swept; workload.command=choice('a','b') runs several"
    if program.startswith("-"):
        yield ": options of hpcml run stand in front of the --, and the program is the first word behind it"
    if _is_file(cwd / program):
        starter = None if os.access(cwd / program, os.X_OK) else _STARTERS.get(PurePath(program).suffix)
        yield f": the file of that name is started by {starter or './'}{program}"


def _no_script(words: Sequence[str], cwd: Path, *, is_inside: bool) -> Iterator[str]:
    script = _script(words, cwd)
    if script is None:
        return
    if script.endswith(_NOTEBOOK):
        yield _notebook(script)
    path = cwd / script
    is_known = not PurePath(script).is_absolute() or (not is_inside and _is_dir(path.parent))
    if is_known and not os.path.lexists(path):
        yield f"{script!r} is not there, seen from {cwd}: mend its name, or start in the folder where it is"


def _notebook(file: str) -> str:
    file = shlex.quote(file)
    return (
        f"{file} is a notebook, and no program: write jupyter nbconvert --to notebook --execute {file}, or papermill "
        f"{file} done.ipynb -p NAME VALUE, which gives it values"
    )


def _script(words: Sequence[str], cwd: Path, *, is_sought: bool = False) -> str | None:
    """Return the file that an interpreter among *words* is told to run, if it is not certain to be there, else None.

    *is_sought*: return it also if it is there.
    """
    suffixes, rest = _interpreted(words)
    before = ""
    for word in rest:
        if _TAKES_CODE.fullmatch(word) or word in _RUNS_NONE:
            break
        if not word.startswith(("-", "+")):
            if word.endswith(suffixes):
                return word
            if word.endswith(_NOTEBOOK):
                return word
            if os.path.lexists(cwd / word):
                return word if is_sought and _is_file(cwd / word) else None
            if not before.startswith(("-", "+")):  # else it may be the value of an option
                return word
        before = word
    return None


def _interpreted(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return how files end that the first interpreter among *words* runs, and the words behind it; none without one."""
    rest = list(words)
    wrapper = PurePath(rest[0]).name
    if wrapper in _WRAPPERS:
        while rest and _suffixes(rest[0]) is None:
            word = rest.pop(0)
            if word in _ELSEWHERE and wrapper not in PINNING:
                return (), []
            wrapper = name if (name := PurePath(word).name) in _WRAPPERS else wrapper
    suffixes = _suffixes(rest[0]) if rest else None
    if suffixes is None:
        return (), []
    if PurePath(rest[0]).name == "accelerate":
        return suffixes, rest[2:] if rest[1:2] == ["launch"] else []
    if (module := module_of(rest)) in LAUNCHING_MODULES:
        return suffixes, rest[rest.index(module) + 1 :]
    return suffixes, rest[1:]


def _suffixes(word: str) -> tuple[str, ...] | None:
    """Return how files end that the interpreter *word* runs; None where it is no interpreter that is known here."""
    return _INTERPRETERS.get(re.sub(r"^python[\d.]*$", "python", PurePath(word).name))


# Path's own questions raise where a name is longer than a file's may be.


def _is_dir(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113
