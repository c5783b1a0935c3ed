"""Makes the bundle: one file with all modules that an agent loads on a node (`hpcml.bundled` says what for).

It holds compiled modules of hpcml, of Python's library and of what the sampler needs, as Python would load them, and
says where the extension modules lie. It lies among Python's own compiled modules, is trusted as they are, and is made
under their conditions: where their folder can be written to and Python may write them. `refresh` does it before runs
are submitted; whoever installs hpcml for others calls ``python -m hpcml.agent.bundle`` once.

What a bundle was made of is watched as Python watches what it has compiled, by time and size. A submission looks at
every file. An agent looks at each file of a checkout, which people edit; of an installed package at its folder, which
an installer changes by exchanging files. So what somebody edits there by hand is in agents from the next submission on.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import marshal
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from hpcml.bundled import MAGIC, Bundle, place_of_bundle, status_of

_EARLY = (  # by an agent until the program starts, or its sampler does: of the bundle this is read at first
    "hpcml.agent.turns",
    "hpcml.agent.attempt",
    "hpcml.agent.telemetry.host",
    "hpcml.agent.staging",
    "hpcml.agent.metrics.printed",
    "encodings.ascii",  # in which /proc is read
)
_LATE = (  # by an agent, its sampler, a rank of MPI and a queue; what few of them need stays outside
    "hpcml.agent.ending",
    "hpcml.agent.lanes",
    "hpcml.agent.metrics.event_files",
    "hpcml.agent.metrics.mlflow_files",
    "hpcml.agent.metrics.text_files",
    "hpcml.agent.metrics.wandb_log",
    "hpcml.agent.telemetry.sampler",
    "hpcml.agent.telemetry.summary",
    "hpcml.agent.mpi.job",
    "hpcml.agent.mpi.rank",
    "hpcml.schedulers.local.queue",  # which starts agents on this machine
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PATIENCE_S = 60.0
_SHOWS_LOADED = (  # a module that waits for its first use is of another class
    "import sys; from hpcml.bundled import use_bundle; use_bundle(); before = set(sys.modules); import {}; "
    "print(*(name for name, module in sys.modules.items() if name not in before and type(module) is type(sys)))"
)
_File = tuple[str, str | None, SourceFileLoader | None]  # file, folder of a package, None: an extension module


def refresh() -> str | None:
    """Make the bundle anew in a Python of its own, where it is absent or older than what it is made of.

    Nothing happens where compiled modules cannot be written, or must not be. Returns why it could not be made, in one
    line: agents start without it, too.
    """
    if sys.dont_write_bytecode or _is_fresh() or not _is_writable():
        return None
    words = [sys.executable, "-P", "-m", "hpcml.agent.bundle"]
    try:
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_S)
    except subprocess.CalledProcessError as error:
        said: bytes = error.stderr
        return (said.decode(errors="replace").strip().splitlines() or [str(error)])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


def make() -> None:
    """Load what an agent loads, and write it into the bundle; raises `OSError`.

    To be called in a Python that has loaded nothing of hpcml but this module.
    """
    noted = _noted_while(lambda: [importlib.import_module(name) for name in (*_EARLY, *_LATE)])
    from hpcml.runs.atomic import replacing  # noqa: PLC0415 - not before what dataclasses write is noted

    files = dict(_files(sys.modules.items()))
    sources = _statuses(file for file, _, _ in files.values() if not _is_pythons(file))
    codes = {
        name: marshal.dumps((_code(loader, name), noted.written.get(name, {})))
        for name, (_, _, loader) in files.items()
        if loader is not None
    }
    head: dict[str, Any] = {
        "python": sys.version,
        "watched": _statuses(_watched(files.values())),
        "patterns": noted.patterns,
        "absent": {name for name in sys.stdlib_module_names if importlib.util.find_spec(name) is None},
    }
    if _statuses(path for path, _ in sources) != sources:
        return  # somebody is at work on them: the next submission makes it
    place = Path(place_of_bundle())
    place.parent.mkdir(parents=True, exist_ok=True)
    for find_early in (tuple, _loaded_early):  # which are early, the bundle itself shows
        with replacing(place, durable=True) as draft:
            draft.write_bytes(_laid_out(head, files, codes, marshal.dumps(sources), find_early()))


def _laid_out(
    head: dict[str, Any], files: Mapping[str, _File], codes: Mapping[str, bytes], sources: bytes, early: Sequence[str]
) -> bytes:
    """Return the content of the bundle, in which the codes of the modules *early* come first."""
    first = [name for name in early if name in codes]
    places, end = {}, 0
    for name in (*first, *(name for name in codes if name not in first)):
        places[name] = (end, end + len(codes[name]))
        end += len(codes[name])
    modules = {name: (file, folder, places.get(name)) for name, (file, folder, _) in files.items()}
    raw = marshal.dumps({**head, "modules": modules, "sources": (end, end + len(sources))})
    early_bytes = sum(len(codes[name]) for name in first)
    lengths = (length.to_bytes(8, "little") for length in (len(raw), early_bytes, end + len(sources)))
    return b"".join([MAGIC, *lengths, raw, *(codes[name] for name in places), sources])


def _loaded_early() -> Sequence[str]:
    """Return the modules that are loaded, by the bundle that there is, where an agent loads what is early."""
    words = [sys.executable, "-P", "-c", _SHOWS_LOADED.format(", ".join(_EARLY))]
    try:
        done = subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.SubprocessError):
        return ()  # then each agent reads all of the bundle
    return done.stdout.decode().split()


class _Noted:
    """What was compiled while modules were loaded."""

    def __init__(self, compiler: Any) -> None:  # noqa: ANN401 - re._compiler, which has no types
        self._compiler, self._compile, self._sre = compiler, compiler.compile, vars(compiler)["_sre"]
        self.written: dict[str, dict[str, CodeType]] = {}  # by module
        self.patterns: dict[tuple[str | bytes, int], tuple[Any, ...]] = {}

    def execute(self, text: str, *names: dict[str, Any]) -> None:
        """Do what ``exec`` does, for `dataclasses`."""
        code = compile(text, "<string>", "exec", dont_inherit=True)
        self.written.setdefault(names[0]["__name__"], {})[text] = code  # the names of the module with the class
        exec(code, *names)  # noqa: S102 - that library's own text

    def compile(self, pattern: str | bytes, flags: int = 0) -> Any:  # noqa: ANN401 - a re.Pattern
        """Do what ``re._compiler.compile`` does."""
        asked = (pattern, int(flags))

        class Noting:
            def __getattr__(inner, name: str) -> Any:  # noqa: ANN401, N805 - re's own module in C
                return getattr(self._sre, name)

            def compile(inner, pattern: str | bytes, *compiled: Any) -> Any:  # noqa: ANN401, N805 - as above
                self.patterns[asked] = tuple(_plain(what) for what in compiled)
                return self._sre.compile(pattern, *compiled)

        vars(self._compiler)["_sre"] = Noting()
        try:
            return self._compile(pattern, flags)
        finally:
            vars(self._compiler)["_sre"] = self._sre


def _noted_while(load: Callable[[], object]) -> _Noted:
    """Return what is compiled during *load*, and the patterns of what was loaded before."""
    compiler = importlib.import_module("re._compiler")
    before = [(pattern, flags) for _, pattern, flags in getattr(re, "_cache", ())]
    noted = _Noted(compiler)
    own = compiler.compile
    vars(dataclasses)["exec"] = noted.execute  # its own global name, before Python's
    vars(compiler)["compile"] = noted.compile
    re.purge()
    for pattern, flags in before:
        re.compile(pattern, flags)
    load()
    vars(compiler)["compile"] = own
    del vars(dataclasses)["exec"]
    return noted


def _plain(value: Any) -> Any:  # noqa: ANN401 - as marshal
    """Return *value* without the named numbers of `re`, which marshal does not know."""
    if isinstance(value, list):
        return [int(word) for word in value]
    return int(value) if isinstance(value, int) else value


def _files(modules: Iterable[tuple[str, ModuleType]]) -> Iterator[tuple[str, _File]]:
    """Yield the modules that were loaded from files, by name, but for the one that runs."""
    for name, module in list(modules):
        spec = getattr(module, "__spec__", None)  # typing.io has none
        if spec is None or spec.origin is None or name == "__main__":
            continue
        folders = spec.submodule_search_locations
        if type(spec.loader) is SourceFileLoader:
            yield name, (spec.origin, None if folders is None else next(iter(folders)), spec.loader)
        elif type(spec.loader) is ExtensionFileLoader:
            yield name, (spec.origin, None, None)


def _code(loader: SourceFileLoader, name: str) -> CodeType:
    code = loader.get_code(name)
    assert isinstance(code, CodeType)  # what was loaded has code
    return code


def _watched(files: Iterable[_File]) -> Iterator[str]:
    """Yield what an agent looks at: files of a checkout, of an installed package its folders; nothing of Python's."""
    for file, folder, _ in files:
        if _is_pythons(file):
            continue
        path = Path(file)
        is_in_package = folder is not None or (path.parent / "__init__.py").exists()
        yield str(path.parent) if is_in_package and _is_installed(path) else file


def _is_installed(path: Path) -> bool:
    return not _INSTALLED.isdisjoint(path.parts)


def _is_pythons(file: str) -> bool:
    """Tell whether *file* belongs to Python's own library, which changes with its version."""
    path = Path(file)
    return path.is_relative_to(Path(os.__file__).parent) and not _is_installed(path)


def _statuses(paths: Iterable[str]) -> list[tuple[str, tuple[int, int] | None]]:
    return [(path, status_of(path)) for path in sorted(set(paths))]


def _is_fresh() -> bool:
    try:
        bundle = Bundle(place_of_bundle())
        sources = bundle.at(bundle.head["sources"])  # at the end: the file is closed by now
        return bundle.is_current() and all(status_of(path) == was for path, was in sources)
    except (OSError, ValueError, EOFError, TypeError, KeyError):
        return False


def _is_writable() -> bool:
    folders = Path(place_of_bundle()).parents
    return os.access(next(folder for folder in folders if folder.exists()), os.W_OK)


if __name__ == "__main__":
    make()
