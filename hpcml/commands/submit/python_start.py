"""What the Python of a command would end with at once: a module or script that is not there or no Python, lost imports.

A package of the user's own, with an ``__init__.py`` below where the command starts, comes before any that is installed.
What is installed is asked of the Python of the command, and of a run on a cluster, whose Python may be another, only
where the name is like that of a module beside it. A script is read by this Python and by the command's, which run
nothing of it: one that either reads is left alone, since only the job knows which Python it has in the end.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path, PurePath

from hpcml.commands.submit.import_paths import interpreter_of
from hpcml.config.guess import did_you_mean
from hpcml.runs.files import read_whole

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_CODE = re.compile(r"-[A-Za-z]*c")
_FLAG = re.compile(r"-[A-Za-z]*m|--module")  # python -um; torchrun has the long one
# Of Python's library: by which a script may change where modules are looked for, or bring some
_BRING_MODULES = frozenset(
    {
        *("sys", "site", "importlib", "pkgutil", "runpy", "zipimport", "builtins", "code"),
        *("subprocess", "urllib", "http", "ftplib", "shutil", "tarfile", "zipfile"),
    }
)
_START_PROGRAMS = frozenset({"system", "popen"})  # of os
_OURS = frozenset({"hpcml_client", "hpcml_train"})  # which every run finds
_MOST_BYTES = 1 << 20  # of a script
_PATIENCE_S = 20.0
_READ = "import ast, sys; ast.parse(open(sys.argv[1], 'rb').read())"
_OF_SYNTAX = re.compile(r"^(?:Syntax|Indentation|Tab)Error", re.MULTILINE)
TOO_DEEP = (ValueError, RecursionError, MemoryError)  # for this Python, maybe not for another
_FIND = """
import importlib.util, os, sys
sys.path[:1] = sys.argv[1].split(os.pathsep)  # not before: it loads nothing from there
for name in sys.argv[2:]:
    try:
        is_there = importlib.util.find_spec(name) is not None
    except Exception:  # of a finder that somebody has installed: then nobody knows
        is_there = True
    if not is_there:
        print(name)
"""


def no_module(name: str, program: str, cwd: Path, path: str, *, is_inside: bool, is_here: bool) -> str | None:
    """Return what is wrong with the module *name* behind the ``-m`` of *program*, started in *cwd*; None if nothing is.

    *path* is the PYTHONPATH of the run. *is_inside*: the Python is that of an image; *is_here*: it is that of this
    machine.
    """
    with suppress(OSError):  # of a name that is too long, or a folder that may not be looked into
        return _no_module(name, program, cwd, path, is_inside=is_inside, is_here=is_here)
    return None


def _no_module(name: str, program: str, cwd: Path, path: str, *, is_inside: bool, is_here: bool) -> str | None:
    top, *below = name.split(".")
    folders = [cwd, *(cwd / folder for folder in path.split(os.pathsep) if folder)]
    if top in _OURS or any(_is_module(folder, top) for folder in folders):
        return None
    packages = [folder / top for folder in folders if os.path.isdir(folder / top)]  # noqa: PTH112 - raises none
    if packages and _is_package(packages[0]):
        return next(_missing_in(packages[0], name, below, cwd), None)
    if packages or is_inside:
        return None  # a folder without __init__.py may be a package, and hides none that is installed
    beside = [other.stem for folder in folders for other in (*folder.glob("*.py"), *folder.glob("*/__main__.py"))]
    near = did_you_mean(top, beside)
    if (is_here or near) and _lost(program, cwd, [top], path):
        remedy = near or "activate the environment that has it before hpcml run"
        return f"python -m {name}: there is no module {top} here, seen from {cwd}; {remedy}"
    return None


def _missing_in(package: Path, name: str, below: Sequence[str], cwd: Path) -> Iterator[str]:
    folder = package
    for part in below:
        if _is_module(folder, part) or not _is_package(folder):
            return
        if not os.path.isdir(folder / part):  # noqa: PTH112
            near = did_you_mean(part, [other.stem for other in folder.glob("*.py")])
            yield (
                f"python -m {name}: there is no {part} in {os.path.relpath(folder, cwd)}, seen from {cwd}"
                f"{f'; {near}' if near else ''}"
            )
            return
        folder /= part
    if _is_package(folder) and not _is_module(folder, "__main__"):
        yield (
            f"python -m {name}: {os.path.relpath(folder, cwd)} is a package without a __main__.py, which cannot be "
            f"run: name a module in it, {name}.NAME"
        )


def module_of(words: Sequence[str]) -> str | None:
    """Return the name behind the first -m of a Python's words; None without one, or where they have a script before."""
    if not _PYTHON.fullmatch(PurePath(words[0]).name):
        return None
    for flag, name in pairwise(words[1:]):
        if _CODE.fullmatch(flag):
            return None
        if _FLAG.fullmatch(flag):
            return name if _NAME.fullmatch(name) else None
        if not flag.startswith("-") and os.path.splitext(flag)[1]:  # noqa: PTH122 - a script, whose own flags follow
            return None
    return None


def _is_module(folder: Path, name: str) -> bool:
    return any(folder.glob(f"{name}.py")) or any(folder.glob(f"{name}.*.so")) or any(folder.glob(f"{name}.pyc"))


def _is_package(folder: Path) -> bool:
    """Tell whether *folder* is a package of which all modules are in it."""
    try:
        return "__path__" not in (folder / "__init__.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def no_python(script: Path, program: str, cwd: Path) -> str | None:
    """Return where *script* is no Python, to this one and to that of *program*; None where one of them can read it."""
    if (source := text_of(script)) is None:
        return None
    try:
        parsed(source)
    except SyntaxError as error:
        python = interpreter_of(program, cwd)
        asked = None if python is None else _asked(python, _READ, str(script), cwd=cwd)
        if asked is not None and asked.returncode and _OF_SYNTAX.search(asked.stderr):
            where = os.path.relpath(script, cwd) if script.is_relative_to(cwd) else str(script)
            return f"{where}{f', line {error.lineno}' if error.lineno else ''}: {error.msg}"
    except TOO_DEEP:
        pass
    return None


def imports_of_nothing(script: Path, program: str, cwd: Path, path: str) -> list[str]:
    """Return the modules that *script* imports first of all, and that the Python of *program* does not find.

    *path* is the PYTHONPATH of the run. Nothing is known of a script that changes where is looked for modules, or may
    do so by a call (`rootutils.setup_root`, `pyximport.install`, `os.system` of pip) or by a module beside it
    (`_init_paths`), of imports behind that, of imports that may fail or that are made under a condition, and of those
    that the script's imports make in turn.
    """
    source = text_of(script)
    if source is None or _changes_path(source):
        return []
    folders = [script.parent, *(cwd / folder for folder in path.split(os.pathsep) if folder)]
    try:
        names = dict.fromkeys(_imported(parsed(source), folders))
    except (SyntaxError, *TOO_DEEP):
        return []
    asked = [name for name in names if name not in _OURS and name not in sys.stdlib_module_names]
    if not asked:
        return []
    return _lost(program, script.parent, asked, path, cwd=cwd)


def _lost(program: str, folder: Path, names: Sequence[str], path: str, *, cwd: Path | None = None) -> list[str]:
    """Return those of *names*, modules at the top, that the Python of *program* does not find, nor in *folder*.

    It loads nothing of them. Where it cannot be asked, all may be there.
    """
    python = interpreter_of(program, cwd or folder)
    if python is None:
        return []
    cwd = cwd or folder
    folders = [os.path.join(cwd, each) for each in path.split(os.pathsep) if each]  # noqa: PTH118 - texts
    asked = _asked(python, _FIND, os.pathsep.join([str(folder), *folders]), *names, cwd=cwd)
    return asked.stdout.split() if asked is not None and asked.returncode == 0 else []


def text_of(script: Path) -> bytes | None:
    """Return the bytes of *script*; None where it cannot be read, is long, or is no text."""
    with suppress(OSError):
        source = read_whole(script, most=_MOST_BYTES)
        return source if b"\0" not in source else None
    return None


def parsed(source: bytes) -> ast.Module:
    """Return what *source* says; raises `SyntaxError`, and one of `TOO_DEEP` where this Python cannot tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a program's own odd escapes
        return ast.parse(source)


def _imported(tree: ast.Module, folders: Sequence[Path]) -> Iterator[str]:
    """Yield the modules that *tree* imports before it does what may change where modules are looked for.

    *folders* are those of the script's own modules.
    """
    harmless = set(dir(builtins)) - {"exec", "eval", "__import__"}  # names that may be called
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            modules = _modules(statement)
            yield from modules
            if any(map(_changes_path, own_sources(statement, folders))):
                return
            if modules and all(map(_is_harmless, modules)):
                names = [alias for alias in statement.names if alias.name not in _START_PROGRAMS]
                harmless |= {alias.asname or alias.name.partition(".")[0] for alias in names}
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and any(
            isinstance(node, ast.Call) and not _is_harmless_call(node, harmless) for node in ast.walk(statement)
        ):
            return


def _changes_path(source: bytes) -> bool:
    return b"sys.path" in source or b"site." in source


def own_sources(statement: ast.Import | ast.ImportFrom, folders: Sequence[Path]) -> Iterator[bytes]:
    """Yield the texts of the modules in *folders* that a statement loads, the packages around them included."""
    names = [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        names = [f"{statement.module}.{name}" for name in names] if statement.module and not statement.level else []
    for parts in dict.fromkeys(tuple(name.split(".")[: 1 + at]) for name in names for at in range(1 + name.count("."))):
        places = [folder.joinpath(*parts) for folder in folders]
        files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
        yield from (text for text in map(text_of, files) if text is not None)


def _is_harmless(module: str) -> bool:
    return module in sys.stdlib_module_names and module not in _BRING_MODULES


def _is_harmless_call(call: ast.Call, harmless: Collection[str]) -> bool:
    starts = isinstance(call.func, ast.Attribute) and call.func.attr in _START_PROGRAMS
    return not starts and _first_name(call.func) in harmless


def _modules(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules at the top that a statement imports; none of a relative one."""
    if isinstance(statement, ast.Import):
        return [alias.name.partition(".")[0] for alias in statement.names]
    return [] if statement.level or not statement.module else [statement.module.partition(".")[0]]


def _first_name(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _asked(python: str, code: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str] | None:
    """Return what *python* says of *code*, as the one of a command in *cwd*; None where it does not answer."""
    try:
        return subprocess.run(
            [python, "-c", code, *words],
            env={**os.environ, "PYENV_DIR": str(cwd)},  # by which pyenv chooses
            cwd="/",  # in the user's folder Python would load what is called as a module of its own
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
